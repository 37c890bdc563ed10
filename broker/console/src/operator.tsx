// What operators see: sandboxes and pools, risky code, the audit log, and the last hour in plots.
import { useEffect, useState } from "preact/hooks";
import { caller, json, request } from "./api";
import { bytes, dateTime, duration, number, t } from "./preferences";
import { Plot, type Series } from "./plot";
import { ask, Button, Empty, Field, report, say, Skeleton, State } from "./ui";

type PoolInfo = {
  template: string;
  idle_containers: number;
  busy_containers: number;
  starting_containers: number;
  removing_containers: number;
  pending_requests: number;
  spare_containers: number;
  max_size: number;
  draining: boolean;
  last_launch_failure: string | null;
  queue: { tenant: string; waiting: number }[];
  next: { sandbox: string | null; tenant: string | null };
};
type Sandbox = {
  worker_id: string;
  template: string;
  state: string;
  uptime: number | null;
  kernel_status: string;
  memory_usage: number | null;
  memory_limit: number | null;
  processor_time: number | null;
  session: string | null;
  tenant: string | null;
};

/** Ask again and again while the page is shown. */
function usePolled<T>(path: string, seconds: number): { value: T | null; problem: string; reload: () => Promise<void> } {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  const load = () =>
    json<T>("GET", path).then(
      (found) => {
        setValue(found);
        setProblem("");
      },
      (error: Error) => setProblem(error.message),
    );
  useEffect(() => {
    void load();
    const timer = setInterval(() => !document.hidden && void load(), seconds * 1000);
    return () => clearInterval(timer);
  }, [path]);
  return { value, problem, reload: load };
}

function PoolCard({ pool, reload }: { pool: PoolInfo; reload: () => Promise<void> }) {
  const parts: [string, number][] = [
    ["leased", pool.busy_containers],
    ["idle", pool.idle_containers],
    ["starting", pool.starting_containers],
    ["removing", pool.removing_containers],
  ];
  const drain = async () => {
    const path = `/pool/${pool.template}/drain`;
    if (pool.draining) {
      await request("DELETE", path);
      say(t("{0} serves sessions again.", pool.template));
    } else {
      if (!(await ask(t("{0} gets no new sessions, and its free sandboxes are removed. Open sessions go on.", pool.template), t("Drain")))) return;
      await request("POST", path, {});
      say(t("{0} is draining.", pool.template));
    }
    await reload();
  };
  return (
    <article class="card pool" aria-label={pool.template}>
      <header>
        <h2>{pool.template}</h2>
        {pool.draining && <span class="tag warn">{t("draining")}</span>}
        <span class="grow" />
        <Button label={pool.draining ? t("Resume") : t("Drain")} onClick={drain} />
      </header>
      <div class="meter" role="img" aria-label={parts.map(([state, count]) => `${count} ${t(state)}`).join(", ")}>
        {parts.map(([state, count]) => (
          <i key={state} class={`part-${state}`} style={{ width: `${(100 * count) / Math.max(1, pool.max_size)}%` }} />
        ))}
      </div>
      <dl class="numbers">
        {parts.slice(0, 3).map(([state, count]) => (
          <div key={state}>
            <dt>
              <i class={`dot part-${state}`} />
              {t(state)}
            </dt>
            <dd>{count}</dd>
          </div>
        ))}
        <div>
          <dt>{t("at most")}</dt>
          <dd>{pool.max_size}</dd>
        </div>
        <div>
          <dt>{t("waiting")}</dt>
          <dd class={pool.pending_requests ? "hot" : ""}>{pool.pending_requests}</dd>
        </div>
      </dl>
      <p class="small faint">
        {pool.next.tenant ? t("Next: {0}, of {1} tenants that wait", pool.next.tenant, pool.queue.length) : pool.next.sandbox ? t("Next to be leased: {0}", pool.next.sandbox) : t("Nothing is free")}
      </p>
      {pool.queue.length > 0 && (
        <ol class="queue">
          {pool.queue.map((each) => (
            <li key={each.tenant}>
              {each.tenant} <span class="faint">{each.waiting}</span>
            </li>
          ))}
        </ol>
      )}
      {pool.last_launch_failure && <p class="note bad">{pool.last_launch_failure}</p>}
    </article>
  );
}

export function Sandboxes() {
  const pools = usePolled<{ pools: PoolInfo[] }>("/pools", 2);
  const found = usePolled<{ sandboxes: Sandbox[] }>("/sandboxes", 2);
  return (
    <section class="page">
      <header class="page-head">
        <h1>{t("Sandboxes")}</h1>
      </header>
      {pools.problem && <p class="note bad">{pools.problem}</p>}
      {!pools.value ? <Skeleton /> : <div class="pools">{pools.value.pools.map((each) => <PoolCard key={each.template} pool={each} reload={pools.reload} />)}</div>}
      {found.value && (
        <div class="card scroll-x" tabIndex={0} role="region" aria-label={t("Sandboxes")}>
          <table class="list">
            <thead>
              <tr>
                <th>{t("Sandbox")}</th>
                <th>{t("Template")}</th>
                <th>{t("State")}</th>
                <th>{t("Kernel")}</th>
                <th>{t("Session")}</th>
                <th class="num">{t("Memory")}</th>
                <th class="num">{t("Processor")}</th>
                <th class="num">{t("Age")}</th>
              </tr>
            </thead>
            <tbody>
              {found.value.sandboxes.map((each) => (
                <tr key={each.worker_id}>
                  <td class="mono">{each.worker_id}</td>
                  <td>{each.template}</td>
                  <td>
                    <State state={each.state} />
                  </td>
                  <td>{t(each.kernel_status)}</td>
                  <td>
                    {each.session ?? <span class="faint">–</span>} {each.tenant && <span class="faint">{each.tenant}</span>}
                  </td>
                  <td class="num">
                    {bytes(each.memory_usage)}
                    {each.memory_usage !== null && each.memory_limit !== null && <meter min={0} max={each.memory_limit} value={each.memory_usage} aria-label={t("Memory")} />}
                  </td>
                  <td class="num">{each.processor_time === null ? "–" : duration(each.processor_time)}</td>
                  <td class="num">{each.uptime === null ? "–" : duration(each.uptime)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {found.value.sandboxes.length === 0 && <Empty icon="cube" title={t("No sandboxes")} />}
        </div>
      )}
    </section>
  );
}

type History = { interval: number; time: number[]; series: Record<string, (number | null)[]> };
type Risky = { time: string; tenant: string; template: string; session: string; language: string; mode: string; level: string; rules: string[] };

export function Metrics() {
  const { value, problem } = usePolled<History>("/metrics/history", 10);
  const risky = usePolled<{ risky: Risky[] }>("/risky", 10);
  if (problem) return <Empty icon="warn" title={problem} />;
  if (!value) return <Skeleton />;
  const plots: [string, Series[], ((value: number) => string)?][] = [
    [t("Sessions"), [{ name: t("open"), values: value.series.sessions ?? [] }]],
    [t("Executions"), [{ name: t("running"), values: value.series.running ?? [] }, { name: t("waiting"), values: value.series.waiting ?? [] }]],
    [t("Ended in 10 s"), [{ name: t("succeeded"), values: value.series.succeeded ?? [] }, { name: t("failed"), values: value.series.failed ?? [] }]],
    [t("Sandboxes"), [{ name: t("leased"), values: value.series.leased ?? [] }, { name: t("idle"), values: value.series.idle ?? [] }, { name: t("starting"), values: value.series.starting ?? [] }]],
    [t("Memory of the sandboxes"), [{ name: t("used"), values: value.series.memory ?? [] }], bytes],
    [t("Wait for a sandbox"), [{ name: t("longest"), values: value.series.lease_seconds ?? [] }], duration],
  ];
  return (
    <section class="page">
      <header class="page-head">
        <h1>{t("The last hour")}</h1>
      </header>
      <div class="plots">
        {plots.map(([title, series, format]) => (
          <Plot key={title} title={title} time={value.time} series={series} format={format ?? number} />
        ))}
      </div>
      <h2 class="section">{t("Risky code")}</h2>
      {!risky.value?.risky.length ? (
        <Empty icon="shield" title={t("No policy has found risky code")} />
      ) : (
        <div class="card scroll-x" tabIndex={0} role="region" aria-label={t("Risky code")}>
          <table class="list">
            <thead>
              <tr>
                <th>{t("Time")}</th>
                <th>{t("Tenant")}</th>
                <th>{t("Session")}</th>
                <th>{t("Level")}</th>
                <th>{t("Policy")}</th>
                <th>{t("Rules")}</th>
              </tr>
            </thead>
            <tbody>
              {risky.value.risky.map((each, index) => (
                <tr key={index}>
                  <td class="nowrap">{dateTime(each.time)}</td>
                  <td>{each.tenant}</td>
                  <td>{each.session || "–"}</td>
                  <td>
                    <span class={`level level-${each.level}`}>{t(each.level)}</span>
                  </td>
                  <td>{each.mode}</td>
                  <td class="mono small">{each.rules.join(", ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

type AuditRecord = { time: string; event: string; tenant?: string; session?: string; [field: string]: unknown };
const SHOWN = new Set(["time", "event", "tenant", "session", "template"]);

export function Audit() {
  const [filter, setFilter] = useState({ event: "", tenant: "", session: "", text: "" });
  const [records, setRecords] = useState<AuditRecord[] | null>(null);
  const [events, setEvents] = useState<string[]>([]);
  const [problem, setProblem] = useState("");
  const load = async (before?: string) => {
    const query = new URLSearchParams({ limit: "200", ...(before ? { before } : {}) });
    for (const [name, value] of Object.entries(filter)) if (value) query.set(name, value);
    try {
      const found = await json<{ records: AuditRecord[]; events: string[] }>("GET", `/audit?${query}`);
      setRecords(before && records ? [...records, ...found.records] : found.records);
      setEvents(found.events);
      setProblem("");
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  useEffect(() => {
    const timer = setTimeout(() => void load().catch(report), 200);
    return () => clearTimeout(timer);
  }, [filter]);
  const field = (name: keyof typeof filter, label: string) => (
    <Field label={label}>
      <input value={filter[name]} onInput={(event) => setFilter({ ...filter, [name]: event.currentTarget.value })} />
    </Field>
  );
  return (
    <section class="page">
      <header class="page-head">
        <h1>{t("Audit log")}</h1>
        <Button icon="refresh" label={t("Refresh")} iconOnly onClick={() => load()} />
      </header>
      <div class="filters">
        <Field label={t("Event")}>
          <select value={filter.event} onChange={(event) => setFilter({ ...filter, event: event.currentTarget.value })}>
            <option value="">{t("all")}</option>
            {events.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </Field>
        {field("tenant", t("Tenant"))}
        {field("session", t("Session"))}
        {field("text", t("Contains"))}
      </div>
      {problem ? (
        <Empty icon="warn" title={problem} />
      ) : !records ? (
        <Skeleton />
      ) : records.length === 0 ? (
        <Empty icon="list" title={t("No records")} />
      ) : (
        <div class="card scroll-x" tabIndex={0} role="region" aria-label={t("Audit log")}>
          <table class="list audit">
            <thead>
              <tr>
                <th>{t("Time")}</th>
                <th>{t("Event")}</th>
                <th>{t("Tenant")}</th>
                <th>{t("Session")}</th>
                <th>{t("Details")}</th>
              </tr>
            </thead>
            <tbody>
              {records.map((each, index) => (
                <tr key={index}>
                  <td class="nowrap">{dateTime(each.time)}</td>
                  <td class="mono">{each.event}</td>
                  <td>{each.tenant ?? "–"}</td>
                  <td>{each.session ?? "–"}</td>
                  <td>
                    <div class="details">
                    {Object.entries(each)
                      .filter(([name, value]) => !SHOWN.has(name) && value !== null)
                      .map(([name, value]) => (
                        <span key={name}>
                          <b>{name}</b> {String(typeof value === "object" ? JSON.stringify(value) : value).slice(0, name === "code_sha256" ? 12 : 120)}
                        </span>
                      ))}
                    </div>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          {records.length % 200 === 0 && (
            <div class="row center">
              <Button label={t("Older records")} onClick={() => load(records.at(-1)!.time)} />
            </div>
          )}
        </div>
      )}
    </section>
  );
}

export const pages: Record<string, () => preact.JSX.Element> = { sandboxes: Sandboxes, metrics: Metrics, audit: Audit };
export const isOperator = () => caller.value?.operator === true;
