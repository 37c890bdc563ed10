// An execution and its output, made of its events. Text goes into terminals, all else into blocks.
import { signal } from "@preact/signals";
import type { Finding } from "./api";
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
};

export type Block =
  | { kind: "text"; terminal: Terminal; hasError: boolean }
  | { kind: "bundle"; data: Bundle; id: string | null; isResult: boolean; width: number | null; height: number | null }
  | { kind: "input"; prompt: string };

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
        if (event.update && event.display_id) this.update(event.display_id, event.data);
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
        this.blocks = this.blocks.filter((each) => each.kind !== "input");
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
    if (this.blocks.at(-1)?.kind === "input") this.blocks.pop();
  }

  private text(content: string, kind: string) {
    let last = this.blocks.at(-1);
    if (last?.kind !== "text") {
      last = { kind: "text", terminal: new Terminal(), hasError: false };
      this.blocks.push(last);
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
