"""The page is small, accessible, usable on a phone and by keyboard, and complete in both languages."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from tests.e2e.support import ROOT, whole_system
from tests.support.requires import require

from .conftest import TIMEOUT_MS, Console, OpenPage, sign_in
from .test_watching import RISKY, see

pytestmark = whole_system

SOURCE = ROOT / "broker" / "console"
BUILT = ROOT / "broker" / "kernelbroker_server" / "console" / "static"
PAGES = ["sessions", "ended", "sessions/shown", "confirmations", "sandboxes", "metrics", "audit"]


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """The packages of the console's build."""
    require("npm")
    found = SOURCE / "node_modules"
    if not (found / ".bin" / "esbuild").exists():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=SOURCE, check=True)
    return found


def test_the_bundle_is_what_the_source_builds(node_modules: Path, tmp_path: Path) -> None:
    """Building the source gives the files of the package, byte for byte."""
    subprocess.run(["node", "build.mjs", str(tmp_path / "out")], cwd=SOURCE, check=True)
    made = {each.name: each.read_bytes() for each in (tmp_path / "out").iterdir()}
    kept = {each.name: each.read_bytes() for each in BUILT.iterdir()}
    assert sorted(made) == sorted(kept), "run: make console"
    assert [name for name in made if made[name] != kept[name]] == [], "run: make console"


def test_the_source_has_no_type_errors(node_modules: Path) -> None:
    """TypeScript finds nothing."""
    done = subprocess.run(
        ["node", "node_modules/typescript/bin/tsc", "--noEmit"],
        cwd=SOURCE,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_licences_are_in_the_package() -> None:
    """The licence of each package whose code is in the bundle is part of the wheel."""
    text = (BUILT / "licenses.txt").read_text()
    for name in (
        "preact",
        "@codemirror/view",
        "apache-arrow",
        "uplot",
        "anser",
        "@fontsource-variable/inter",
    ):
        assert re.search(rf"^{re.escape(name)} \d", text, re.MULTILINE), name
    assert "Apache License" in text
    assert "SIL OPEN FONT LICENSE" in text


def test_every_text_is_translated() -> None:
    """Each text that the source translates has a Chinese form with the same places for values."""
    source = "".join(
        each.read_text() for each in (SOURCE / "src").glob("*.ts*") if each.name != "chinese.ts"
    )
    table = dict(
        re.findall(
            r'^  (?:"((?:[^"])+)"|\w+): "([^"]+)",$',
            re.sub(
                r"^  (\w+): ", r'  "\1": ', (SOURCE / "src" / "chinese.ts").read_text(), flags=re.M
            ),
            re.MULTILINE,
        )
    )
    used = set(re.findall(r'\bt\("([^"]+)"', source))
    used |= {
        "idle",
        "busy",
        "asleep",
        "closed",
        "starting",
        "checking",
        "leased",
        "removing",
        "dead",
    }
    used |= {"low", "medium", "high", "critical"}
    assert len(used) > 150
    assert sorted(used - table.keys()) == []
    places = re.compile(r"\{\d\}")
    assert [
        t for t, c in table.items() if sorted(places.findall(t)) != sorted(places.findall(c))
    ] == []


def first_load(browser: Browser, console: Console) -> tuple[float, dict[str, int]]:
    """Load the page with an empty cache, up to the list of sessions.

    Returns:
        the milliseconds that it took, and the bytes of each file as they were sent.
    """
    got: list[Response] = []
    with browser.new_context() as context:
        context.add_init_script(f"sessionStorage['kernelbroker.token'] = '{console.alice}'")
        page = context.new_page()
        page.on("response", lambda answer: got.append(answer))
        page.goto(console.url, wait_until="commit")
        page.wait_for_selector(".link-state.open", state="attached", timeout=TIMEOUT_MS)
        page.wait_for_selector(".page :is(table, .empty)", timeout=TIMEOUT_MS)
        took = float(page.evaluate("performance.now()"))
        files = [each for each in got if "/api/" not in each.url]
        return took, {
            each.url.rpartition("/")[2]: each.request.sizes()["responseBodySize"] for each in files
        }


def test_the_first_load_is_small(console: Console, browser: Browser) -> None:
    """Until the sessions are shown, less than 300 kB come, compressed; editor, tables and plots later."""
    _, sizes = first_load(browser, console)
    assert {"console", "icon.svg"} & sizes.keys()
    assert 50_000 < sum(sizes.values()) < 300_000, sizes
    assert not [name for name in sizes if name.startswith(("editor", "table", "operator"))]


def test_the_first_load_takes_less_than_a_second(console: Console, browser: Browser) -> None:
    """The median of a few loads on loopback takes a second at most; longer if the machine is overloaded."""
    took = [first_load(browser, console)[0] for _ in range(5)]
    overload = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 3)
    assert statistics.median(took) < 1000 * overload, (took, overload)


def test_no_request_leaves_the_origin(console: Console, open_page: OpenPage) -> None:
    """Over all pages, the editor and a table, the browser asks only the broker, and looks no name up."""
    fill(console)
    page = open_page()
    asked: set[str] = set()
    page.context.on("request", lambda request: asked.add(request.url))
    for path in PAGES:
        page.goto(f"{console.url}#/{path}")
        page.locator("main :is(h1, .empty-title)").first.wait_for()
    page.goto(f"{console.url}#/sessions/shown")
    page.locator("button.entry", has_text="df").click()
    see(page, "[role=gridcell]")
    page.reload()
    see(page, ".cm-content")
    others = [u for u in asked if not u.startswith((console.broker.url, "data:", "blob:"))]
    assert others == []
    assert [url for url in asked if console.alice in url] == []
    assert f"{console.broker.url}/api/v1/tickets" in asked
    assert len([url for url in asked if "/console/assets/" in url]) > 5


def test_late_events_of_a_page_that_was_left(console: Console, open_page: OpenPage) -> None:
    """A browser reports scrolling with the next frame, when the element may be gone."""
    fill(console)
    page = open_page("#/sessions/shown")
    page.locator("button.entry", has_text="df").click()
    see(page, "[role=gridcell]")
    see(page, ".text.long")
    boxes = ".text.long, .stream, .grid"
    assert page.evaluate(f"(window.boxes = [...document.querySelectorAll('{boxes}')]).length") >= 3
    page.goto(f"{console.url}#/sessions")
    see(page, ".page table")
    late = "boxes.map(each => [each.isConnected, each.dispatchEvent(new Event('scroll'))])"
    assert [connected for connected, _ in page.evaluate(late)].count(True) == 0


@pytest.fixture(scope="module", autouse=True)
def nothing_waits_afterwards(console: Console) -> Iterator[None]:
    """The session that `fill` opens ends, and with it what waits there for a person."""
    yield
    console.call("DELETE", "/sessions/shown")


def fill(console: Console) -> None:
    """Show something on each page."""
    console.call("POST", "/sessions", {"session_id": "shown"})
    code = "import pandas as pd\ndf = pd.DataFrame({'a': [1]})\nprint('x' * 300)\nprint('y\\n' * 50)\ndf"
    console.call("POST", "/sessions/shown/exec", {"code": code})
    console.call("POST", "/sessions/shown/exec", {"code": "open('f.txt', 'w').write('x'); 1/0"})
    code = "for name in ('f.csv', 'f.html'): open(name, 'w').write('a,b\\n1,<b>2</b>\\n' * 9)"
    console.call("POST", "/sessions/shown/exec", {"code": code})
    console.call("POST", "/sessions/shown/contexts", {"context_id": "shown-too"})
    console.call("POST", "/sessions", {"session_id": "past"})
    console.call("POST", "/sessions/past/exec", {"code": "1"})
    console.call("DELETE", "/sessions/past")
    console.call("POST", "/sessions/shown/exec", {"code": RISKY})


AXE = """async () => (await axe.run(document, {resultTypes: ['violations'],
  runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice']})).violations
  .filter(each => ['serious', 'critical'].includes(each.impact))
  .map(each => [each.id, each.nodes.slice(0, 5)
    .map(node => node.html.slice(0, 160) + ' ' + node.failureSummary.slice(0, 300))])"""


def serious_faults(page: Page, axe: str) -> object:
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(axe)  # by the debugger, which no policy stops
    return page.evaluate(AXE)


def luminance(color: str) -> float:
    """Of `#rrggbb`, as WCAG 2 defines it."""
    parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_labels_have_enough_contrast() -> None:
    """Each colour is readable on its soft one (4.5 to 1), in both schemes."""
    styles = (SOURCE / "src" / "styles.css").read_text()
    schemes = re.findall(r"{[^}]*--ok-soft:[^}]*}", styles)
    assert len(schemes) == 2
    for scheme in schemes:
        colors = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", scheme))
        names = [name for name in colors if f"{name}-soft" in colors]
        assert len(names) == 5
        for name in names:
            dark, light = sorted(luminance(colors[each]) for each in (name, f"{name}-soft"))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (name, colors[name])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(
    console: Console, open_page: OpenPage, node_modules: Path, scheme: str
) -> None:
    """No page, dialog or tab has a serious or critical accessibility fault, in light and in dark."""
    axe = (node_modules / "axe-core" / "axe.min.js").read_text()
    fill(console)
    page = open_page(token="", color_scheme=scheme, reduced_motion="reduce")
    found = {"sign in": serious_faults(page, axe)}
    sign_in(page, console.alice)
    for path in PAGES:
        page.goto(f"{console.url}#/{path}")
        page.locator("main :is(h1, .empty-title)").first.wait_for()
        if path == "sessions/shown":
            see(page, ".line.traceback", "ZeroDivisionError")
            see(page, ".cm-content")
            for tab in ("Files", "About", "Variables"):
                page.get_by_role("tab", name=tab).click()
                found[tab] = serious_faults(page, axe)
            page.locator("button.entry", has_text="df").click()
            see(page, "[role=gridcell]")
            found["table"] = serious_faults(page, axe)
            page.keyboard.press("Escape")
            page.get_by_label("Kernel").select_option(label="New kernel…")
            found["new kernel"] = serious_faults(page, axe)
            page.keyboard.press("Escape")
            for name in ("f.csv", "f.html"):
                page.goto(f"{console.url}#/sessions/shown/files/{name}")
                page.locator("dialog .preview").wait_for()
                found[name] = serious_faults(page, axe)
                page.keyboard.press("Escape")
                page.locator("dialog").wait_for(state="detached")  # it changes the address
        if path == "sessions":
            page.get_by_role("button", name="New session").click()
            found["dialog"] = serious_faults(page, axe)
            page.keyboard.press("Escape")
        found[path] = serious_faults(page, axe)
    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("path", PAGES)
def test_a_narrow_phone(console: Console, open_page: OpenPage, path: str) -> None:
    """At 360 pixels nothing reaches beyond the edge of the screen, and all pages can be reached."""
    fill(console)
    page = open_page(f"#/{path}", viewport={"width": 360, "height": 740}, has_touch=True)
    page.locator("main :is(h1, .empty-title)").first.wait_for()
    if path == "sessions/shown":
        see(page, ".line.traceback", "ZeroDivisionError")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    wide = page.evaluate(
        """[...document.querySelectorAll('main > *, .page > *, .cell, .composer, .page-head > *')]
           .filter(each => each.getBoundingClientRect().right > 361).map(each => each.className)"""
    )
    assert wide == []
    expect(page.get_by_role("link", name="Sessions").first).to_be_visible(timeout=TIMEOUT_MS)
    links = page.locator(".nav-link:visible")
    expect(links).to_have_count(6, timeout=TIMEOUT_MS)
    assert links.evaluate_all("all => all.every(a => a.getBoundingClientRect().right <= 360)")
    if path == "sessions":
        page.get_by_role("button", name="More").click()
        see(page, "dialog dd", "alice")
        page.get_by_role("button", name="Sign out").click()
        see(page, "input[name=token]")


def test_everything_by_keyboard(console: Console, open_page: OpenPage) -> None:
    """Without a mouse: filter, open a session, run a cell, change the tab, leave; focus is seen."""
    fill(console)
    page = open_page()
    see(page, ".session-name", "shown")
    page.keyboard.press("/")
    page.keyboard.type("shown")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    name = page.get_by_role("link", name="shown", exact=True)
    expect(name).to_be_focused(timeout=TIMEOUT_MS)
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name="shown-too")).to_be_focused(timeout=TIMEOUT_MS)
    page.keyboard.press("ArrowUp")
    expect(name).to_be_focused(timeout=TIMEOUT_MS)
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid"
    page.keyboard.press("Enter")
    page.locator(".cm-content").wait_for()
    page.locator(".cm-content").focus()
    page.keyboard.type("print('typed')")
    page.keyboard.press("Shift+Enter")
    see(page, ".cell.ok .line", "typed")
    page.keyboard.press("Escape")
    page.get_by_role("tab", name="Variables").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Files")).to_be_focused(timeout=TIMEOUT_MS)
    see(page, ".entry", "f.txt")
    page.get_by_label("All sessions").focus()
    page.keyboard.press("Enter")
    see(page, "h1", "Sessions")


def test_chinese(console: Console, open_page: OpenPage) -> None:
    """A browser in Chinese gets Chinese, and the choice of a language is kept."""
    page = open_page(token="", locale="zh-CN")
    page.get_by_label("令牌").fill(console.alice)
    page.keyboard.press("Enter")
    see(page, "h1", "会话")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.get_by_role("button", name="English").click()
    see(page, "h1", "Sessions")
    page.reload()
    see(page, "h1", "Sessions")
    assert page.evaluate("document.documentElement.lang") == "en"
