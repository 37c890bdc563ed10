// An execution and its output, made of its events. Text goes into terminals, all else into blocks.
import { signal } from "@preact/signals";
import type { Finding } from "./api";
import type { Missing } from "./live";
import { Terminal } from "./terminal";

export type ExecutionInfo = {
  execution_id: string;
  session_id: string;
  state: "queued" | "running" | "done";
  accepted_at: string;
  packages: string[];
  success: boolean | null;
  error: string | null;
  execution_time: number | null;
  client: string;
  user: string;
  code?: string;
  language?: string;
  operation?: string | null;
};

export type Bundle = Record<string, unknown>;
export type Result = {
  success: boolean;
  execution_count: number | null;
  execution_time: number | null;
  error: string | null;
  error_detail: { cause: string } | null;
  files: { path: string; size: number }[];
  truncated: { output_bytes?: number; rich_outputs?: number } | null;
  kernel_restarted: boolean;
  findings: Finding[];
  variables: unknown[];
  moved: { from: string; to: string; left: Missing[] } | null;
};

export type Tests = { test: string; outcome: string; seconds?: number }[];
const TESTS = "application/vnd.kernelbroker.test-output+json";
const MAX_TESTS = 5_000;

export type Block =
  | { kind: "text"; terminal: Terminal; hasError: boolean }
  | { kind: "bundle"; data: Bundle; id: string | null; isResult: boolean; width: number | null; height: number | null }
  | { kind: "tests"; tests: Tests; counts: Record<string, number> }
  | { kind: "input"; prompt: string }
  | { kind: "asked"; prompt: string };

// eslint-disable-next-line @typescript-eslint/no-explicit-any
type Event = { type: string; seq: number; [field: string]: any };

export class Execution {
  readonly info = signal<ExecutionInfo>({} as ExecutionInfo);
  /** Changes when the output has changed, at most once in a frame. */
  readonly version = signal(0);
  readonly result = signal<Result | null>(null);
  readonly count = signal<number | null>(null);
  blocks: Block[] = [];
  seq = 0;
  wanted = false;
  followed = false;
  startedAt = 0;
  private clearsNext = false;
  private isScheduled = false;

  constructor(
    readonly session: string,
    info: ExecutionInfo,
  ) {
    this.describe(info);
  }

  get id() {
    return this.info.value.execution_id;
  }

  get isComplete() {
    return this.result.value !== null;
  }

  describe(info: ExecutionInfo) {
    this.info.value = { ...this.info.value, ...info };
  }

  receive(event: Event) {
    if (event.seq <= this.seq) return; // it came twice, around a lost connection
    this.seq = event.seq;
    switch (event.type) {
      case "started":
        this.count.value = event.execution_count;
        this.startedAt = Date.parse(this.info.value.accepted_at) + event.queued_s * 1000;
        this.info.value = { ...this.info.value, state: "running" };
        break;
      case "stdout":
      case "stderr":
        this.clearNow();
        this.text(event.content, event.is_traceback ? "traceback" : event.type);
        break;
      case "image":
        this.clearNow();
        this.bundle({ ...event.data, [event.mime]: event.content }, null, event.is_result, event.width, event.height);
        break;
      case "display":
        if (event.data[TESTS]) this.tests(event.data[TESTS] as { tests?: Tests } & Record<string, number>);
        else if (event.update && event.display_id) this.update(event.display_id, event.data);
        else {
          this.clearNow();
          this.bundle(event.data, event.display_id, event.is_result, null, null);
        }
        break;
      case "clear":
        if (event.wait) this.clearsNext = true;
        else this.blocks = [];
        break;
      case "input":
        this.blocks.push({ kind: "input", prompt: event.prompt });
        break;
      case "result":
        this.result.value = event as unknown as Result;
        this.answered();
        this.info.value = {
          ...this.info.value,
          state: "done",
          success: event.success,
          error: event.error,
          execution_time: event.execution_time,
        };
        break;
    }
    this.changed();
  }

  private clearNow() {
    if (this.clearsNext) this.blocks = [];
    this.clearsNext = false;
    this.answered();
  }

  /** Nothing is asked any more; what was asked stays. */
  private answered() {
    this.blocks = this.blocks.map((each) => (each.kind === "input" ? { kind: "asked", prompt: each.prompt } : each));
  }

  private tests(found: { tests?: Tests } & Record<string, number>) {
    const known = this.blocks.findIndex((each) => each.kind === "tests");
    const before = known >= 0 ? (this.blocks[known] as { tests: Tests }).tests : [];
    const counts = Object.fromEntries(["passed", "failed", "errors", "skipped"].map((name) => [name, Number(found[name]) || 0]));
    const tests = [...before, ...(Array.isArray(found.tests) ? found.tests : [])].slice(-MAX_TESTS);
    this.blocks = [...this.blocks.filter((each) => each.kind !== "tests"), { kind: "tests", tests, counts }];
  }

  private text(content: string, kind: string) {
    // The tests stay below their output.
    const end = this.blocks.at(-1)?.kind === "tests" ? this.blocks.length - 1 : this.blocks.length;
    let last = this.blocks[end - 1];
    if (last?.kind !== "text") {
      last = { kind: "text", terminal: new Terminal(), hasError: false };
      this.blocks.splice(end, 0, last);
    }
    if (kind === "traceback") last.hasError = true;
    last.terminal.write(content, kind);
  }

  private bundle(data: Bundle, id: string | null, isResult: boolean, width: number | null, height: number | null) {
    this.blocks.push({ kind: "bundle", data, id, isResult, width, height });
  }

  private update(id: string, data: Bundle) {
    this.blocks = this.blocks.map((each) => (each.kind === "bundle" && each.id === id ? { ...each, data } : each));
  }

  private changed() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    const show = () => {
      this.isScheduled = false;
      this.version.value++;
    };
    if (document.hidden) setTimeout(show, 200);
    else requestAnimationFrame(show);
  }
}
