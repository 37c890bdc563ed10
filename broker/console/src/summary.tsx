// What lists show of a session's latest cell.
import type { LastExecution } from "./live";
import { t } from "./preferences";
import { Client } from "./ui";

/** What ran last, and how it ended. */
export function LastCell({ last }: { last: LastExecution | null }) {
  if (!last) return <span class="faint">{t("nothing yet")}</span>;
  const state = last.state !== "done" ? last.state : last.success ? "ok" : "failed";
  return (
    <>
      <span class={`mark ${state}`} aria-label={t(state === "ok" ? "succeeded" : state)} role="img" />
      <code>{firstLine(last.code)}</code>
    </>
  );
}

export function Who({ client, user }: { client: string; user: string }) {
  return (
    <span class="who">
      <Client name={client} />
      <span class="faint">{user}</span>
    </span>
  );
}

/** The first line that says what the code does. */
function firstLine(code: string): string {
  const lines = code.split("\n").filter((line) => line.trim());
  return lines.find((line) => !/^\s*(#|import\b|from\b)/.test(line)) ?? lines[0] ?? "";
}
