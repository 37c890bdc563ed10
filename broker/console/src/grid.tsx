// A table of which only the visible cells are in the page.
import { useEffect, useRef, useState } from "preact/hooks";

const ROW_PX = 28;
const COLUMN_PX = 150;
const MAX_SCROLL_PX = 8_000_000; // browsers limit the height of an element

export type Column = { name: string; type?: string; isNumber?: boolean };

type Props = {
  label: string;
  rows: number;
  columns: Column[];
  /** The text of a cell; null while it is loaded. */
  cell: (row: number, column: number) => string | null;
  /** Called with the rows that are shown. */
  onRows?: (first: number, last: number) => void;
  /** Gets a function that shows a row. */
  goTo?: { current: (row: number) => void };
};

export function Grid({ label, rows, columns, cell, onRows, goTo }: Props) {
  const [scroll, setScroll] = useState({ top: 0, left: 0, height: 480, width: 900 });
  const box = useRef<HTMLDivElement>(null);
  const height = Math.min(rows * ROW_PX, MAX_SCROLL_PX);
  const visible = Math.ceil(scroll.height / ROW_PX);
  const scale = rows * ROW_PX > MAX_SCROLL_PX ? (rows - visible + 1) / Math.max(1, height - scroll.height) : 1 / ROW_PX;
  const first = Math.max(0, Math.min(rows - visible + 1, Math.floor(scroll.top * scale)));
  const last = Math.min(rows, first + visible + 1);
  const firstColumn = Math.max(0, Math.floor(scroll.left / COLUMN_PX) - 1);
  const lastColumn = Math.min(columns.length, Math.ceil((scroll.left + scroll.width) / COLUMN_PX) + 1);

  useEffect(() => onRows?.(first, last), [first, last]);
  useEffect(() => {
    const element = box.current!;
    const measure = () => setScroll({ top: element.scrollTop, left: element.scrollLeft, height: element.clientHeight - ROW_PX, width: element.clientWidth });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const show = (row: number) => {
    if (box.current) box.current.scrollTop = Math.max(0, Math.min(rows - 1, row)) / scale;
  };
  if (goTo) goTo.current = show;
  const pressed = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: visible - 1, PageUp: 1 - visible };
    if (event.key === "Home" || event.key === "End") show(event.key === "Home" ? 0 : rows);
    else if (event.key in steps) show(first + steps[event.key]!);
    else return;
    event.preventDefault();
  };
  return (
    <div class="grid" ref={box} tabIndex={0} role="grid" aria-label={label} aria-rowcount={rows + 1} aria-colcount={columns.length + 1} onKeyDown={pressed} onScroll={(event) => setScroll({ ...scroll, top: event.currentTarget.scrollTop, left: event.currentTarget.scrollLeft })}>
      <div class="grid-size" role="presentation" style={{ height: `${height + ROW_PX}px`, width: `${80 + columns.length * COLUMN_PX}px` }}>
        <div class="grid-view" role="rowgroup">
          <div class="grid-row head" role="row" aria-rowindex={1}>
            <div class="grid-cell number" role="columnheader" aria-colindex={1}>
              #
            </div>
            {columns.slice(firstColumn, lastColumn).map((each, index) => (
              <div key={firstColumn + index} class="grid-cell" role="columnheader" aria-colindex={firstColumn + index + 2} style={{ left: `${80 + (firstColumn + index) * COLUMN_PX}px` }} title={each.type ? `${each.name}: ${each.type}` : each.name}>
                {each.name}
                {each.type && <small>{each.type}</small>}
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
                  <div key={firstColumn + index} class={each.isNumber ? "grid-cell num" : "grid-cell"} role="gridcell" aria-colindex={firstColumn + index + 2} style={{ left: `${80 + (firstColumn + index) * COLUMN_PX}px` }} title={value && value.length > 16 ? value.slice(0, 1000) : undefined}>
                    {value === null ? <i class="loading" /> : value.slice(0, 200)}
                  </div>
                );
              })}
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
