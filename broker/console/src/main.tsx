// The console: signing in, the navigation, and which page is shown.
import { effect, signal } from "@preact/signals";
import { type ComponentType, render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, type Caller, caller, dropToken, isRefused, json, keepToken, token } from "./api";
import { Confirmations } from "./confirmations";
import { lazily } from "./lazy";
import { confirmations, connect, connection, disconnect, sessions } from "./live";
import { isDark, language, setLanguage, setTheme, t, theme } from "./preferences";
import { route } from "./route";
import { Sessions } from "./sessions";
import "./styles.css";
import { Button, Dialog, Empty, Icon, Messages, report, say, Skeleton } from "./ui";

function Brand() {
  return (
    <span class="brand">
      <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true">
        <rect width="32" height="32" rx="8" class="brand-box" />
        <path d="M9 9.5 15.500 16 9 22.500M17.500 22.500H24" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" stroke-linejoin="round" />
      </svg>
      kernelbroker
    </span>
  );
}

function Switches() {
  const next = { system: "light", light: "dark", dark: "system" } as const;
  const names = { system: t("Colours: as the system"), light: t("Colours: light"), dark: t("Colours: dark") };
  return (
    <>
      <Button icon={theme.value === "system" ? "screen" : isDark.value ? "moon" : "sun"} label={names[theme.value]} iconOnly kind="ghost" onClick={() => setTheme(next[theme.value])} />
      <button type="button" class="button ghost" onClick={() => setLanguage(language.value === "zh" ? "en" : "zh")} lang={language.value === "zh" ? "en" : "zh"}>
        {language.value === "zh" ? "English" : "中文"}
      </button>
    </>
  );
}

function SignIn() {
  const [given, setGiven] = useState("");
  const [problem, setProblem] = useState("");
  const enter = async () => {
    token.value = given.trim();
    try {
      caller.value = await json<Caller>("GET", "/me");
      keepToken(token.value);
      setProblem("");
    } catch (error) {
      token.value = "";
      setProblem(error instanceof ApiError && error.status === 401 ? t("This token is not valid.") : (error as Error).message);
    }
  };
  return (
    <main class="sign-in">
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          void enter();
        }}
      >
        <Brand />
        <p class="faint">{t("See what agents run, while they run it.")}</p>
        <label class="field">
          <span>{t("Token")}</span>
          <input type="password" name="token" autocomplete="off" spellcheck={false} value={given} onInput={(event) => setGiven(event.currentTarget.value)} autofocus required aria-describedby="token-hint" />
        </label>
        {(problem || isRefused.value) && (
          <p class="note bad" role="alert">
            <Icon name="warn" />
            {problem || t("The token is no longer valid. The broker prints the present one when it starts.")}
          </p>
        )}
        <button type="submit" class="button primary">
          {t("Sign in")}
        </button>
        <p class="small faint" id="token-hint">
          {t("The broker prints one when it starts. It is kept for this tab only.")}
        </p>
      </form>
      <div class="row center">
        <Switches />
      </div>
    </main>
  );
}

type Lazy = Record<string, ComponentType<{ id: string }>>;
const lazy = signal<Lazy>({});
const loadSession = lazily(async () => {
  lazy.value = { ...lazy.value, session: (await import("./session")).SessionPage };
});
const loadOperator = lazily(async () => {
  lazy.value = { ...lazy.value, ...((await import("./operator")).pages as unknown as Lazy) };
});
const operatorPages = ["sandboxes", "metrics", "audit"];

function Page() {
  const { page, session } = route.value;
  useEffect(() => {
    const load = page === "session" ? loadSession : operatorPages.includes(page) ? loadOperator : null;
    if (load && !lazy.value[page]) load().catch(report);
  }, [page]);
  if (page === "sessions" || page === "ended") return <Sessions />;
  if (page === "confirmations") return <Confirmations />;
  if (operatorPages.includes(page) && !caller.value?.operator)
    return (
      <Empty icon="shield" title={t("This page is for operators")}>
        <p>{t("Sign in with a token that has the operators' right.")}</p>
      </Empty>
    );
  const Found = lazy.value[page];
  if (Found) return <Found key={session} id={session ?? ""} />;
  return page === "session" || operatorPages.includes(page) ? <Skeleton /> : <Empty icon="search" title={t("There is no such page")} />;
}

function NavLink({ page, icon, text, badge }: { page: string; icon: string; text: string; badge?: number }) {
  const isHere = route.value.page === page || (page === "sessions" && ["session", "ended"].includes(route.value.page));
  return (
    <a href={`#/${page}`} class="nav-link" aria-current={isHere ? "page" : undefined}>
      <Icon name={icon} />
      <span>{text}</span>
      {!!badge && <b class="badge">{badge}</b>}
    </a>
  );
}

function SignOut({ isPlain }: { isPlain?: boolean }) {
  return (
    <Button
      icon="exit"
      label={t("Sign out")}
      iconOnly={!isPlain}
      kind={isPlain ? "plain" : "ghost"}
      onClick={() => {
        disconnect();
        keepToken("");
      }}
    />
  );
}

/** On a phone: who is signed in, the colours, the language, and the way out. */
function More() {
  const [isOpen, setOpen] = useState(false);
  const me = caller.value!;
  return (
    <>
      <button type="button" class="nav-link more-link" onClick={() => setOpen(true)}>
        <Icon name="more" />
        <span>{t("More")}</span>
      </button>
      {isOpen && (
        <Dialog title={t("More")} onClose={() => setOpen(false)}>
          <dl class="about">
            <div>
              <dt>{t("Person")}</dt>
              <dd>{me.user}</dd>
            </div>
            <div>
              <dt>{t("Tenant")}</dt>
              <dd>{me.tenant}</dd>
            </div>
            <div>
              <dt>{t("Version")}</dt>
              <dd>{me.version}</dd>
            </div>
          </dl>
          <div class="row more-actions">
            <Switches />
            <span class="grow" />
            <SignOut isPlain />
          </div>
        </Dialog>
      )}
    </>
  );
}

function Shell() {
  const me = caller.value!;
  return (
    <div class="shell">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>
        {t("Skip to the content")}
      </a>
      <nav class="nav" aria-label={t("Pages")}>
        <Brand />
        <div class="nav-links">
          <NavLink page="sessions" icon="sessions" text={t("Sessions")} />
          <NavLink page="confirmations" icon="shield" text={t("Confirmations")} badge={confirmations.value.length} />
          {me.operator && (
            <>
              <p class="nav-title">{t("Operate")}</p>
              <NavLink page="sandboxes" icon="cube" text={t("Sandboxes")} />
              <NavLink page="metrics" icon="chart" text={t("Metrics")} />
              <NavLink page="audit" icon="list" text={t("Audit log")} />
            </>
          )}
          <More />
        </div>
        <div class="nav-foot">
          <p class={`link-state ${connection.value}`} role="status">
            <i />
            {connection.value === "open" ? t("live") : connection.value === "lost" ? t("connecting again") : t("connecting")}
          </p>
          <p class="me" title={me.version}>
            {me.user}
            <span class="faint">{me.tenant}</span>
          </p>
          <div class="row">
            <Switches />
            <span class="grow" />
            <SignOut />
          </div>
        </div>
      </nav>
      <main id="main" tabIndex={0}>
        <Page />
      </main>
    </div>
  );
}

function App() {
  if (caller.value) return <Shell />;
  if (token.value && !sessions.value.size && isResuming.value) return <Skeleton />;
  return <SignIn />;
}

// After a reload the tab has its token still. A broker that restarts is waited for.
const isResuming = signal(!!token.value);
async function resume() {
  while (token.value && !caller.value) {
    try {
      caller.value = await json<Caller>("GET", "/me");
    } catch (error) {
      if (error instanceof ApiError && error.status !== 0 && error.status < 500) dropToken();
      else await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
  isResuming.value = false;
}
void resume();

let wasSignedIn = false;
effect(() => {
  const isSignedIn = caller.value !== null;
  if (isSignedIn && !wasSignedIn) connect();
  if (!isSignedIn && wasSignedIn) disconnect();
  wasSignedIn = isSignedIn;
});
// A broker that was replaced has another page.
let isNewVersion = false;
effect(() => {
  const me = caller.peek();
  if (connection.value !== "open" || !me || isNewVersion) return;
  void json<Caller>("GET", "/me").then(
    (found) => {
      if (found.version === me.version || isNewVersion) return;
      isNewVersion = true;
      say(t("The broker has another version now. Load the page again."));
    },
    () => {}, // it is asked again with the next connection
  );
});
effect(() => {
  const waiting = confirmations.value.length;
  const name = route.value.session ?? "";
  document.title = `${waiting ? `(${waiting}) ` : ""}${name ? `${name} · ` : ""}kernelbroker`;
});
addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !/INPUT|TEXTAREA|SELECT/.test(target.tagName) && !target.isContentEditable) {
    const filter = document.getElementById("filter");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
});

render(
  <>
    <App />
    <Messages />
  </>,
  document.getElementById("app")!,
);
