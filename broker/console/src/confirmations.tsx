// Code that waits until a person has decided.
import { json } from "./api";
import { Code } from "./code";
import { type Confirmation, confirmations } from "./live";
import { duration, now, t } from "./preferences";
import { executionLink, go, sessionLink } from "./route";
import { Button, Client, Empty, Findings, say } from "./ui";

type Answered = { execution: { session_id: string; execution_id: string } | null };

export function ConfirmationCard({ asked, isShort }: { asked: Confirmation; isShort?: boolean }) {
  const answer = async (decision: "approve" | "decline") => {
    const done = await json<Answered>("POST", `/confirmations/${asked.confirmation_id}`, { answer: decision });
    if (done.execution) {
      say(t("It runs now."));
      go(executionLink(done.execution.session_id, done.execution.execution_id));
    } else {
      say(t("Declined."));
    }
  };
  return (
    <article class="card confirmation" aria-label={t("A confirmation is asked for")}>
      <header>
        <Client name={asked.client} />
        <span class="faint">{asked.user}</span>
        {!isShort && asked.session_id && <a href={sessionLink(asked.session_id)}>{asked.session_id}</a>}
        <span class="faint grow right">{t("{0} left", duration(Math.max(0, (Date.parse(asked.expires_at) - now.value) / 1000)))}</span>
      </header>
      <Findings findings={asked.findings} />
      <Code code={asked.code} language={asked.language} />
      <footer class="row end">
        <Button icon="cross" label={t("Decline")} kind="danger" onClick={() => answer("decline")} />
        <Button icon="check" label={t("Run it")} kind="primary" onClick={() => answer("approve")} />
      </footer>
    </article>
  );
}

export function Confirmations() {
  return (
    <section class="page narrow">
      <header class="page-head">
        <h1>
          {t("Confirmations")} <span class="count">{confirmations.value.length}</span>
        </h1>
      </header>
      {confirmations.value.length === 0 ? (
        <Empty icon="shield" title={t("Nothing waits for you")}>
          <p>{t("If a policy asks for a confirmation, the code waits here until somebody decides.")}</p>
        </Empty>
      ) : (
        confirmations.value.map((each) => <ConfirmationCard key={each.confirmation_id} asked={each} />)
      )}
    </section>
  );
}
