// A table of any size: its rows come as Arrow, a page at a time, and only the visible ones are in the page.
import { type Table, tableFromIPC } from "apache-arrow";
import { useEffect, useRef, useState } from "preact/hooks";
import { request, save, sessionPath } from "./api";
import { type Column, Grid } from "./grid";
import { number, t } from "./preferences";
import { Button, Dialog, Empty, report } from "./ui";

const PAGE_ROWS = 200;
const MAX_PAGES = 60;

const columnOf = (name: string, type: string): Required<Column> => ({
  name: /^__index_level_\d+__$/.test(name) ? t("index") : name,
  type,
  isNumber: /Int|Float|Decimal/.test(type),
});

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
  const [schema, setSchema] = useState<Required<Column>[] | null>(null);
  const [problem, setProblem] = useState("");
  const goTo = useRef((_row: number) => {});
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
      setSchema((known) => known ?? table.schema.fields.map((field) => columnOf(field.name, String(field.type))));
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

  const columns = schema ?? [];
  const needs = (first: number, last: number) => {
    const needed = rows ? [...new Set([Math.floor(first / PAGE_ROWS), Math.floor(Math.max(first, last - 1) / PAGE_ROWS)])] : [];
    const absent = needed.filter((page) => (pages.current.get(page) ?? "failed") === "failed");
    if (!absent.length) return;
    clearTimeout(timer.current); // a fast scroll asks only for where it ends
    timer.current = window.setTimeout(() => absent.forEach((page) => void load(page)), 60);
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
          <input type="number" min={0} max={rows - 1} onChange={(event) => goTo.current(Number(event.currentTarget.value))} />
        </label>
        <Button icon="download" label="CSV" onClick={() => whole("csv")} />
        <Button icon="download" label="Parquet" onClick={() => whole("parquet")} />
      </div>
      {problem ? (
        <Empty icon="warn" title={problem} />
      ) : (
        <Grid label={name} rows={rows} columns={columns} cell={cell} onRows={needs} goTo={goTo} />
      )}
    </Dialog>
  );
}
