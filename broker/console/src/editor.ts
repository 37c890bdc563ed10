// The editor for cells, and the colours of code that is only shown. Loaded when a session is opened.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionContext } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { javascriptLanguage } from "@codemirror/lang-javascript";
import { pythonLanguage } from "@codemirror/lang-python";
import { bracketMatching, HighlightStyle, indentOnInput, indentUnit, type Language, LanguageSupport, StreamLanguage, syntaxHighlighting } from "@codemirror/language";
import { shell as shellMode } from "@codemirror/legacy-modes/mode/shell";
import { Compartment, EditorState, Prec } from "@codemirror/state";
import { drawSelection, EditorView, keymap, placeholder } from "@codemirror/view";
import { highlightCode, tagHighlighter, tags } from "@lezer/highlight";

const shellLanguage = StreamLanguage.define(shellMode);
const languages: Record<string, Language> = { python: pythonLanguage, javascript: javascriptLanguage, shell: shellLanguage };
const nonce = document.querySelector<HTMLMetaElement>("meta[name=csp-nonce]")?.content ?? "";

const rules: [Parameters<typeof tagHighlighter>[0][number]["tag"], string][] = [
  [tags.keyword, "tok-keyword"],
  [tags.string, "tok-string"],
  [tags.special(tags.string), "tok-string"],
  [tags.number, "tok-number"],
  [tags.bool, "tok-number"],
  [tags.null, "tok-number"],
  [tags.comment, "tok-comment"],
  [tags.function(tags.variableName), "tok-function"],
  [tags.function(tags.definition(tags.variableName)), "tok-function"],
  [tags.className, "tok-class"],
  [tags.standard(tags.variableName), "tok-builtin"],
  [tags.operator, "tok-operator"],
  [tags.meta, "tok-meta"],
];
const highlighter = tagHighlighter(rules.map(([tag, name]) => ({ tag, class: name })));
const style = HighlightStyle.define(rules.map(([tag, name]) => ({ tag: tag as never, class: name })));

/** The code in pieces with the classes of their colours. */
export function highlighted(code: string, language: string): [string, string][] {
  const found: [string, string][] = [];
  const parser = (languages[language] ?? pythonLanguage).parser;
  highlightCode(
    code,
    parser.parse(code),
    highlighter,
    (text, classes) => found.push([text, classes]),
    () => found.push(["\n", ""]),
  );
  return found;
}

export type Completions = { matches: string[]; start: number };
export type Editor = { code: () => string; set: (code: string) => void; focus: () => void; language: (name: string) => void; destroy: () => void };

export function makeEditor(
  parent: HTMLElement,
  options: { code: string; label: string; hint: string; run: () => void; changed: (code: string) => void; complete: (code: string, cursor: number) => Promise<Completions | null> },
): Editor {
  const support = new Compartment();
  const source = async (context: CompletionContext) => {
    if (!context.explicit && !context.matchBefore(/[\w.]$/)) return null;
    const found = await options.complete(context.state.doc.toString(), context.pos);
    if (!found || !found.matches.length || context.aborted) return null;
    return {
      from: found.start,
      options: found.matches.map((each) => ({ label: each, type: each.endsWith("=") ? "property" : undefined })),
      validFor: /^[\w.]*$/,
    };
  };
  const view = new EditorView({
    parent,
    state: EditorState.create({
      doc: options.code,
      extensions: [
        EditorView.cspNonce.of(nonce),
        Prec.highest(
          keymap.of([
            { key: "Shift-Enter", run: () => (options.run(), true) },
            { key: "Mod-Enter", run: () => (options.run(), true) },
          ]),
        ),
        history(),
        drawSelection(),
        indentOnInput(),
        indentUnit.of("    "),
        bracketMatching(),
        closeBrackets(),
        support.of(new LanguageSupport(pythonLanguage)),
        syntaxHighlighting(style),
        autocompletion({ override: [source], icons: false, activateOnTypingDelay: 200 }),
        keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...historyKeymap, ...completionKeymap, { key: "Escape", run: (view) => (view.contentDOM.blur(), true) }, indentWithTab]),
        placeholder(options.hint),
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": options.label }),
        EditorView.updateListener.of((update) => update.docChanged && options.changed(update.state.doc.toString())),
      ],
    }),
  });
  return {
    code: () => view.state.doc.toString(),
    set: (code) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: code } }),
    focus: () => view.focus(),
    language: (name) => view.dispatch({ effects: support.reconfigure(new LanguageSupport(languages[name] ?? pythonLanguage)) }),
    destroy: () => view.destroy(),
  };
}
