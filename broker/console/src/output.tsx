// The output of an execution: text in virtual lines, pictures, HTML in frames of their own.
import Anser from "anser";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { save } from "./api";
import type { Block, Bundle, Execution, Tests } from "./execution";
import { isDark, number, t } from "./preferences";
import type { Line, Terminal } from "./terminal";
import { Button, Icon } from "./ui";

const LINE_PX = 19;
const MAX_INLINE = 30;
const MAX_SHOWN_CHARS = 4000;
const OVERSCAN = 12;
const MAX_FRAME_PX = 1200;

/** A colour of the 256 of terminals, from the 16th on. */
function paletteColour(index: number): string {
  if (index >= 232) return `rgb(${Array(3).fill((index - 232) * 10 + 8).join()})`;
  const part = (value: number) => (value ? value * 40 + 55 : 0);
  const cube = index - 16;
  return `rgb(${part(Math.floor(cube / 36))},${part(Math.floor(cube / 6) % 6)},${part(cube % 6)})`;
}

function Row({ line }: { line: Line }) {
  const isCut = line.text.length > MAX_SHOWN_CHARS;
  const shown = isCut ? line.text.slice(0, MAX_SHOWN_CHARS) : line.text;
  const cut = isCut && <span class="cut"> … {t("{0} more characters", number(line.text.length - MAX_SHOWN_CHARS))}</span>;
  if (!line.start && !shown.includes("\x1b"))
    return (
      <div class={`line ${line.kind}`}>
        {shown || "\u200b"}
        {cut}
      </div>
    );
  const parts = Anser.ansiToJson(line.start + shown, { use_classes: true, remove_empty: true });
  return (
    <div class={`line ${line.kind}`}>
      {parts.map((part, index) => {
        const names = [part.fg && !part.fg_truecolor && `${part.fg}-fg`, part.bg && !part.bg_truecolor && `${part.bg}-bg`, ...part.decorations].filter(Boolean);
        const style: Record<string, string> = {};
        if (part.fg?.startsWith("ansi-palette-")) style.color = paletteColour(Number(part.fg.slice(13)));
        if (part.bg?.startsWith("ansi-palette-")) style.backgroundColor = paletteColour(Number(part.bg.slice(13)));
        if (part.fg_truecolor) style.color = `rgb(${part.fg_truecolor})`;
        if (part.bg_truecolor) style.backgroundColor = `rgb(${part.bg_truecolor})`;
        return (
          <span key={index} class={names.join(" ")} style={style}>
            {part.content}
          </span>
        );
      })}
      {cut}
    </div>
  );
}

/** Lines of which only the visible ones are in the page. With `follows` the view stays at the end while lines come. */
export function Lines({ terminal, label, follows = false }: { terminal: Pick<Terminal, "lines">; label: string; version?: number; follows?: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const atEnd = useRef(follows);
  const lastTop = useRef(0);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(420);
  const all = terminal.lines;
  const lines = all.length > 1 && !all[all.length - 1]!.text ? all.slice(0, -1) : all;
  const isShort = lines.length <= MAX_INLINE;
  useLayoutEffect(() => {
    const element = box.current;
    if (element && !isShort && atEnd.current) element.scrollTop = element.scrollHeight;
  });
  useEffect(() => {
    const element = box.current;
    if (!element || isShort) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, [isShort]);
  if (isShort) {
    return (
      <div class="text" tabIndex={0} role="region" aria-label={label}>
        {lines.map((line, index) => (
          <Row key={index} line={line} />
        ))}
      </div>
    );
  }
  const first = Math.max(0, Math.floor(top / LINE_PX) - OVERSCAN);
  const last = Math.min(lines.length, Math.ceil((top + height) / LINE_PX) + OVERSCAN);
  const scrolled = (event: { currentTarget: HTMLElement }) => {
    const element = event.currentTarget; // may come when the box is gone
    // Lines that came meanwhile have moved the end; only scrolling up leaves it.
    if (element.scrollTop < lastTop.current) atEnd.current = false;
    if (follows && element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX) atEnd.current = true;
    lastTop.current = element.scrollTop;
    setTop(element.scrollTop);
  };
  return (
    <div class="text long" ref={box} onScroll={scrolled} tabIndex={0} role="region" aria-label={label}>
      <div class="lines" style={{ height: `${lines.length * LINE_PX}px` }}>
        <div style={{ transform: `translateY(${first * LINE_PX}px)` }}>
          {lines.slice(first, last).map((line, index) => (
            <Row key={first + index} line={line} />
          ))}
        </div>
      </div>
    </div>
  );
}

function Text({ block, name, version }: { block: Block & { kind: "text" }; name: string; version: number }) {
  const { terminal, hasError } = block;
  const count = terminal.lines.length - (terminal.lines.at(-1)?.text ? 0 : 1);
  return (
    <div class={hasError ? "output-text has-error" : "output-text"}>
      <Lines terminal={terminal} label={t("Output")} version={version} follows />
      {count > MAX_INLINE && (
        <div class="output-foot">
          <span>{t("{0} lines", number(count))}</span>
          <Button icon="copy" label={t("Copy")} kind="ghost" onClick={() => navigator.clipboard.writeText(terminal.plain())} />
          <Button icon="download" label={t("Download")} kind="ghost" onClick={() => save(new Blob([terminal.plain()], { type: "text/plain" }), `${name}.txt`)} />
        </div>
      )}
    </div>
  );
}

/** HTML of a cell, in a frame with an origin of its own. Its scripts run only if a person wants that. */
export function Html({ html, isLight }: { html: string; isLight?: boolean }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState(60);
  const [runs, setRuns] = useState(false);
  const dark = isDark.value && !isLight;
  useEffect(() => {
    const receive = (event: MessageEvent) => {
      // Whoever sends it, only the size is used, and only of this very frame.
      if (event.source !== frame.current?.contentWindow || typeof event.data !== "object" || !event.data) return;
      if (event.data.ready === true) frame.current!.contentWindow!.postMessage({ html, dark }, "*");
      const asked = Number(event.data.height);
      if (Number.isFinite(asked)) setHeight(Math.min(Math.max(asked, 20), MAX_FRAME_PX));
    };
    addEventListener("message", receive);
    return () => removeEventListener("message", receive);
  }, [html, runs, dark]);
  const hasScripts = /<script|\son\w+\s*=/i.test(html);
  return (
    <div class="output-html">
      <iframe key={`${runs}${dark}`} ref={frame} sandbox="allow-scripts" src={runs ? "/console/frame?scripts" : "/console/frame"} title={t("HTML output")} style={{ height: `${height}px` }} />
      {hasScripts && !runs && (
        <div class="output-foot">
          <span>{t("Scripts of this output are off.")}</span>
          <Button icon="play" label={t("Run them")} kind="ghost" title={t("They run in a frame without access to this page or the network.")} onClick={() => setRuns(true)} />
        </div>
      )}
    </div>
  );
}

const asText = (value: unknown): string =>
  Array.isArray(value) ? value.map(String).join("") : typeof value === "string" ? value : JSON.stringify(value, null, 2);

export function BundleView({ data, width, height, isResult }: { data: Bundle; width: number | null; height: number | null; isResult: boolean }) {
  for (const mime of ["image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"]) {
    if (typeof data[mime] === "string") {
      const alt = typeof data["text/plain"] === "string" ? data["text/plain"].slice(0, 200) : t("Picture");
      return <img class="output-image" src={`data:${mime};base64,${data[mime]}`} alt={alt} width={width ?? undefined} height={height ?? undefined} />;
    }
  }
  if (data["image/svg+xml"]) {
    return <img class="output-image" src={`data:image/svg+xml;charset=utf-8,${encodeURIComponent(asText(data["image/svg+xml"]))}`} alt={t("Picture")} />;
  }
  if (data["text/html"]) return <Html html={asText(data["text/html"])} />;
  const mime = ["application/json", "text/latex", "text/markdown", "text/plain"].find((each) => data[each] !== undefined) ?? Object.keys(data)[0];
  if (!mime) return null;
  const lines = asText(data[mime])
    .split("\n")
    .map((text) => ({ text, kind: isResult ? "value" : "stdout", start: "" }));
  return (
    <div class="output-text">
      <Lines terminal={{ lines }} label={t("Output")} />
    </div>
  );
}

/** The tests of a project, as they end. */
function TestsView({ tests, counts }: { tests: Tests; counts: Record<string, number> }) {
  const failed = tests.filter((each) => each.outcome === "failed" || each.outcome === "error");
  return (
    <div class="tests">
      <p class="row">
        {Object.entries(counts)
          .filter(([name, count]) => count > 0 || name === "passed")
          .map(([name, count]) => (
            <span key={name} class={`outcome ${name}`}>
              <b>{number(count)}</b> {t(name)}
            </span>
          ))}
      </p>
      {failed.slice(0, 20).map((each, index) => (
        <p key={index} class="mono failed-test">
          {String(each.test)}
        </p>
      ))}
      {failed.length > 20 && <p class="faint small">{t("and {0} more", failed.length - 20)}</p>}
    </div>
  );
}

export function Output({ execution, prompt }: { execution: Execution; prompt?: (text: string) => preact.ComponentChildren }) {
  const version = execution.version.value; // what has the same objects as before would not be shown again
  return (
    <div class="output">
      {execution.blocks.map((block, index) =>
        block.kind === "text" ? (
          <Text key={index} block={block} name={execution.id} version={version} />
        ) : block.kind === "bundle" ? (
          <BundleView key={index} data={block.data} width={block.width} height={block.height} isResult={block.isResult} />
        ) : block.kind === "tests" ? (
          <TestsView key={index} tests={block.tests} counts={block.counts} />
        ) : block.kind === "input" ? (
          <div key={index}>{prompt?.(block.prompt)}</div>
        ) : (
          <p key={index} class="note asked">
            <Icon name="chat" size={14} />
            {t("Asked a person: {0}", block.prompt || "input()")}
          </p>
        ),
      )}
    </div>
  );
}
