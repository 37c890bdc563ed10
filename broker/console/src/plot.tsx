// A plot over time.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { isDark, language } from "./preferences";

const clock = (seconds: number) => new Date(seconds * 1000).toLocaleTimeString(language.value === "zh" ? "zh-CN" : "en-GB", { hour: "2-digit", minute: "2-digit" });

export type Series = { name: string; values: (number | null)[] };
const COLOURS = ["--plot-1", "--plot-2", "--plot-3"];

export function Plot({ title, time, series, format }: { title: string; time: number[]; series: Series[]; format: (value: number) => string }) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = isDark.value;
  const data = [time, ...series.map((each) => each.values)] as uPlot.AlignedData;
  useEffect(() => {
    const element = box.current!;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--border"), width: 1 }, ticks: { show: false }, font: "11px Inter Variable, system-ui" };
    const made = new uPlot(
      {
        width: element.clientWidth,
        height: 150,
        cursor: { y: false, points: { size: 6 } },
        legend: { live: false, show: false },
        scales: {
          x: { range: (_, __, max) => [max - 3600, max] }, y: { range: (_, __, max) => [0, Math.max(1e-3, max) * 1.1] } },
        series: [{}, ...series.map((each, index) => ({ label: each.name, stroke: colour(COLOURS[index]!), width: 1.5, fill: index === 0 ? `${colour(COLOURS[0]!)}1c` : undefined, points: { show: false } }))],
        axes: [{ ...axis, space: 60, values: (_, found) => found.map((each) => clock(each)) }, { ...axis, size: 62, values: (_, found) => found.map(format) }],
      },
      data,
      element,
    );
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: 150 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, [dark, language.value]);
  useEffect(() => plot.current?.setData(data), [time]);
  const last = (values: (number | null)[]) => values.findLast((each) => each !== null) ?? null;
  return (
    <figure class="card plot" role="img" aria-label={`${title}: ${series.map((each) => `${each.name} ${last(each.values) ?? "–"}`).join(", ")}`}>
      <figcaption>
        <span>{title}</span>
        <span class="grow" />
        {series.map((each, index) => (
          <span key={each.name} class="legend">
            <i class={`plot-${index + 1}`} />
            {each.name} <b>{last(each.values) === null ? "–" : format(last(each.values)!)}</b>
          </span>
        ))}
      </figcaption>
      <div ref={box} class="plot-box" />
    </figure>
  );
}
