// Small parts that all pages use.
import { signal } from "@preact/signals";
import type { ComponentChildren, TargetedKeyboardEvent } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, type Finding } from "./api";
import { t } from "./preferences";

const PATHS: Record<string, string> = {
  sessions: "M3 4h10M3 8h10M3 12h6",
  check: "m3.5 8.5 3 3 6-7",
  cross: "m4 4 8 8m0-8-8 8",
  shield: "M8 1.8 13 4v4c0 3-2 5.2-5 6.2C5 13.200 3 11 3 8V4zM8 5.200v3.200m0 2v.1",
  cube: "M8 1.800 13.500 5v6L8 14.200 2.500 11V5zM2.800 5.200 8 8.200l5.200-3M8 8.200v6",
  chart: "M2.500 13.500h11M4.500 11V8M8 11V3M11.500 11V6",
  list: "M5.500 4h8M5.500 8h8M5.500 12h8M2.500 4h.1M2.500 8h.1M2.500 12h.1",
  stop: "M4.500 4.500h7v7h-7z",
  restart: "M13 8a5 5 0 1 1-1.600-3.650M13 2.500v3h-3",
  download: "M8 2.500v7.500m-3-3 3 3 3-3M3 13.500h10",
  upload: "M8 10.500V3m-3 3 3-3 3 3M3 13.500h10",
  link: "M6.500 9.500 9.500 6.500M7 4.500l1.300-1.300a2.600 2.600 0 0 1 3.700 0l.8.8a2.600 2.600 0 0 1 0 3.700L11.500 9M9 11.500l-1.300 1.300a2.600 2.600 0 0 1-3.700 0l-.8-.8a2.600 2.600 0 0 1 0-3.700L4.500 7",
  plus: "M8 3v10M3 8h10",
  back: "M10 3 5 8l5 5",
  play: "M5 3.500v9l7.500-4.500z",
  file: "M4 1.800h5l3 3v9.400H4zM9 1.800v3h3",
  folder: "M2 4h4l1.500 1.500H14V13H2z",
  table: "M2.500 3h11v10h-11zM2.500 6.300h11M6.500 6.300V13",
  copy: "M5.500 5.500h8v8h-8zM10.500 5.500v-3h-8v8h3",
  trash: "M3 4.500h10M6.500 4.500v-2h3v2M4.500 4.500l.6 9h5.800l.6-9",
  sun: "M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM8 1.500v1M8 13.500v1M1.500 8h1M13.500 8h1M3.400 3.400l.7.7M11.900 11.900l.7.7M3.400 12.600l.7-.7M11.900 4.100l.7-.7",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3 5.500 5.500 0 1 0 13 9.500z",
  screen: "M2 3h12v8H2zM6 13.500h4",
  refresh: "M13 8a5 5 0 0 1-9.300 2.500M3 8a5 5 0 0 1 9.300-2.500M12.500 2.500v3h-3M3.500 13.500v-3h3",
  exit: "M9.500 3h-6v10h6M7 8h6.500m-2.500-2.500L13.500 8 11 10.500",
  warn: "M8 2.200 14.200 13H1.800zM8 6.200v3.200m0 1.800v.1",
  more: "M3.500 8h.1M8 8h.1M12.500 8h.1",
  chat: "M2.500 3h11v8h-6l-3 2.500V11h-2z",
  branch: "M4.500 3v6.500a2 2 0 0 0 2 2H12m-2.500-2.500L12 11.500 9.500 14",
  move: "M2.500 8h10m-3.500-3.500L12.500 8 9 11.500",
  search: "M7 2.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 0 0 0-9zm3.300 7.800 3.200 3.200",
};

export function Icon({ name, size = 16 }: { name: string; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.400" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}

type ButtonProps = {
  icon?: string;
  label: string;
  kind?: "primary" | "danger" | "plain" | "ghost";
  iconOnly?: boolean;
  onClick: () => unknown;
  disabled?: boolean;
  title?: string;
};

/** A button that cannot be pressed again while its work is under way. */
export function Button({ icon, label, kind = "plain", iconOnly, onClick, disabled, title }: ButtonProps) {
  const [isBusy, setBusy] = useState(false);
  const press = async () => {
    const work = onClick();
    if (!(work instanceof Promise)) return;
    setBusy(true);
    try {
      await work;
    } catch (error) {
      report(error);
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" class={`button ${kind}${iconOnly ? " icon-only" : ""}`} onClick={() => void press()} disabled={disabled || isBusy} aria-label={iconOnly ? label : undefined} title={title ?? (iconOnly ? label : undefined)}>
      {icon && <Icon name={icon} />}
      {!iconOnly && <span>{label}</span>}
    </button>
  );
}

export function Empty({ icon, title, children }: { icon: string; title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <div class="empty-icon">
        <Icon name={icon} size={22} />
      </div>
      <p class="empty-title">{title}</p>
      {children && <div class="empty-text">{children}</div>}
    </div>
  );
}

export function Skeleton({ rows = 4 }: { rows?: number }) {
  return (
    <div class="skeleton" role="status" aria-label={t("Loading")}>
      {Array.from({ length: rows }, (_, index) => (
        <div key={index} />
      ))}
    </div>
  );
}

export const CLIENTS: Record<string, string> = {
  sdk: "SDK",
  mcp: "MCP",
  e2b: "E2B",
  jupyter: "Jupyter",
  console: "Console",
  rest: "REST",
};
export function Client({ name }: { name: string }) {
  return name ? <span class={`client client-${name}`}>{CLIENTS[name] ?? name}</span> : null;
}

export function State({ state }: { state: string }) {
  return (
    <span class={`state state-${state}`}>
      <i aria-hidden="true" />
      {t(state)}
    </span>
  );
}

const HIDDEN = /(\r(?!\n)|[\u115f\u1160\u3164\uffa0]|(?![\t\n\r])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}])/u;
/** Text that a person decides on: characters that hide or reorder others are shown as what they are. */
export function Visible({ text }: { text: string }) {
  return (
    <>
      {text.split(HIDDEN).map((piece, index) =>
        index % 2 ? (
          <span key={index} class="hidden-character" title={t("A character that cannot be seen, or that changes the order of others")}>
            ⟨U+{piece.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}⟩
          </span>
        ) : (
          piece
        ),
      )}
    </>
  );
}

export function Findings({ findings }: { findings: Finding[] }) {
  return (
    <ul class="findings">
      {findings.map((each, index) => (
        <li key={index} class={`level-${each.level}`}>
          <span class="level">{t(each.level)}</span>
          <span><Visible text={each.reason} /></span>
          <span class="faint">{t("line {0}", each.line)}</span>
        </li>
      ))}
    </ul>
  );
}

/** A dialog over the page: focus stays in it, Escape closes it. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    box.current?.showModal();
  }, []);
  return (
    <dialog ref={box} class={wide ? "wide" : ""} aria-label={title} onClose={onClose} onClick={(event) => event.target === box.current && onClose()}>
      <div class="dialog-body">
        <header>
          <h2>{title}</h2>
          <Button icon="cross" label={t("Close the dialog")} iconOnly kind="ghost" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

// Questions and messages.

type Question = { text: string; action: string; answer: (yes: boolean) => void };
const question = signal<Question | null>(null);
export const ask = (text: string, action: string) =>
  new Promise<boolean>((resolve) => {
    question.value = { text, action, answer: resolve };
  });

type Toast = { id: number; text: string; isError: boolean };
const toasts = signal<Toast[]>([]);
let lastToast = 0;
export function say(text: string, isError = false) {
  const id = ++lastToast;
  toasts.value = [...toasts.value.slice(-3), { id, text, isError }];
  setTimeout(() => (toasts.value = toasts.value.filter((each) => each.id !== id)), isError ? 9000 : 4000);
}
export function report(error: unknown) {
  say(error instanceof ApiError || error instanceof Error ? error.message : String(error), true);
}

export function Messages() {
  const asked = question.value;
  const answer = (yes: boolean) => {
    question.value = null;
    asked?.answer(yes);
  };
  return (
    <>
      {asked && (
        <Dialog title={asked.action} onClose={() => answer(false)}>
          <p>{asked.text}</p>
          <div class="row end">
            <Button label={t("Cancel")} onClick={() => answer(false)} />
            <Button label={asked.action} kind="danger" onClick={() => answer(true)} />
          </div>
        </Dialog>
      )}
      <div class="toasts" role="status" aria-live="polite">
        {toasts.value.map((each) => (
          <div key={each.id} class={each.isError ? "toast error" : "toast"}>
            <Icon name={each.isError ? "warn" : "check"} />
            <span>{each.text}</span>
          </div>
        ))}
      </div>
    </>
  );
}

export function Field({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
    </label>
  );
}

export function Tabs({ tabs, value, onChange, label }: { tabs: [string, string][]; value: string; onChange: (tab: string) => void; label: string }) {
  const move = (event: TargetedKeyboardEvent<HTMLDivElement>) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const shown = [...event.currentTarget.querySelectorAll<HTMLElement>("[role=tab]")].filter((each) => each.offsetParent);
    const next = shown[(shown.indexOf(event.target as HTMLElement) + step + shown.length) % shown.length];
    next?.click();
    next?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map(([name, text]) => (
        <button key={name} type="button" role="tab" class={`tab tab-${name}`} aria-selected={name === value} tabIndex={name === value ? 0 : -1} onClick={() => onChange(name)}>
          {text}
        </button>
      ))}
    </div>
  );
}
