// The connection to /api/v1/events: the sessions of the tenant as they change, and what is followed.
// A lost connection is made again, and everything goes on after the last event that has arrived.
import { batch, signal, type Signal } from "@preact/signals";
import { json, token, type Finding } from "./api";
import { Execution, type ExecutionInfo } from "./execution";

export type Session = {
  session_id: string;
  state: "idle" | "busy" | "asleep" | "closed";
  template: string;
  workspace: string;
  isolation: string;
  created_at: string;
  last_active_at: string;
  idle_timeout: number;
  max_lifetime: number;
  executions: number;
  queued: number;
  restarts: number;
  metadata: Record<string, unknown>;
  language: string;
  context_of: string | null;
  contexts: number;
  from_checkpoint: string | null;
  not_restored: Missing[];
  kept_awake_by: Missing[];
  runs_in: string | null;
  client: string;
  user: string;
  memory: number | null;
  last_execution: LastExecution | null;
};

export type Missing = { name: string; reason: string };

export type LastExecution = {
  execution_id: string;
  state: string;
  accepted_at: string;
  success: boolean | null;
  code: string;
  language: string;
  client: string;
  user: string;
};

export type Confirmation = {
  confirmation_id: string;
  session_id: string | null;
  template: string;
  code: string;
  language: string;
  level: string;
  findings: Finding[];
  client: string;
  user: string;
  asked_at: string;
  expires_at: string;
};

/** The executions of a session that is shown. */
export class WatchedSession {
  readonly executions = signal<Execution[]>([]);
  readonly ended = signal<string | null>(null);
  readonly missing = signal("");
  readonly isLoaded = signal(false);
  constructor(readonly id: string) {}

  add(info: ExecutionInfo): Execution {
    const known = this.executions.value.find((each) => each.id === info.execution_id);
    if (known) {
      known.describe(info);
      return known;
    }
    const made = new Execution(this.id, info);
    this.executions.value = [...this.executions.value, made];
    return made;
  }
}

export const connection = signal<"connecting" | "open" | "lost">("connecting");
export const sessions = signal<Map<string, Session>>(new Map());
export const isLoaded = signal(false);
export const confirmations = signal<Confirmation[]>([]);
export const watched: Signal<WatchedSession | null> = signal(null);

const RETRY_MS = [200, 500, 1000, 2000, 4000];
let socket: WebSocket | null = null;
let attempts = 0;
let generation = 0;

export function connect() {
  void dial(++generation);
}

export function disconnect() {
  generation++;
  socket?.close();
  socket = null;
  batch(() => {
    sessions.value = new Map();
    confirmations.value = [];
    isLoaded.value = false;
    watched.value = null;
    connection.value = "connecting";
  });
}

async function dial(mine: number) {
  socket?.close();
  socket = null;
  let subprotocol: string;
  try {
    subprotocol = (await json<{ subprotocol: string }>("POST", "/tickets", {})).subprotocol;
  } catch {
    return again(mine);
  }
  if (mine !== generation) return;
  const made = new WebSocket(`${location.origin.replace(/^http/, "ws")}/api/v1/events`, ["kernelbroker.v1", subprotocol]);
  socket = made;
  made.onmessage = (message) => {
    if (mine === generation) receive(JSON.parse(message.data as string));
  };
  made.onclose = () => again(mine);
}

function again(mine: number) {
  if (mine !== generation || !token.value) return;
  connection.value = "lost";
  const pause = RETRY_MS[Math.min(attempts++, RETRY_MS.length - 1)]!;
  setTimeout(() => {
    if (mine === generation) connect();
  }, pause * (0.75 + Math.random() / 2));
}

addEventListener("online", () => connection.value === "lost" && connect());

function send(message: object) {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
}

// eslint-disable-next-line @typescript-eslint/no-explicit-any
function receive(message: any) {
  const shown = watched.value?.id === message.session_id ? watched.value : null;
  switch (message.type) {
    case "sessions":
      attempts = 0;
      batch(() => {
        sessions.value = new Map((message.sessions as Session[]).map((each) => [each.session_id, each]));
        confirmations.value = message.confirmations;
        isLoaded.value = true;
        connection.value = "open";
      });
      if (watched.value) resume(watched.value);
      break;
    case "session": {
      const next = new Map(sessions.value);
      const isNew = !next.has(message.session.session_id);
      next.set(message.session.session_id, message.session);
      sessions.value = next;
      const known: WatchedSession | null = watched.value;
      // An id may be used again after its session has ended.
      if (isNew && known && known.id === message.session.session_id && known.isLoaded.value) watch(known.id, true);
      break;
    }
    case "session_closed": {
      const next = new Map(sessions.value);
      next.delete(message.session_id);
      sessions.value = next;
      break;
    }
    case "confirmations":
      confirmations.value = message.confirmations;
      break;
    case "executions":
      if (shown)
        batch(() => {
          for (const each of message.executions) shown.add(each);
          shown.isLoaded.value = true;
          shown.missing.value = "";
        });
      break;
    case "execution":
      if (shown) {
        const execution = shown.add(message.execution);
        if (execution.wanted && !execution.followed) follow(execution);
      }
      break;
    case "event":
      if (shown) shown.executions.value.find((each) => each.id === message.event.execution_id)?.receive(message.event);
      break;
    case "ended":
      if (shown) shown.ended.value = message.reason ?? "";
      break;
    case "error":
      if (shown && !message.execution_id) {
        shown.missing.value = message.error.message;
        shown.isLoaded.value = true;
      }
      break;
  }
}

function resume(session: WatchedSession) {
  send({ op: "watch", session_id: session.id });
  for (const each of session.executions.value) {
    each.followed = false;
    if (each.wanted && !each.isComplete) follow(each);
  }
}

/** Watch this session instead of another one. */
export function watch(id: string, again = false) {
  if (watched.value?.id === id && !again) return;
  if (watched.value) unwatch(watched.value.id);
  watched.value = new WatchedSession(id);
  resume(watched.value);
}

/** Watch this session no longer. Nothing happens if another one is watched: the page that follows may be faster. */
export function unwatch(id: string) {
  const session = watched.value;
  if (session?.id !== id) return;
  send({ op: "unwatch", session_id: session.id });
  for (const each of session.executions.value)
    if (each.followed && !each.isComplete) send({ op: "unfollow", session_id: session.id, execution_id: each.id });
  watched.value = null;
}

/** Get the output of an execution, now and as it comes. */
export function follow(execution: Execution) {
  execution.wanted = true;
  if (execution.followed || execution.isComplete || socket?.readyState !== WebSocket.OPEN) return;
  execution.followed = true;
  send({ op: "follow", session_id: execution.session, execution_id: execution.id, after: execution.seq });
}
