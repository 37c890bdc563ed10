// The list of sessions.
import { useRef, useState } from "preact/hooks";
import { caller, json } from "./api";
import { isLoaded, type Session, sessions } from "./live";
import { age, bytes, duration, t } from "./preferences";
import { go, sessionLink } from "./route";
import { Button, Client, Dialog, Empty, Field, Icon, Skeleton, State } from "./ui";

/** The first line that says what the code does. */
function firstLine(code: string): string {
  const lines = code.split("\n").filter((line) => line.trim());
  return lines.find((line) => !/^\s*(#|import\b|from\b)/.test(line)) ?? lines[0] ?? "";
}

function Row({ session }: { session: Session }) {
  const last = session.last_execution;
  return (
    <tr onClick={() => go(sessionLink(session.session_id))}>
      <td>
        <a href={sessionLink(session.session_id)} class="session-name" onClick={(event) => event.stopPropagation()}>
          {session.session_id}
        </a>
        <span class="faint small template">{session.template}</span>
      </td>
      <td>
        <State state={session.state} />
      </td>
      <td class="cell-code">
        {last ? (
          <>
            <span class={`mark ${last.state === "done" ? (last.success ? "ok" : "failed") : last.state}`} aria-label={t(last.state === "done" ? (last.success ? "succeeded" : "failed") : last.state)} role="img" />
            <code>{firstLine(last.code)}</code>
          </>
        ) : (
          <span class="faint">{t("nothing yet")}</span>
        )}
      </td>
      <td>
        {last && (
          <span class="who">
            <Client name={last.client} />
            <span class="faint">{last.user}</span>
          </span>
        )}
      </td>
      <td class="num">{bytes(session.memory)}</td>
      <td class="num faint">{duration(age(session.state === "busy" && last ? last.accepted_at : session.last_active_at))}</td>
    </tr>
  );
}

function NewSession({ onClose }: { onClose: () => void }) {
  const [id, setId] = useState("");
  const [template, setTemplate] = useState("default");
  const open = async () => {
    const made = await json<Session>("POST", "/sessions", { ...(id ? { session_id: id } : {}), template });
    onClose();
    go(sessionLink(made.session_id));
  };
  return (
    <Dialog title={t("New session")} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          event.currentTarget.querySelector<HTMLButtonElement>(".primary")?.click();
        }}
      >
        <Field label={t("Name")}>
          <input value={id} onInput={(event) => setId(event.currentTarget.value)} placeholder={t("generated if empty")} pattern="[A-Za-z0-9_\-][A-Za-z0-9_.\-]*" maxLength={64} autofocus />
        </Field>
        <Field label={t("Template")}>
          <select value={template} onChange={(event) => setTemplate(event.currentTarget.value)}>
            {(caller.value?.templates ?? ["default"]).map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </Field>
        <div class="row end">
          <Button label={t("Cancel")} onClick={onClose} />
          <Button label={t("Open")} kind="primary" onClick={open} />
        </div>
      </form>
    </Dialog>
  );
}

export function Sessions() {
  const [filter, setFilter] = useState("");
  const [isNew, setNew] = useState(false);
  const body = useRef<HTMLTableSectionElement>(null);
  const all = [...sessions.value.values()];
  const wanted = filter.trim().toLowerCase();
  const shown = all
    .filter((each) => !wanted || JSON.stringify([each.session_id, each.template, each.state, each.last_execution?.code, each.last_execution?.client, each.last_execution?.user, each.metadata]).toLowerCase().includes(wanted))
    .sort((a, b) => Number(b.state === "busy") - Number(a.state === "busy") || b.last_active_at.localeCompare(a.last_active_at));
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
    if (!step || event.target instanceof HTMLInputElement) return;
    const links = [...(body.current?.querySelectorAll<HTMLElement>(".session-name") ?? [])];
    const index = links.indexOf(document.activeElement as HTMLElement);
    links[Math.max(0, Math.min(links.length - 1, index + step))]?.focus();
    event.preventDefault();
  };
  return (
    <section class="page" onKeyDown={move}>
      <header class="page-head">
        <h1>
          {t("Sessions")} <span class="count">{isLoaded.value ? all.length : ""}</span>
        </h1>
        <div class="row">
          <label class="search">
            <Icon name="search" />
            <input id="filter" type="search" placeholder={t("Filter")} aria-label={t("Filter sessions")} value={filter} onInput={(event) => setFilter(event.currentTarget.value)} />
            <kbd>/</kbd>
          </label>
          <Button icon="plus" label={t("New session")} kind="primary" onClick={() => setNew(true)} />
        </div>
      </header>
      {!isLoaded.value ? (
        <Skeleton />
      ) : all.length === 0 ? (
        <Empty icon="sessions" title={t("No session is open")}>
          <p>{t("A session that an agent opens appears here at once, whatever client it uses.")}</p>
          <Button icon="plus" label={t("Open one yourself")} onClick={() => setNew(true)} />
        </Empty>
      ) : shown.length === 0 ? (
        <Empty icon="search" title={t("No session matches")} />
      ) : (
        <div class="card scroll-x">
          <table class="list sessions">
            <thead>
              <tr>
                <th>{t("Session")}</th>
                <th>{t("State")}</th>
                <th>{t("Last cell")}</th>
                <th>{t("By")}</th>
                <th class="num">{t("Memory")}</th>
                <th class="num">{t("For")}</th>
              </tr>
            </thead>
            <tbody ref={body}>
              {shown.map((each) => (
                <Row key={each.session_id} session={each} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {isNew && <NewSession onClose={() => setNew(false)} />}
    </section>
  );
}
