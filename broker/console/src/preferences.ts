// The language and the colours. They are kept in this browser; the token is not.
import { effect, signal } from "@preact/signals";
import { chinese } from "./chinese";

export type Theme = "system" | "light" | "dark";
export type Language = "en" | "zh";

const stored = (name: string) => {
  try {
    return localStorage.getItem(`kernelbroker.${name}`);
  } catch {
    return null; // storage is turned off
  }
};

export const theme = signal<Theme>((stored("theme") as Theme | null) ?? "system");
export const language = signal<Language>(
  (stored("language") as Language | null) ?? (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en"),
);
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(prefersDark.matches);
prefersDark.addEventListener("change", () => (systemDark.value = prefersDark.matches));

const wide = matchMedia("(min-width: 901px)");
/** Whether cells and their details stand side by side. */
export const isWide = signal(wide.matches);
wide.addEventListener("change", () => (isWide.value = wide.matches));

export const isDark = signal(false);
effect(() => {
  isDark.value = theme.value === "dark" || (theme.value === "system" && systemDark.value);
  document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
});
effect(() => {
  document.documentElement.lang = language.value === "zh" ? "zh-CN" : "en";
});

function keep(name: string, value: string) {
  try {
    localStorage.setItem(`kernelbroker.${name}`, value);
  } catch {
    // it holds until the page is left
  }
}
export function setTheme(value: Theme) {
  theme.value = value;
  keep("theme", value);
}
export function setLanguage(value: Language) {
  language.value = value;
  keep("language", value);
}

/** Translate a text; `{0}`, `{1}` are replaced by the values. */
export function t(text: string, ...values: (string | number)[]): string {
  const found = language.value === "zh" ? (chinese[text] ?? text) : text;
  return found.replace(/\{(\d)\}/g, (_, index: string) => String(values[Number(index)] ?? ""));
}

const locale = () => (language.value === "zh" ? "zh-CN" : "en-GB");
export const time = (iso: string) => new Date(iso).toLocaleTimeString(locale(), { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const dateTime = (iso: string) => new Date(iso).toLocaleString(locale(), { dateStyle: "medium", timeStyle: "medium" });
/** The time of today, with the date of other days. */
export const moment = (iso: string) => (new Date(iso).toDateString() === new Date(now.value).toDateString() ? time(iso) : dateTime(iso));
export const number = (value: number) => value.toLocaleString(locale());

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000 || unit === "GB") return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1000;
  }
  return "";
}

export function duration(seconds: number): string {
  if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} d`;
}

/** A clock for ages and countdowns. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);
export const age = (iso: string) => Math.max(0, (now.value - Date.parse(iso)) / 1000);
