// A table of any size: its rows come as Arrow, a page at a time, and only the visible ones are in the page.
import { type Table, tableFromIPC } from "apache-arrow";
import { useEffect, useRef, useState } from "preact/hooks";
import { request, save, sessionPath } from "./api";
import { number, t } from "./preferences";
import { Button, Dialog, Empty, report } from "./ui";

const ROW_PX = 28;
const PAGE_ROWS = 200;
const MAX_PAGES = 60;
const COLUMN_PX = 150;
const MAX_SCROLL_PX = 8_000_000; // browsers limit the height of an element

type Page = Table | "loading" | "failed";

function text(value: unknown, type: string): string {
  if (value === null || value === undefined) return "";
  if (/^(Timestamp|Date)/.test(type) && (typeof value === "number" || typeof value === "bigint")) {
    const date = new Date(Number(value));
    if (!Number.isNaN(date.getTime())) value = date;
  }
  if (value instanceof Date) return value.toISOString().replace("T", " ").replace(/(T00:00:00| 00:00:00)?\.000Z$|Z$/, "");
  if (value instanceof Uint8Array) return [...value.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(10)));
  if (typeof value === "object") {
    try {
      return JSON.stringify(value, (_, each: unknown) => (typeof each === "bigint" ? each.toString() : each)) ?? String(value);
    } catch {
      return String(value);
    }
  }
  return String(value);
}

export function TableViewer({ id, name, rows, onClose }: { id: string; name: string; rows: number; onClose: () => void }) {
  const pages = useRef(new Map<number, Page>());
  const [, redraw] = useState(0);
  const [schema, setSchema] = useState<{ name: string; type: string; isIndex: boolean }[] | null>(null);
  const [problem, setProblem] = useState("");
  const [scroll, setScroll] = useState({ top: 0, left: 0, height: 480, width: 900 });
  const box = useRef<HTMLDivElement>(null);
  const timer = useRef(0);
  const isGone = useRef(false);

  const load = async (page: number) => {
    pages.current.set(page, "loading");
    try {
      const answer = await request("GET", `${sessionPath(id)}/variables/${encodeURIComponent(name)}?format=arrow&lossy=true&offset=${page * PAGE_ROWS}&limit=${PAGE_ROWS}`);
      const table = tableFromIPC(new Uint8Array(await answer.arrayBuffer()));
      if (isGone.current) return;
      pages.current.set(page, table);
      for (const old of pages.current.keys()) {
        if (pages.current.size <= MAX_PAGES) break;
        pages.current.delete(old);
      }
      setSchema((known) => known ?? table.schema.fields.map((field) => ({ name: field.name, type: String(field.type), isIndex: /^__index_level_\d+__$/.test(field.name) })));
    } catch (error) {
      pages.current.set(page, "failed");
      if (page === 0) setProblem((error as Error).message);
      else report(error);
    }
    redraw((count) => count + 1);
  };
  useEffect(() => {
    void load(0);
    return () => {
      isGone.current = true;
    };
  }, []);

  const height = Math.min(rows * ROW_PX, MAX_SCROLL_PX);
  const visible = Math.ceil(scroll.height / ROW_PX);
  const scale = rows * ROW_PX > MAX_SCROLL_PX ? (rows - visible + 1) / Math.max(1, height - scroll.height) : 1 / ROW_PX;
  const first = Math.max(0, Math.min(rows - visible + 1, Math.floor(scroll.top * scale)));
  const last = Math.min(rows, first + visible + 1);
  const columns = schema ?? [];
  const firstColumn = Math.max(0, Math.floor(scroll.left / COLUMN_PX) - 1);
  const lastColumn = Math.min(columns.length, Math.ceil((scroll.left + scroll.width) / COLUMN_PX) + 1);

  useEffect(() => {
    const needed = rows ? [...new Set([Math.floor(first / PAGE_ROWS), Math.floor(Math.max(first, last - 1) / PAGE_ROWS)])] : [];
    const absent = needed.filter((page) => !pages.current.has(page));
    if (!absent.length) return;
    clearTimeout(timer.current); // a fast scroll asks only for where it ends
    timer.current = window.setTimeout(() => absent.forEach((page) => void load(page)), 60);
  }, [first, last]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = () => setScroll({ top: element.scrollTop, left: element.scrollLeft, height: element.clientHeight - ROW_PX, width: element.clientWidth });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [schema]);

  const goTo = (row: number) => {
    const target = Math.max(0, Math.min(rows - 1, row));
    if (box.current) box.current.scrollTop = target / scale;
  };
  const pressed = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: visible - 1, PageUp: 1 - visible };
    if (event.key === "Home" || event.key === "End") goTo(event.key === "Home" ? 0 : rows);
    else if (event.key in steps) goTo(first + steps[event.key]!);
    else return;
    event.preventDefault();
  };
  const cell = (row: number, column: number): string | null => {
    const page = pages.current.get(Math.floor(row / PAGE_ROWS));
    if (!page || page === "loading" || page === "failed") return null;
    return text(page.getChildAt(column)?.get(row % PAGE_ROWS), columns[column]!.type);
  };
  const whole = async (format: string) => save(await (await request("GET", `${sessionPath(id)}/variables/${encodeURIComponent(name)}?format=${format}&lossy=true`)).blob(), `${name}.${format}`);

  return (
    <Dialog title={name} onClose={onClose} wide>
      <div class="row table-head">
        <span class="faint">{t("{0} rows, {1} columns", number(rows), schema ? number(columns.length) : "…")}</span>
        <span class="grow" />
        <label class="go-to">
          {t("Row")}
          <input type="number" min={0} max={rows - 1} onChange={(event) => goTo(Number(event.currentTarget.value))} />
        </label>
        <Button icon="download" label="CSV" onClick={() => whole("csv")} />
        <Button icon="download" label="Parquet" onClick={() => whole("parquet")} />
      </div>
      {problem ? (
        <Empty icon="warn" title={problem} />
      ) : (
        <div class="grid" ref={box} tabIndex={0} role="grid" aria-label={name} aria-rowcount={rows + 1} aria-colcount={columns.length + 1} onKeyDown={pressed} onScroll={(event) => setScroll({ ...scroll, top: event.currentTarget.scrollTop, left: event.currentTarget.scrollLeft })}>
          <div class="grid-size" role="presentation" style={{ height: `${height + ROW_PX}px`, width: `${80 + columns.length * COLUMN_PX}px` }}>
            <div class="grid-view" role="rowgroup">
              <div class="grid-row head" role="row" aria-rowindex={1}>
                <div class="grid-cell number" role="columnheader" aria-colindex={1}>
                  #
                </div>
                {columns.slice(firstColumn, lastColumn).map((each, index) => (
                  <div key={firstColumn + index} class="grid-cell" role="columnheader" aria-colindex={firstColumn + index + 2} style={{ left: `${80 + (firstColumn + index) * COLUMN_PX}px` }} title={`${each.name}: ${each.type}`}>
                    {each.isIndex ? t("index") : each.name}
                    <small>{each.type}</small>
                  </div>
                ))}
              </div>
              {Array.from({ length: Math.max(0, last - first) }, (_, offset) => first + offset).map((row) => (
                <div key={row} class="grid-row" role="row" aria-rowindex={row + 2}>
                  <div class="grid-cell number" role="rowheader" aria-colindex={1}>
                    {row}
                  </div>
                  {columns.slice(firstColumn, lastColumn).map((each, index) => {
                    const value = cell(row, firstColumn + index);
                    return (
                      <div key={firstColumn + index} class={/Int|Float|Decimal/.test(each.type) ? "grid-cell num" : "grid-cell"} role="gridcell" aria-colindex={firstColumn + index + 2} style={{ left: `${80 + (firstColumn + index) * COLUMN_PX}px` }} title={value && value.length > 16 ? value.slice(0, 1000) : undefined}>
                        {value === null ? <i class="loading" /> : value.slice(0, 200)}
                      </div>
                    );
                  })}
                </div>
              ))}
            </div>
          </div>
        </div>
      )}
    </Dialog>
  );
}
