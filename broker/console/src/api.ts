// Requests to the broker's API. The token is kept for this tab alone.
import { signal } from "@preact/signals";

export type Finding = { rule: string; level: string; line: number; column: number; reason: string };
export type Caller = { tenant: string; user: string; operator: boolean; version: string; templates: string[] };

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly findings: Finding[] = [],
    readonly confirmation: string | null = null,
  ) {
    super(message);
  }
}

const KEY = "kernelbroker.token";
export const token = signal(sessionStorage.getItem(KEY) ?? "");
/** Whether the broker has refused the token that was signed in with. */
export const isRefused = signal(false);
export const caller = signal<Caller | null>(null);

export function keepToken(value: string) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  token.value = value;
  isRefused.value = false;
  if (!value) caller.value = null;
}

/** Ask for another token, since the broker refuses this one. */
export function dropToken() {
  keepToken("");
  isRefused.value = true;
}

export async function request(method: string, path: string, body?: BodyInit | object, headers: Record<string, string> = {}) {
  const isJson = body !== undefined && Object.getPrototypeOf(body) === Object.prototype;
  const given = token.value;
  let answer: Response;
  try {
    answer = await fetch(`/api/v1${path}`, {
      method,
      body: isJson ? JSON.stringify(body) : (body as BodyInit | undefined),
      headers: {
        Authorization: `Bearer ${given}`,
        "X-Kernelbroker-Client": "console",
        ...(isJson ? { "Content-Type": "application/json" } : {}),
        ...headers,
      },
      cache: "no-store",
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The broker cannot be reached. It is tried again.");
  }
  if (answer.ok) return answer;
  let found: { code?: string; message?: string; findings?: Finding[]; confirmation?: string } = {};
  try {
    found = (await answer.json()).error ?? {};
  } catch {
    // not JSON: a proxy answered
  }
  if (answer.status === 401 && caller.value && given === token.value) dropToken();
  throw new ApiError(
    answer.status,
    found.code ?? "",
    found.message ?? `${answer.status} ${answer.statusText}`,
    found.findings ?? [],
    found.confirmation ?? null,
  );
}

export async function json<T>(method: string, path: string, body?: object): Promise<T> {
  return (await request(method, path, body)).json() as Promise<T>;
}

export const sessionPath = (id: string) => `/sessions/${encodeURIComponent(id)}`;
export const filePath = (id: string, path: string) =>
  `${sessionPath(id)}/files/${path.split("/").map(encodeURIComponent).join("/")}`;

/** Offer data as a download. */
export function save(blob: Blob, name: string) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
