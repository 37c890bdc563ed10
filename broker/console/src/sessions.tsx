// The lists of sessions: of the open ones, as they change, and of those that have ended.
import { signal } from "@preact/signals";
import { useRef, useState } from "preact/hooks";
import { caller, json } from "./api";
import { EndedSessions } from "./ended";
import { isLoaded, type Session, sessions } from "./live";
import { age, bytes, duration, t } from "./preferences";
import { go, route, sessionLink } from "./route";
import { LastCell, Who } from "./summary";
import { Button, Dialog, Empty, Field, Icon, Skeleton, State } from "./ui";

/** It stays while one looks at a session, and at those that have ended. */
const filter = signal("");

function Row({ session }: { session: Session }) {
  const last = session.last_execution;
  return (
    <tr onClick={() => go(sessionLink(session.session_id))} class={session.context_of ? "context" : ""}>
      <td>
        {session.context_of && <Icon name="branch" size={14} />}
        <a href={sessionLink(session.session_id)} class="session-name" onClick={(event) => event.stopPropagation()}>
          {session.session_id}
        </a>
        <span class="faint small template">{session.context_of ? t("context") : session.template}</span>
      </td>
      <td>
        <State state={session.state} />
      </td>
      <td class="cell-code">
        <LastCell last={last} />
      </td>
      <td>
        <Who {...(last ?? session)} />
      </td>
      <td class="num">{session.context_of ? "" : bytes(session.memory)}</td>
      <td class="num faint">{duration(age(session.state === "busy" && last ? last.accepted_at : session.last_active_at))}</td>
    </tr>
  );
}

/** The sessions, those at work first, and each one's contexts behind it. */
function inOrder(all: Session[]): Session[] {
  const latest = new Map<string, [boolean, string]>();
  for (const each of all) {
    const group = each.context_of ?? each.session_id;
    const [isBusy, at] = latest.get(group) ?? [false, ""];
    latest.set(group, [isBusy || each.state === "busy", each.last_active_at > at ? each.last_active_at : at]);
  }
  const key = (each: Session) => latest.get(each.context_of ?? each.session_id)!;
  return all.toSorted(
    (a, b) =>
      Number(key(b)[0]) - Number(key(a)[0]) ||
      key(b)[1].localeCompare(key(a)[1]) ||
      (a.context_of ?? a.session_id).localeCompare(b.context_of ?? b.session_id) ||
      Number(a.context_of !== null) - Number(b.context_of !== null),
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
  const isEnded = route.value.page === "ended";
  const [isNew, setNew] = useState(false);
  const section = useRef<HTMLElement>(null);
  const all = [...sessions.value.values()];
  const count = all.filter((each) => !each.context_of).length;
  const wanted = filter.value.trim().toLowerCase();
  const matching = all.filter((each) => !wanted || JSON.stringify([each.session_id, each.template, each.state, each.last_execution?.code, each.last_execution?.client, each.last_execution?.user, each.client, each.user, each.metadata]).toLowerCase().includes(wanted));
  const shown = inOrder(matching);
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" || event.key === "j" ? 1 : event.key === "ArrowUp" || event.key === "k" ? -1 : 0;
    if (!step || event.target instanceof HTMLInputElement) return;
    const links = [...(section.current?.querySelectorAll<HTMLElement>(".session-name") ?? [])];
    const index = links.indexOf(document.activeElement as HTMLElement);
    links[Math.max(0, Math.min(links.length - 1, index + step))]?.focus();
    event.preventDefault();
  };
  return (
    <section class="page" ref={section} onKeyDown={move}>
      <header class="page-head">
        <h1>
          {t("Sessions")} <span class="count">{isLoaded.value && !isEnded ? count : ""}</span>
        </h1>
        <nav class="switch" aria-label={t("Which sessions")}>
          <a href="#/sessions" aria-current={isEnded ? undefined : "page"}>
            {t("Open now")}
          </a>
          <a href="#/ended" aria-current={isEnded ? "page" : undefined}>
            {t("Ended")}
          </a>
        </nav>
        <div class="row">
          <label class="search">
            <Icon name="search" />
            <input id="filter" type="search" placeholder={t("Filter")} aria-label={t("Filter sessions")} value={filter.value} onInput={(event) => (filter.value = event.currentTarget.value)} />
            <kbd>/</kbd>
          </label>
          <Button icon="plus" label={t("New session")} kind="primary" onClick={() => setNew(true)} />
        </div>
      </header>
      {isEnded ? (
        <EndedSessions filter={filter.value.trim()} />
      ) : !isLoaded.value ? (
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
            <tbody>
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
