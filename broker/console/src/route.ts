// The address of what is shown: the part of the URL after #, so that a link can be shared.
import { signal } from "@preact/signals";

export type Route = { page: string; session?: string; execution?: string; file?: string };

function parse(): Route {
  const parts = location.hash.replace(/^#\/?/, "").split("/");
  const decoded = (part: string) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  if (parts[0] === "sessions" && parts[1]) {
    const route: Route = { page: "session", session: decoded(parts[1]) };
    if (parts[2] === "executions" && parts[3]) route.execution = decoded(parts[3]);
    if (parts[2] === "files") route.file = parts.slice(3).map(decoded).join("/");
    return route;
  }
  return { page: parts[0] || "sessions" };
}

export const route = signal<Route>(parse());
addEventListener("hashchange", () => (route.value = parse()));

export const sessionLink = (id: string) => `#/sessions/${encodeURIComponent(id)}`;
export const executionLink = (id: string, execution: string) => `${sessionLink(id)}/executions/${encodeURIComponent(execution)}`;
export const fileLink = (id: string, path: string) => `${sessionLink(id)}/files/${path.split("/").map(encodeURIComponent).join("/")}`;
export function go(hash: string) {
  if (location.hash !== hash) location.hash = hash;
}
