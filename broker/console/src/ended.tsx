// The sessions that have ended, as long as their results are kept.
import { useEffect, useState } from "preact/hooks";
import { json } from "./api";
import { type LastExecution, sessions } from "./live";
import { dateTime, duration, moment, number, t } from "./preferences";
import { go, sessionLink } from "./route";
import { LastCell, Who } from "./summary";
import { Button, Empty, Icon, Skeleton } from "./ui";

type Ended = {
  session_id: string;
  template: string;
  context_of: string | null;
  created_at: string;
  ended_at: string;
  reason: string;
  executions: number;
  client: string;
  user: string;
  last_execution: LastExecution | null;
};
type Found = { sessions: Ended[]; next: string | null };

const ask = (text: string, before: string | null) =>
  json<Found>("GET", `/ended-sessions?${new URLSearchParams({ limit: "100", ...(text ? { text } : {}), ...(before ? { before } : {}) })}`);

export function EndedSessions({ filter }: { filter: string }) {
  const [found, setFound] = useState<Found | null>(null);
  const [problem, setProblem] = useState("");
  const open = [...sessions.value.keys()].join();
  useEffect(() => {
    let isGone = false;
    const timer = setTimeout(
      () =>
        void ask(filter.slice(0, 200), null).then(
          (answer) => {
            if (isGone) return;
            setProblem("");
            setFound(answer);
          },
          (error: Error) => !isGone && setProblem(error.message),
        ),
      found ? 250 : 0,
    );
    return () => {
      isGone = true;
      clearTimeout(timer);
    };
  }, [filter, open]); // a session that is closed appears
  const more = async () => {
    const next = await ask(filter, found!.next);
    setFound({ sessions: [...found!.sessions, ...next.sessions], next: next.next });
  };
  if (problem) return <Empty icon="warn" title={problem} />;
  if (!found) return <Skeleton />;
  if (!found.sessions.length && !found.next)
    return filter ? (
      <Empty icon="search" title={t("No session matches")} />
    ) : (
      <Empty icon="sessions" title={t("No session has ended")}>
        <p>{t("What ran in a session can be read here after its end, as long as its results are kept.")}</p>
      </Empty>
    );
  return (
    <>
      <div class="card scroll-x">
        <table class="list sessions ended">
          <thead>
            <tr>
              <th>{t("Session")}</th>
              <th>{t("Ended at")}</th>
              <th>{t("Last cell")}</th>
              <th>{t("By")}</th>
              <th class="num">{t("Cells")}</th>
              <th class="num">{t("Open for")}</th>
            </tr>
          </thead>
          <tbody>
            {found.sessions.map((each) => (
              <tr key={`${each.session_id} ${each.ended_at}`} onClick={() => go(sessionLink(each.session_id))} class={each.context_of ? "context" : ""}>
                <td>
                  {each.context_of && <Icon name="branch" size={14} />}
                  <a href={sessionLink(each.session_id)} class="session-name" onClick={(event) => event.stopPropagation()}>
                    {each.session_id}
                  </a>
                  <span class="faint small template">{each.context_of ? t("context") : each.template}</span>
                </td>
                <td class="nowrap">
                  <span title={dateTime(each.ended_at)}>{moment(each.ended_at)}</span>
                  <span class="faint small reason">{each.reason}</span>
                </td>
                <td class="cell-code">
                  <LastCell last={each.last_execution} />
                </td>
                <td>
                  <Who {...(each.client || !each.last_execution ? each : each.last_execution)} />
                </td>
                <td class="num">{number(each.executions)}</td>
                <td class="num faint">{duration((Date.parse(each.ended_at) - Date.parse(each.created_at)) / 1000)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.next && (
        <div class="row center">
          <Button label={t("Older sessions")} onClick={more} />
        </div>
      )}
    </>
  );
}
