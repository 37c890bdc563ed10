"""The browser in a session's sandbox: a real Chromium in a jail, and pages served inside the sandbox."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import kernelbroker
import kernelbroker.sync
import pytest
from kernelbroker import BrowserError

from tests.e2e.pages import SERVER, SITE
from tests.e2e.support import BrokerProcess, call, opened, until, whole_system
from tests.support.requires import requires

pytestmark = [*whole_system, requires("chromium")]

TEMPLATES = {
    "web": {"profile": "browser", "pool": {"min_size": 0, "max_size": 3}},
    "small": {"profile": "browser", "memory": "900MiB", "pool": {"min_size": 0}},
    "careful": {"profile": "browser", "policy": "confirm", "pool": {"min_size": 0}},
}


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        broker = BrokerProcess(
            directory,
            TEMPLATES=json.dumps(TEMPLATES),
            AUDIT_LOG=directory / "audit.log",
        )
        with broker.running():
            yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


@pytest.fixture
async def session(client: kernelbroker.Broker) -> AsyncIterator[kernelbroker.Session]:
    """One session for the tests of this module: the start of a browser takes seconds."""
    async with client.session("browsing", template="web", keep=True) as session:
        if not (await session.run("'server' in globals() or None")).outputs:
            assert (await session.run(SERVER)).success
        yield session


async def test_a_form_is_filled_and_sent(session: kernelbroker.Session) -> None:
    """A page is opened, its fields are filled in, and a click sends them."""
    browser = session.browser
    page = await browser.navigate(f"{SITE}/")
    assert (page.status, page.title, page.url) == (200, "Order", f"{SITE}/")
    assert page.screenshot is not None and page.screenshot.startswith(b"\xff\xd8")
    await browser.fill("#name", "Ada Lovelace")
    await browser.fill("[name=secret]", "hunter2")
    await browser.fill("[name=colour]", "blue")
    await browser.fill("[name=gift]", "true")
    sent = await browser.click("text=Send")
    assert sent.title == "Sent"
    expected = [("colour", "blue"), ("gift", "on"), ("name", "Ada Lovelace"), ("secret", "hunter2")]
    assert str(expected) in await browser.text()


async def test_a_picture_is_taken_of_a_page(session: kernelbroker.Session) -> None:
    """A screenshot is a PNG of the window, or of the whole page, of the current page or another one."""
    size = await _size(session, await session.browser.screenshot(f"{SITE}/long"))
    assert size == (1280, 800)
    width, height = await _size(session, await session.browser.screenshot(full_page=True))
    assert width >= 1200 and height >= 3000


async def _size(session: kernelbroker.Session, picture: bytes) -> tuple[int, int]:
    assert picture.startswith(b"\x89PNG")
    return int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])


async def test_text_has_what_a_person_sees(session: kernelbroker.Session) -> None:
    """Text comes with headings, links and fields, and without what is hidden."""
    await session.browser.navigate(f"{SITE}/")
    text = await session.browser.text()
    assert "# An order" in text and f"[Next page]({SITE}/next)" in text
    assert '[password "Password" selector=input[name="secret"]]' in text
    assert "unseen" not in text


async def test_scripts_return_values(session: kernelbroker.Session) -> None:
    """JavaScript sees the page; its errors are errors of the action."""
    browser = session.browser
    await browser.navigate(f"{SITE}/next")
    assert await browser.evaluate("document.title") == "Next"
    assert await browser.evaluate("() => ({a: [1, null], b: NaN > 1})") == {
        "a": [1, None],
        "b": False,
    }
    with pytest.raises(BrowserError, match="no such thing") as caught:
        await browser.evaluate("throw new Error('no such thing')")
    assert caught.value.code == "failed"
    with pytest.raises(BrowserError, match="return less"):
        await browser.evaluate("'x'.repeat(3000000)")


async def test_dialogs_are_answered_and_told(session: kernelbroker.Session) -> None:
    """Alerts are accepted, and questions dismissed, so that no page waits for ever."""
    await session.browser.navigate(f"{SITE}/dialogs")
    page = await session.browser.click("#ask")
    answers = [(each["type"], each["message"], each["answer"]) for each in page.dialogs]
    assert answers == [
        ("alert", "hello", "accepted"),
        ("confirm", "sure?", "dismissed"),
        ("prompt", "name?", "dismissed"),
    ]
    assert page.title == "falsenull"


async def test_a_new_window_becomes_the_current_one(session: kernelbroker.Session) -> None:
    """A window that a page opens is the current one, until it is closed; there are a few at most."""
    await session.browser.navigate(f"{SITE}/windows")
    page = await session.browser.click("#open")
    assert (page.title, page.windows) == ("Next", [f"{SITE}/windows", f"{SITE}/next"])
    await session.browser.evaluate("window.close()")
    assert await session.browser.evaluate("document.title") == "First"
    many = await session.browser.click("#many")
    assert 1 < len(many.windows) <= 8
    await session.browser.close()


async def test_a_download_lands_in_the_workspace(session: kernelbroker.Session) -> None:
    """What a page sends is saved in the workspace under a safe name, or where the caller wants it."""
    browser = session.browser
    await browser.navigate(f"{SITE}/files")
    assert await browser.download(selector="#file") == "downloads/data.csv"
    assert await session.files.read("downloads/data.csv") == b"a,b\n1,2\n"
    assert (
        await browser.download(url=f"{SITE}/data.csv", path="tables/mine.csv") == "tables/mine.csv"
    )
    assert await session.files.read("tables/mine.csv") == b"a,b\n1,2\n"
    page = await browser.click("#file")
    assert [each["path"] for each in page.downloads] == ["downloads/data-2.csv"]
    saved = await browser.download(url=f"{SITE}/next")
    assert b"The next page" in await session.files.read(saved)
    with pytest.raises(BrowserError, match="url of the file, or the selector"):
        await browser.download()
    with pytest.raises(BrowserError) as caught:
        await browser.download(url=f"{SITE}/data.csv", path="../outside.csv")
    assert caught.value.code == "bad_request"


async def test_a_page_that_hangs_ends_by_its_timeout(session: kernelbroker.Session) -> None:
    """A page that never answers, and one that computes for ever, time out; the next action works."""
    browser = session.browser
    await browser.navigate(f"{SITE}/next")
    with pytest.raises(BrowserError) as caught:
        await browser.navigate(f"{SITE}/hangs", timeout=1)
    assert caught.value.code == "timeout"
    assert await browser.evaluate("document.title") == "Next"
    with pytest.raises(BrowserError) as caught:
        await browser.evaluate("while (true) {}", timeout=1)
    assert caught.value.code == "timeout"
    assert await browser.evaluate("document.title") == "Next"


async def test_a_page_opens_after_one_that_could_not(session: kernelbroker.Session) -> None:
    """A failed navigation is told, and the next one succeeds, however soon it comes."""
    for _ in range(6):
        with pytest.raises(BrowserError, match="ERR_CONNECTION_REFUSED"):
            await session.browser.navigate("http://127.0.0.1:4444/")
        opened = await session.browser.navigate(f"{SITE}/next")
        assert opened.title == "Next"


@pytest.mark.parametrize(
    ("action", "given"),
    [
        ("navigate", {"url": f"{SITE}/hangs"}),
        ("click", {"selector": "#nowhere"}),
        ("click", {"selector": "#covered"}),
        ("fill", {"selector": "#covered", "value": "x"}),
        ("evaluate", {"script": "while (true) {}"}),
        ("download", {"url": f"{SITE}/hangs"}),
    ],
)
async def test_an_answer_comes_in_time(
    session: kernelbroker.Session, action: str, given: dict[str, str]
) -> None:
    """Whatever hangs, an action takes as long as its timeout, and the next one works."""
    browser = session.browser
    await browser.navigate(f"{SITE}/next")
    covered = "<input id=covered disabled style='pointer-events: none'>"
    await browser.evaluate(f"document.body.innerHTML = {covered!r}")
    began = time.monotonic()
    with pytest.raises(BrowserError):
        await getattr(browser, action)(**given, timeout=1.5)
    assert time.monotonic() - began < 2.5
    assert (await browser.navigate(f"{SITE}/next")).title == "Next"


async def test_elements_in_frames_are_found(session: kernelbroker.Session) -> None:
    """What a frame shows is read, and its fields are filled in, as a person would."""
    browser = session.browser
    await browser.navigate(f"{SITE}/next")
    await browser.evaluate("document.body.innerHTML = '<p>Above</p><iframe src=\"/\"></iframe>'")
    await browser.fill("#name", "Grace")
    text = await browser.text()
    assert "Above" in text and "# An order" in text and 'value="Grace"' in text
    assert text.index("Above") < text.index(f"[frame {SITE}/]") < text.index("# An order")
    await browser.click("text=Send")
    assert "Grace" in await browser.text()
    assert (await browser.evaluate("location.pathname")) == "/next"


@pytest.mark.parametrize("style", ["", "display: none", "opacity: 0; width: 0; position: absolute"])
async def test_a_checkbox_is_set(session: kernelbroker.Session, style: str) -> None:
    """By a text or a truth value, also one that is hidden behind a picture of its own."""
    browser = session.browser
    await browser.navigate(f"{SITE}/next")
    box = f"<label><input id=box type=checkbox style='{style}'>Agree</label>"
    await browser.evaluate(f"document.body.innerHTML = {box!r}")
    for value, expected in [
        (True, True),
        ("true", True),
        (False, False),
        ("on", True),
        ("no", False),
    ]:
        await browser.fill("#box", value)
        assert await browser.evaluate("document.querySelector('#box').checked") is expected


async def test_a_download_needs_no_window(client: kernelbroker.Broker) -> None:
    """With as many windows as there may be, files are still downloaded."""
    async with client.session(template="web") as session:
        assert (await session.run(SERVER)).success
        browser = session.browser
        await browser.navigate(f"{SITE}/next")
        for _ in range(9):
            await browser.evaluate("window.open('/next') && null")
        page = await browser.navigate(f"{SITE}/")
        assert len(page.windows) == 8
        path = await browser.download(f"{SITE}/data.csv")
        assert await session.files.read(path) == b"a,b\n1,2\n"
        again = await browser.navigate(f"{SITE}/next")
        assert (again.title, len(again.windows)) == ("Next", 8)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_page_without_memory(client: kernelbroker.Broker, times: int) -> None:
    """After a page has taken all memory, the next one opens and stays."""
    hog = "const held = []; while (true) held.push(new Uint8Array(1 << 24).fill(1))"
    async with client.session(template="small") as session:
        assert (await session.run(SERVER)).success
        browser = session.browser
        for _ in range(times):
            await browser.navigate(f"{SITE}/")
            with pytest.raises(BrowserError) as caught:
                await browser.evaluate(hog, timeout=60)
            assert caught.value.code in ("crashed", "failed"), caught.value
            page = await browser.navigate(f"{SITE}/next")
            assert page.title == "Next"
            await asyncio.sleep(1)
            assert await browser.evaluate("document.title") == "Next"


async def test_an_interrupt_ends_an_action(session: kernelbroker.Session) -> None:
    """An action is an execution: the session's interrupt ends it, and the next one works."""
    await session.browser.navigate(f"{SITE}/next")
    hanging = asyncio.create_task(session.browser.navigate(f"{SITE}/hangs"))
    await until(lambda: _is_running(session))
    await session.interrupt()
    with pytest.raises(BrowserError) as caught:
        await hanging
    assert caught.value.code == "interrupted"
    assert await session.browser.evaluate("1 + 1") == 2


async def _is_running(session: kernelbroker.Session) -> bool:
    return any(each.state == "running" for each in await session.executions())


KILL = """
import os, signal, time
from pathlib import Path
for each in Path("/proc").glob("[0-9]*/cmdline"):
    line = each.read_bytes()
    if b"--remote-debugging-port" in line and b"--type=" not in line:
        os.kill(int(each.parent.name), signal.SIGKILL)
        while each.exists() and each.read_bytes():  # until it has no sockets any more
            time.sleep(0.01)
"""


async def test_a_crash_of_the_browser_is_told(session: kernelbroker.Session) -> None:
    """After a crash the next action starts another browser, and says that the windows are lost."""
    await session.browser.navigate(f"{SITE}/next")
    assert (await session.run(KILL)).success
    page = await session.browser.navigate(f"{SITE}/")
    assert page.restarted and page.title == "Order"
    assert not (await session.browser.navigate(f"{SITE}/next")).restarted
    # The process that drives it dies, too.
    assert (await session.run(KILL.replace("--remote-debugging-port", "browser.server"))).success
    assert (await session.browser.navigate(f"{SITE}/")).restarted


async def test_a_cell_uses_the_same_page(session: kernelbroker.Session) -> None:
    """Cells act in the window that the session's actions use, by the helper and by Playwright."""
    await session.browser.navigate(f"{SITE}/")
    result = await session.run(
        "from kernelbroker_kernel import browser\n"
        "browser.fill('#name', 'from a cell')\n"
        "page = await browser.page()\n"
        "print(await page.title(), await page.input_value('#name'))\n"
        "browser.screenshot()"
    )
    assert (result.stdout, result.error) == ("Order from a cell\n", None)
    assert [each.mime for each in result.images] == ["image/png"]
    assert await session.browser.evaluate("document.querySelector('#name').value") == "from a cell"
    failed = await session.run("browser.click('#nothing', timeout=0.2)")
    assert failed.error == "BrowserError: the page has no element '#nothing'"


GARBAGE = [
    ("browser_navigate", {}, "the parameter 'url' is missing"),
    ("browser_navigate", {"url": 7}, "url must be a text"),
    ("browser_navigate", {"url": "javascript:alert(1)"}, "an address begins with"),
    ("browser_navigate", {"url": "x", "nonsense": 1}, "there is no parameter 'nonsense'"),
    ("browser_click", {"selector": None}, "selector must be a text"),
    ("browser_click", {"selector": "###", "timeout": 1}, "Unexpected token"),
    ("browser_click", {"selector": "#none", "timeout": 0.2}, "the page has no element"),
    ("browser_fill", {"selector": "#name"}, "the parameter 'value' is missing"),
    ("browser_screenshot", {"full_page": "yes"}, "full_page must be true or false"),
    ("browser_navigate", {"url": "http://127.0.0.1:9", "timeout": 5}, "ERR_"),
]


@pytest.mark.parametrize(("name", "parameters", "message"), GARBAGE)
async def test_invalid_parameters_are_refused(
    broker: BrokerProcess,
    session: kernelbroker.Session,
    name: str,
    parameters: dict[str, object],
    message: str,
) -> None:
    """An action that is not valid is an answer with its reason."""
    path = f"/api/v1/sessions/{session.session_id}/operations/{name}"
    status, answer = await call(broker, "POST", path, parameters, accept="application/json")
    assert (status, answer["success"]) == (200, False)
    assert message in answer["error"]


async def test_the_broker_refuses_what_is_no_action(
    broker: BrokerProcess, client: kernelbroker.Broker, session: kernelbroker.Session
) -> None:
    """Unknown actions, timeouts that are no numbers, and templates without a browser are refused."""
    path = f"/api/v1/sessions/{session.session_id}/operations"
    assert (await call(broker, "POST", f"{path}/browser_fly", {}))[0] == 404
    for timeout in ("soon", -1, 0):
        body = {"url": SITE, "timeout": timeout}
        assert (await call(broker, "POST", f"{path}/browser_navigate", body))[0] == 400
    async with client.session() as plain:
        with pytest.raises(kernelbroker.Conflict, match="has no browser"):
            await plain.browser.navigate(SITE)


async def test_rest_has_the_picture_and_the_events(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """The answer in JSON has a picture; the execution's events are kept with theirs."""
    path = f"/api/v1/sessions/{session.session_id}"
    body = {"url": f"{SITE}/next"}
    status, answer = await call(
        broker, "POST", f"{path}/operations/browser_navigate", body, accept="application/json"
    )
    assert (status, answer["result"]["title"]) == (200, "Next")
    assert base64.b64decode(answer["screenshot"]).startswith(b"\xff\xd8")
    status, kept = await call(broker, "GET", f"{path}/executions/{answer['execution_id']}")
    assert status == 200 and kept["code"] == f"browser navigate url={SITE}/next"
    events = f"{path}/executions/{answer['execution_id']}/events"
    async with opened(broker, "GET", events, accept="application/x-ndjson") as response:
        kinds = [json.loads(line) for line in (await response.rest()).splitlines()]
    assert [each["type"] for each in kinds] == ["started", "image", "result"]
    assert kinds[1]["mime"] == "image/jpeg"


async def test_actions_are_judged_and_audited(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """An action that speaks of a password waits for a confirmation, which is good for this very action.

    What is filled in is neither in the history nor in the audit log.
    """
    async with client.session(template="careful") as session:
        browser = session.browser
        await browser.navigate("data:text/html,<input type=text id=word>")
        word = "'pass' + 'word'"
        await browser.evaluate(
            f"Object.assign(document.querySelector('input'), {{type: {word}, id: {word}}}).id"
        )
        with pytest.raises(kernelbroker.ConfirmationRequired, match="password") as caught:
            await browser.fill("#password", "correct horse")
        token = caught.value.confirmation
        with pytest.raises(kernelbroker.ConfirmationRequired):
            await browser.fill("#password", "another value", confirm=token)
        with pytest.raises(kernelbroker.ConfirmationRequired) as caught:
            await browser.fill("#password", "correct horse")
        await browser.fill("#password", "correct horse", confirm=caught.value.confirmation)
        assert await browser.evaluate("document.querySelector('input').value") == "correct horse"
        path = f"/api/v1/sessions/{session.session_id}/executions"
        _, listed = await call(broker, "GET", path)
        kept = [
            (await call(broker, "GET", f"{path}/{each['execution_id']}"))[1]
            for each in listed["executions"]
        ]
        codes = [each["code"] for each in kept]
        assert "browser fill 'selector=#password' 'value=[withheld]'" in codes
        assert "correct horse" not in json.dumps(kept[:-1])  # the last one has read it
    log = (broker.data_dir.parent / "audit.log").read_text()
    records = [json.loads(line) for line in log.splitlines()]
    found = [
        (each["operation"], each["path"], each["outcome"])
        for each in records
        if each["event"] == "operation" and each["path"] == "#password"
    ]
    assert found[-1] == ("browser_fill", "#password", "queued")
    assert ("browser_fill", "#password", "confirmation_required") in found
    assert "correct horse" not in log


async def test_a_person_confirms_an_action(broker: BrokerProcess) -> None:
    """A person who approves an action that waits lets the action itself run, not its text as code."""
    status, _ = await call(
        broker, "POST", "/api/v1/sessions", {"session_id": "asks", "template": "careful"}
    )
    assert status in (200, 201)
    path = "/api/v1/sessions/asks/operations/browser_navigate"
    body = {"url": "data:text/html,<title>pay</title>"}
    status, refused = await call(broker, "POST", path, body)
    assert refused["error"]["code"] == "confirmation_required"
    _, waiting = await call(broker, "GET", "/api/v1/confirmations")
    (asked,) = waiting["confirmations"]
    status, answer = await call(
        broker, "POST", f"/api/v1/confirmations/{asked['confirmation_id']}", {"answer": "approve"}
    )
    assert status == 200, answer
    path = f"/api/v1/sessions/asks/executions/{answer['execution']['execution_id']}"

    async def result() -> dict[str, Any] | None:
        return (await call(broker, "GET", path))[1].get("result")

    found = await until(result)
    assert found["return_value"]["result"]["title"] == "pay"
    assert (await call(broker, "DELETE", "/api/v1/sessions/asks"))[0] == 204


async def test_a_routed_session_moves_to_a_browser(client: kernelbroker.Broker) -> None:
    """In a session with the template `auto`, an action moves the session to a sandbox with a browser."""
    async with client.session(template="auto") as session:
        await session.run("answer = 42; _ = open('kept.txt', 'w').write('kept')")
        assert session.info is not None
        page = await session.browser.navigate("data:text/html,<title>routed</title>")
        assert page.title == "routed"
        assert await session.files.read("kept.txt") == b"kept"
        after = await session.run("answer")
        assert (after.template, after.sandbox) == ("web", "aio_sandbox")
        assert after.success


def test_without_await(broker: BrokerProcess) -> None:
    """The synchronous SDK has the same browser."""
    with (
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        client.session("browsing", template="web", keep=True) as session,
    ):
        page = session.browser.navigate("data:text/html,<title>sync</title><p>words")
        assert page.title == "sync"
        assert session.browser.text() == "words"
        session.browser.close()
