// Code with its colours, as soon as these are loaded.
import { signal } from "@preact/signals";
import { useMemo, useState } from "preact/hooks";
import { t } from "./preferences";

type EditorModule = typeof import("./editor");
export const editorModule = signal<EditorModule | null>(null);
let loading: Promise<void> | null = null;
export function loadEditor(): Promise<void> {
  loading ??= import("./editor").then((found) => void (editorModule.value = found));
  return loading;
}

const MAX_LINES = 40;
const MAX_COLOURED = 50_000;

export function Code({ code, language }: { code: string; language: string }) {
  const [isOpen, setOpen] = useState(false);
  const all = code.split("\n");
  const isLong = all.length > MAX_LINES && !isOpen;
  const shown = isLong ? all.slice(0, MAX_LINES).join("\n") : code;
  const found = editorModule.value;
  void loadEditor();
  const pieces = useMemo(() => (found && shown.length < MAX_COLOURED ? found.highlighted(shown, language) : null), [found, shown, language]);
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={t("Code")}>
        <code>{pieces ? pieces.map(([text, classes], index) => (classes ? <span key={index} class={classes}>{text}</span> : text)) : shown}</code>
      </pre>
      {isLong && (
        <button type="button" class="more" onClick={() => setOpen(true)}>
          {t("Show {0} more lines", all.length - MAX_LINES)}
        </button>
      )}
    </div>
  );
}
