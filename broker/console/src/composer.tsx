// The editor for one's own cells: in which language, in which kernel, and what a policy says to the code.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Finding, json, sessionPath } from "./api";
import { Code, editorModule, loadEditor } from "./code";
import type { Editor } from "./editor";
import { type Session, sessions } from "./live";
import { t } from "./preferences";
import { go, sessionLink } from "./route";
import { Button, Dialog, Field, Findings, report } from "./ui";

type Refused = { code: string; language: string; message: string; findings: Finding[]; token: string | null };
const drafts = new Map<string, string>();

/** Which kernel of the sandbox a cell goes to: that of the session, or of one of its contexts. */
function Kernels({ id }: { id: string }) {
  const [isNew, setNew] = useState(false);
  const session = sessions.value.get(id);
  const main = session?.context_of ?? id;
  const contexts = [...sessions.value.values()].filter((each) => each.context_of === main);
  if (!session || (session.template === "auto" && !contexts.length)) return null;
  const choose = (name: string) => {
    const draft = drafts.get(id);
    if (draft && !drafts.get(name)) {
      drafts.set(name, draft);
      drafts.delete(id);
    }
    go(sessionLink(name));
  };
  return (
    <>
      <select
        aria-label={t("Kernel")}
        value={id}
        onChange={(event) => {
          const chosen = event.currentTarget.value;
          if (chosen) return choose(chosen);
          event.currentTarget.value = id;
          setNew(true);
        }}
      >
        <option value={main}>{t("main kernel")}</option>
        {contexts.map((each) => (
          <option key={each.session_id} value={each.session_id}>
            {each.session_id}
          </option>
        ))}
        <option value="">{t("New kernel…")}</option>
      </select>
      {isNew && <NewKernel of={main} onClose={() => setNew(false)} onOpened={choose} />}
    </>
  );
}

function NewKernel({ of, onClose, onOpened }: { of: string; onClose: () => void; onOpened: (id: string) => void }) {
  const [name, setName] = useState("");
  const [language, setLanguage] = useState("python");
  const open = async () => {
    const made = await json<Session>("POST", `${sessionPath(of)}/contexts`, { ...(name ? { context_id: name } : {}), language });
    onClose();
    onOpened(made.session_id);
  };
  return (
    <Dialog title={t("New kernel")} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          event.currentTarget.querySelector<HTMLButtonElement>(".primary")?.click();
        }}
      >
        <p class="faint small form-hint">{t("One more kernel in the same sandbox: it shares the files, and has variables of its own.")}</p>
        <Field label={t("Name")}>
          <input value={name} onInput={(event) => setName(event.currentTarget.value)} placeholder={t("generated if empty")} pattern="[A-Za-z0-9_\-][A-Za-z0-9_.\-]*" maxLength={64} autofocus />
        </Field>
        <Field label={t("Language")}>
          <Languages value={language} onChange={setLanguage} />
        </Field>
        <div class="row end">
          <Button label={t("Cancel")} onClick={onClose} />
          <Button label={t("Open")} kind="primary" onClick={open} />
        </div>
      </form>
    </Dialog>
  );
}

function Languages({ value, onChange, label }: { value: string; onChange: (language: string) => void; label?: string }) {
  return (
    <select aria-label={label} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
      <option value="python">Python</option>
      <option value="shell">Shell</option>
      <option value="javascript">JavaScript</option>
    </select>
  );
}

export function Composer({ id }: { id: string }) {
  const parent = useRef<HTMLDivElement>(null);
  const editor = useRef<Editor | null>(null);
  const [language, setLanguage] = useState(sessions.value.get(id)?.language ?? "python");
  const [refused, setRefused] = useState<Refused | null>(null);
  const chosen = useRef(language);
  chosen.current = language;
  const submit = async (code: string, lang: string, confirm?: string) => {
    try {
      await json("POST", `${sessionPath(id)}/executions`, { code, language: lang, allow_stdin: true, ...(confirm ? { confirm } : {}) });
      return true;
    } catch (error) {
      if (error instanceof ApiError && (error.code === "confirmation_required" || error.code === "policy_refused")) {
        setRefused({ code, language: lang, message: error.message, findings: error.findings, token: error.confirmation });
        return false;
      }
      throw error;
    }
  };
  const run = async () => {
    const code = editor.current?.code() ?? "";
    if (!code.trim()) return;
    if (await submit(code, chosen.current)) editor.current?.set("");
  };
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    let isGone = false;
    loadEditor().then(() => {
      if (isGone || !parent.current) return;
      editor.current = editorModule.value!.makeEditor(parent.current, {
        code: drafts.get(id) ?? "",
        label: t("Code to run"),
        hint: t("Code to run in this session"),
        run: () => void latest.current().catch(report),
        changed: (code) => drafts.set(id, code),
        complete: async (code, cursor) => {
          if (chosen.current !== "python") return null;
          const points = [...code.slice(0, cursor)].length;
          try {
            const found = await json<{ matches: string[]; cursor_start: number }>("POST", `${sessionPath(id)}/complete`, { code, cursor_pos: points });
            return { matches: found.matches, start: [...code].slice(0, found.cursor_start).join("").length };
          } catch {
            return null; // the session is busy
          }
        },
      });
      editor.current.language(chosen.current);
    }, report);
    return () => {
      isGone = true;
      editor.current?.destroy();
      editor.current = null;
    };
  }, [id]);
  return (
    <div class="composer card">
      <div class="editor" ref={parent} />
      <footer>
        <Languages
          label={t("Language")}
          value={language}
          onChange={(chosen) => {
            setLanguage(chosen);
            editor.current?.language(chosen);
          }}
        />
        <Kernels id={id} />
        <span class="grow" />
        <span class="faint small wide-only">
          <kbd>Shift</kbd> <kbd>Enter</kbd>
        </span>
        <Button icon="play" label={t("Run")} kind="primary" onClick={run} />
      </footer>
      {refused && (
        <Dialog title={refused.token ? t("This code is risky") : t("This code is refused")} onClose={() => setRefused(null)}>
          <Findings findings={refused.findings} />
          <Code code={refused.code} language={refused.language} />
          <div class="row end">
            <Button label={t("Cancel")} onClick={() => setRefused(null)} />
            {refused.token && (
              <Button
                label={t("Run it anyway")}
                kind="danger"
                onClick={async () => {
                  const { code, language: lang, token } = refused;
                  setRefused(null);
                  if (await submit(code, lang, token!)) editor.current?.set("");
                }}
              />
            )}
          </div>
        </Dialog>
      )}
    </div>
  );
}
