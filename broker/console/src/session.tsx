// One session: its cells as they run, an editor for one's own, its variables and files.
import { useEffect, useRef, useState } from "preact/hooks";
import { About } from "./about";
import { json, request, save, sessionPath } from "./api";
import { Code } from "./code";
import { Composer } from "./composer";
import { ConfirmationCard } from "./confirmations";
import type { Execution } from "./execution";
import { Files } from "./files";
import { confirmations, follow, sessions, unwatch, watch, watched } from "./live";
import { Output } from "./output";
import { age, bytes, dateTime, duration, isWide, t, time } from "./preferences";
import { executionLink, fileLink, go, route, sessionLink } from "./route";
import { ask, Button, Client, Empty, Findings, Icon, report, say, Skeleton, State, Tabs } from "./ui";
import { Variables } from "./variables";

function Prompt({ execution, text }: { execution: Execution; text: string }) {
  const [value, setValue] = useState("");
  const send = () => json("POST", `/executions/${execution.id}/stdin`, { value, session_id: execution.session }).catch(report);
  return (
    <form
      class="prompt"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
    >
      <label>
        {text || t("The cell asks for input")}
        <input value={value} onInput={(event) => setValue(event.currentTarget.value)} />
      </label>
      <Button label={t("Send")} kind="primary" onClick={send} />
    </form>
  );
}

function Cell({ execution, isTarget }: { execution: Execution; isTarget: boolean }) {
  const box = useRef<HTMLElement>(null);
  const info = execution.info.value;
  const result = execution.result.value;
  useEffect(() => {
    const element = box.current!;
    const observer = new IntersectionObserver((entries) => entries.some((each) => each.isIntersecting) && follow(execution), { root: element.closest(".stream"), rootMargin: "600px" });
    observer.observe(element);
    return () => observer.disconnect();
  }, [execution]);
  useEffect(() => {
    if (isTarget) box.current!.scrollIntoView({ block: "start" });
  }, [isTarget]);
  const state = info.state === "done" ? (info.success ? "ok" : "failed") : info.state;
  const seconds = result?.execution_time ?? info.execution_time;
  return (
    <article class={`cell ${state}${isTarget ? " target" : ""}`} ref={box} aria-label={t("Cell {0}", execution.count.value ?? "")}>
      <header>
        <span class={`mark ${state}`} role="img" aria-label={t(state === "ok" ? "succeeded" : state)} />
        <span class="count-label">[{execution.count.value ?? " "}]</span>
        <Client name={info.client} />
        <span class="faint">{info.user}</span>
        {info.operation ? <span class="tag operation">{info.operation}</span> : info.language && info.language !== "python" && <span class="tag">{info.language}</span>}
        <span class="grow" />
        <span class="faint small" title={dateTime(info.accepted_at)}>
          {time(info.accepted_at)}
        </span>
        <span class="faint small num">
          {info.state === "running" && execution.startedAt ? duration(age(new Date(execution.startedAt).toISOString())) : seconds !== null && seconds !== undefined ? duration(seconds) : info.state === "queued" ? t("queued") : ""}
        </span>
        <Button
          icon="link"
          label={t("Copy a link to this cell")}
          iconOnly
          kind="ghost"
          onClick={async () => {
            await navigator.clipboard.writeText(`${location.origin}/console${executionLink(execution.session, execution.id)}`);
            say(t("The link is copied."));
          }}
        />
      </header>
      {info.packages.length ? <pre class="packages">{`pip install ${info.packages.join(" ")}`}</pre> : info.code !== undefined ? <Code code={info.code} language={info.language ?? "python"} /> : null}
      <Output execution={execution} prompt={(text) => <Prompt execution={execution} text={text} />} />
      {result && <ResultNotes execution={execution} />}
    </article>
  );
}

function ResultNotes({ execution }: { execution: Execution }) {
  const result = execution.result.value!;
  const cause = result.error_detail?.cause;
  const showsError = !result.success && (cause !== "exception" || !execution.blocks.some((each) => each.kind === "text" && each.hasError));
  return (
    <>
      {showsError && (
        <p class="note bad">
          <Icon name="warn" />
          {result.error}
        </p>
      )}
      {result.moved && (
        <p class="note">
          <Icon name="move" />
          <span>
            {t("Moved from {0} to {1} before this cell, with its files.", result.moved.from, result.moved.to)}
            {result.moved.left.length > 0 && ` ${t("Left behind: {0}", result.moved.left.map((each) => each.name).join(", "))}`}
          </span>
        </p>
      )}
      {result.kernel_restarted && (
        <p class="note warn">
          <Icon name="restart" />
          {t("The kernel was replaced; the variables are lost.")}
        </p>
      )}
      {result.findings.length > 0 && <Findings findings={result.findings} />}
      {result.truncated?.output_bytes ? <p class="note">{t("{0} of output were cut.", bytes(result.truncated.output_bytes))}</p> : null}
      {result.files.length > 0 && (
        <p class="note chips">
          {result.files.slice(0, 12).map((each) => (
            <a key={each.path} class="chip" href={fileLink(execution.session, each.path)}>
              <Icon name="file" size={13} />
              {each.path}
              <span class="faint">{bytes(each.size)}</span>
            </a>
          ))}
          {result.files.length > 12 && <span class="faint">{t("and {0} more", result.files.length - 12)}</span>}
        </p>
      )}
    </>
  );
}

export function SessionPage({ id }: { id: string }) {
  const [tab, setTab] = useState(route.value.file === undefined ? "cells" : "files");
  const end = useRef<HTMLDivElement>(null);
  const stream = useRef<HTMLDivElement>(null);
  const staysAtEnd = useRef(!route.value.execution);
  const lastTop = useRef(0);
  useEffect(() => {
    watch(id);
    return () => unwatch(id);
  }, [id]);
  const file = route.value.file;
  useEffect(() => {
    if (file !== undefined) setTab("files");
  }, [file]);
  useEffect(() => {
    const element = stream.current;
    if (!element) return;
    // The view stays at the newest output, unless the reader has scrolled up.
    const observer = new ResizeObserver(() => {
      if (staysAtEnd.current) element.scrollTop = element.scrollHeight;
    });
    observer.observe(element.firstElementChild!);
    return () => observer.disconnect();
  }, []);
  const session = sessions.value.get(id);
  const shown = watched.value?.id === id ? watched.value : null;
  const executions = shown?.executions.value ?? [];
  const asked = confirmations.value.filter((each) => each.session_id === id);
  const isOpen = session !== undefined;
  const isMissing = shown?.isLoaded.value && !isOpen && executions.length === 0 && !!shown.missing.value;
  const post = (what: string) => request("POST", `${sessionPath(id)}/${what}`, {});
  const side = tab === "cells" ? "variables" : tab;
  return (
    <section class="session" data-tab={tab}>
      <header class="page-head">
        <a class="button ghost icon-only" href="#/sessions" aria-label={t("All sessions")}>
          <Icon name="back" />
        </a>
        <h1 class="mono">{id}</h1>
        {session?.context_of && (
          <a class="tag" href={sessionLink(session.context_of)}>
            <Icon name="branch" size={12} /> {t("context of {0}", session.context_of)}
          </a>
        )}
        <State state={session?.state ?? (shown?.isLoaded.value ? "closed" : "loading")} />
        {session && (
          <>
            {!session.context_of && <span class="tag wide-only">{session.runs_in && session.runs_in !== session.template ? `${session.template} → ${session.runs_in}` : session.template}</span>}
            <span class="faint small wide-only num">{bytes(session.memory)}</span>
            {session.queued > 0 && <span class="faint small">{t("{0} waiting", session.queued)}</span>}
          </>
        )}
        <span class="grow" />
        <Button icon="stop" label={t("Interrupt")} onClick={() => post("interrupt")} disabled={session?.state !== "busy"} />
        <Button
          icon="restart"
          label={t("Restart")}
          iconOnly
          disabled={!isOpen}
          onClick={async () => {
            if (!(await ask(t("All variables of {0} are lost; its files stay.", id), t("Restart")))) return;
            await post("restart");
            say(t("The session has a fresh kernel."));
          }}
        />
        <Button
          icon="download"
          label={t("Download as a notebook")}
          iconOnly
          onClick={async () => save(await (await request("GET", `${sessionPath(id)}/notebook`)).blob(), `${id}.ipynb`)}
        />
        <Button
          icon="link"
          label={t("Copy a link to this session")}
          iconOnly
          onClick={async () => {
            await navigator.clipboard.writeText(`${location.origin}/console${sessionLink(id)}`);
            say(t("The link is copied."));
          }}
        />
        <Button
          icon="cross"
          label={t("Close the session")}
          iconOnly
          kind="danger"
          disabled={!isOpen}
          onClick={async () => {
            const of = session?.context_of;
            if (!(await ask(of ? t("The kernel of {0} ends; the session goes on.", id) : t("The session {0} ends, and what runs in it.", id), t("Close the session")))) return;
            await request("DELETE", sessionPath(id));
            go(of ? sessionLink(of) : "#/sessions");
          }}
        />
      </header>
      <Tabs
        label={t("Views")}
        value={isWide.value && tab === "cells" ? "variables" : tab}
        onChange={setTab}
        tabs={[
          ["cells", t("Cells")],
          ["variables", t("Variables")],
          ["files", t("Files")],
          ["about", t("About")],
        ]}
      />
      <div class="session-body">
        <div
          class="stream"
          ref={stream}
          onScroll={(event) => {
            const element = event.currentTarget;
            if (element.scrollTop < lastTop.current - 1) staysAtEnd.current = false;
            if (element.scrollTop + element.clientHeight >= element.scrollHeight - 40) staysAtEnd.current = true;
            lastTop.current = element.scrollTop;
          }}
        >
          <div class="stream-inner">
            {!shown?.isLoaded.value ? (
              <Skeleton />
            ) : isMissing ? (
              <Empty icon="search" title={t("There is no such session")}>
                <p>{shown.missing.value}</p>
              </Empty>
            ) : executions.length === 0 ? (
              <Empty icon="play" title={t("Nothing has run yet")}>
                <p>{t("Cells appear here as they run, whoever runs them.")}</p>
              </Empty>
            ) : (
              executions.map((each) => <Cell key={each.id} execution={each} isTarget={each.id === route.value.execution} />)
            )}
            {asked.map((each) => (
              <ConfirmationCard key={each.confirmation_id} asked={each} isShort />
            ))}
            {session?.state === "asleep" && (
              <p class="note asleep">
                <Icon name="moon" />
                {t("The session sleeps. The next cell wakes it, with its variables.")}
              </p>
            )}
            {isOpen ? (
              <Composer id={id} />
            ) : (
              shown?.isLoaded.value &&
              !isMissing && (
                <p class="note ended">
                  {t("The session has ended.")} {shown.ended.value ?? ""}
                </p>
              )
            )}
            <div ref={end} />
          </div>
        </div>
        <aside class="side" aria-label={t("Details")}>
          {side === "files" ? <Files id={id} isOpen={isOpen} /> : side === "about" ? <About id={id} /> : <Variables id={id} isOpen={isOpen} isLoaded={shown?.isLoaded.value ?? false} executions={executions} />}
        </aside>
      </div>
    </section>
  );
}
