// Code with its colours, as soon as these are loaded.
import { signal } from "@preact/signals";
import { useMemo, useState } from "preact/hooks";
import { lazily } from "./lazy";
import { t } from "./preferences";
import { Visible } from "./ui";

type EditorModule = typeof import("./editor");
export const editorModule = signal<EditorModule | null>(null);
/** Load the editor. Until it is there, code has no colours. */
export const loadEditor = lazily(async () => {
  editorModule.value = await import("./editor");
});

const MAX_LINES = 40;
const MAX_COLOURED = 50_000;

export function Code({ code, language, isWhole }: { code: string; language: string; isWhole?: boolean }) {
  const [isOpen, setOpen] = useState(false);
  const all = code.split("\n");
  const isLong = all.length > MAX_LINES && !isOpen && !isWhole;
  const shown = isLong ? all.slice(0, MAX_LINES).join("\n") : code;
  const found = editorModule.value;
  loadEditor().catch(() => {}); // it stays readable
  const pieces = useMemo(() => (found && shown.length < MAX_COLOURED ? found.highlighted(shown, language) : null), [found, shown, language]);
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={t("Code")}>
        <code>
          {(pieces ?? [[shown, ""] as const]).map(([text, classes], index) => (
            <span key={index} class={classes}>
              <Visible text={text} />
            </span>
          ))}
        </code>
      </pre>
      {isLong && (
        <button type="button" class="more" onClick={() => setOpen(true)}>
          {t("Show {0} more lines", all.length - MAX_LINES)}
        </button>
      )}
    </div>
  );
}
