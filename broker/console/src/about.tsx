// What a session is: where it runs, since when, who opened it, and how long it lives.
import { type Missing as MissingVariable, sessions } from "./live";
import { bytes, dateTime, duration, number, t } from "./preferences";
import { CLIENTS } from "./ui";

function Missing({ title, list }: { title: string; list: MissingVariable[] }) {
  if (!list.length) return null;
  return (
    <div>
      <dt>{title}</dt>
      <dd>
        {list.map((each) => (
          <p key={each.name}>
            <code>{each.name}</code> <span class="faint small">{each.reason}</span>
          </p>
        ))}
      </dd>
    </div>
  );
}

export function About({ id }: { id: string }) {
  const session = sessions.value.get(id);
  if (!session) return <p class="faint pad">{t("The session has ended.")}</p>;
  const rows: [string, string][] = [
    ...(session.context_of ? [[t("Context of"), session.context_of] as [string, string]] : []),
    [t("Template"), session.template],
    ...(session.runs_in ? [[t("Runs in"), session.runs_in] as [string, string]] : []),
    [t("Language"), session.language],
    [t("Isolation"), session.isolation],
    [t("Workspace"), session.workspace],
    [t("Memory"), bytes(session.memory)],
    [t("Opened"), dateTime(session.created_at)],
    [t("By"), [CLIENTS[session.client] ?? session.client, session.user].filter(Boolean).join(" · ") || "–"],
    [t("Closes when idle for"), duration(session.idle_timeout)],
    [t("Lives at most"), duration(session.max_lifetime)],
    [t("Cells"), number(session.executions)],
    [t("Kernels replaced"), number(session.restarts)],
  ];
  return (
    <dl class="about">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
      {session.from_checkpoint && (
        <div>
          <dt>{t("Checkpoint")}</dt>
          <dd>{session.from_checkpoint}</dd>
        </div>
      )}
      <Missing title={t("Not restored")} list={session.not_restored} />
      <Missing title={t("Kept awake by")} list={session.kept_awake_by} />
      {Object.keys(session.metadata).length > 0 && (
        <div>
          <dt>{t("Metadata")}</dt>
          <dd>
            <pre tabIndex={0}>{JSON.stringify(session.metadata, null, 2)}</pre>
          </dd>
        </div>
      )}
    </dl>
  );
}
