"""Sessions that have ended, sleep or move, further kernels of a session, its files, and its project."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import expect

from tests.e2e.support import whole_system

from .conftest import TIMEOUT_MS, Console, OpenPage, running_console
from .test_watching import RISKY, see

pytestmark = whole_system

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FILES = {
    "table.csv": b'name,amount\n"Smith, Ann",10\n"says ""hi""",2\n' + b"more,1\n" * 3000,
    "tabs.tsv": b"a\tb\n1\t2\n",
    "page.html": b"<h1>A report</h1><script>document.title = 'hacked'; parent.hacked = 1</script>",
    "code.py": b"def f():\n    return 1  # note\n",
    "notes.txt": b"plain <b>text</b>",
    "empty.csv": b"",
    "binary.bin": b"\0\1\2",
    "picture.png": base64.b64decode(PIXEL),
}
TESTS = "def test_good():\n    pass\n\n\ndef test_bad():\n    assert 1 == 2\n"


def test_sessions_that_have_ended(console: Console, open_page: OpenPage) -> None:
    """Ended sessions are found by name, code or person, a page at a time, and are read as before."""
    for name in ("ended-1", "ended-2"):
        with console.session(name) as session:
            session.run(f"print('output of {name}')")
    path = "/ended-sessions?text=OUTPUT+OF+ended&limit=1"
    _, first = console.call("GET", path)
    _, second = console.call("GET", f"{path}&before={quote(first['next'])}")
    found = [each["session_id"] for each in (*first["sessions"], *second["sessions"])]
    assert found == ["ended-2", "ended-1"]
    latest = first["sessions"][0]
    assert (latest["client"], latest["user"], latest["executions"]) == ("sdk", "alice", 1)
    assert latest["last_execution"]["success"] is True
    assert latest["reason"]
    assert latest["ended_at"] > latest["created_at"]
    _, others = console.call("GET", "/ended-sessions?text=ended-1", token=console.stranger)
    assert others == {"sessions": [], "next": None}
    for query in ("limit=0", "limit=x", "before=x", "before=1-", f"text={'x' * 201}"):
        assert console.call("GET", f"/ended-sessions?{query}")[0] == 400, query

    page = open_page("#/sessions", token=console.bob)
    page.get_by_role("link", name="Ended").click()
    page.get_by_label("Filter sessions").fill("ended-1")
    row = page.locator("tbody tr")
    expect(row).to_have_count(1, timeout=TIMEOUT_MS)
    for text in ("ended-1", "print('output of ended-1')", "SDK", "alice", latest["reason"]):
        expect(row).to_contain_text(text)
    page.get_by_role("link", name="ended-1").click()
    see(page, ".note.ended", "The session has ended.")
    see(page, ".cell.ok .line", "output of ended-1")
    page.go_back()
    page.get_by_label("Filter sessions").fill("nothing has this")
    see(page, ".empty-title", "No session matches")


def test_a_session_that_is_closed_appears_among_the_ended(
    console: Console, open_page: OpenPage
) -> None:
    """The list of ended sessions shows a session as soon as it has ended, without a reload."""
    with console.session("closes-now"):
        page = open_page("#/ended")
        page.get_by_label("Filter sessions").fill("closes-now")
        see(page, ".empty-title", "No session matches")
    expect(page.locator("tbody tr")).to_contain_text("closes-now", timeout=TIMEOUT_MS)


def test_cells_of_further_kernels(console: Console, open_page: OpenPage) -> None:
    """The editor opens a second kernel of a session, and runs cells in the one that is chosen."""
    with console.session("kernels") as session:
        session.run("where = 'main'; open('shared', 'w').write('seen by both')")
        page = open_page("#/sessions/kernels", token=console.bob)
        page.locator(".cm-content").click()
        page.keyboard.insert_text("print(open('shared').read(), 'where' in globals())")
        page.get_by_label("Kernel").select_option(label="New kernel…")
        page.get_by_label("Name").fill("second")
        page.locator("dialog").get_by_role("button", name="Open").click()
        see(page, "h1", "second")
        see(page, "a.tag", "context of kernels")
        expect(page.locator(".cm-content")).to_contain_text("shared", timeout=TIMEOUT_MS)
        page.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        see(page, ".cell.ok .line", "seen by both False")
        page.get_by_label("Kernel").select_option(label="main kernel")
        see(page, "h1", "kernels")
        see(page, ".code", "where = 'main'")
        expect(page.get_by_label("Kernel").locator("option")).to_have_text(
            ["main kernel", "second", "New kernel…"]
        )
        page.goto(f"{console.url}#/sessions")
        row = page.locator("tr.context", has_text="second")
        for text in ("Console", "bob", "idle"):
            expect(row).to_contain_text(text, timeout=TIMEOUT_MS)
        page.goto(f"{console.url}#/sessions/second")
        page.get_by_role("button", name="Close the session").click()
        page.locator("dialog").get_by_role("button", name="Close the session").last.click()
        see(page, "h1", "kernels")
        assert console.call("GET", "/sessions/kernels")[1]["contexts"] == 0


def test_previews_of_files(console: Console, open_page: OpenPage) -> None:
    """Tables, pages, pictures, code and text are shown each as what they are; a page runs no script."""
    with console.session("previews") as session:
        for name, data in FILES.items():
            session.files.write(name, data)
        refused = ("Content Security Policy", "416")  # the script, and the range of an empty file
        page = open_page("#/sessions/previews/files/table.csv", expected=refused)
        grid = page.get_by_role("grid", name="table.csv")
        for text in ("Smith, Ann", 'says "hi"', "10"):
            expect(grid.get_by_role("gridcell", name=text, exact=True)).to_be_visible(
                timeout=TIMEOUT_MS
            )
        expect(grid.get_by_role("columnheader")).to_have_text(["#", "name", "amount"])
        assert page.locator(".grid-row").count() < 80
        see(page, "dialog", "3,002 rows, 2 columns")
        page.get_by_role("button", name="Source").click()
        see(page, "dialog .line", '"Smith, Ann",10')

        def show(name: str) -> None:
            page.goto(f"{console.url}#/sessions/previews/files/{name}")
            see(page, "dialog h2", name)

        show("tabs.tsv")
        see(page, "[role=gridcell]", "2")
        show("page.html")
        frame = page.frame_locator("dialog iframe")
        expect(frame.locator("h1")).to_have_text("A report", timeout=TIMEOUT_MS)
        see(page, ".output-foot", "Scripts of this output are off.")
        assert page.evaluate("[window.hacked, document.title.includes('hacked')]") == [None, False]
        page.get_by_role("button", name="Source").click()
        see(page, "dialog .line", "<h1>A report</h1>")
        show("code.py")
        see(page, "dialog .tok-keyword", "def")
        show("notes.txt")
        see(page, "dialog .line", "plain <b>text</b>")
        show("empty.csv")
        page.locator("dialog .preview").wait_for()
        show("binary.bin")
        see(page, "dialog .empty-title", "not a text file")
        show("picture.png")
        picture = page.locator("dialog img")
        picture.wait_for()
        assert picture.evaluate("each => each.decode().then(() => each.naturalWidth)") == 1


def test_operations_on_a_project(console: Console, open_page: OpenPage, tmp_path: Path) -> None:
    """Tests of a project are a cell with the operation's name, its numbers and the tests that failed."""
    (tmp_path / "test_it.py").write_text(TESTS)
    with console.session("project") as session:
        session.code.upload(tmp_path)
        page = open_page("#/sessions/project")
        assert not session.code.run_tests().success
        see(page, ".cell .operation", "run_tests")
        expect(page.locator(".outcome")).to_have_text(["1 passed", "1 failed"], timeout=TIMEOUT_MS)
        see(page, ".failed-test", "test_bad")
        assert session.code.run("echo from a command").success
        see(page, ".cell .operation", "run")
        see(page, ".cell .line", "from a command")


def test_a_session_that_moves(console: Console, open_page: OpenPage) -> None:
    """A session that was moved to a stronger sandbox says so at the cell, with what it left behind."""
    with console.connect() as broker, broker.session("moves", template="auto") as session:
        session.run("kept = 1; lost = (each for each in [1])")
        risky = {"code": f"{RISKY} if False else kept"}
        _, refusal = console.call("POST", "/sessions/moves/exec", risky)
        confirmed = {**risky, "confirm": refusal["error"]["confirmation"]}
        status, found = console.call("POST", "/sessions/moves/exec", confirmed)
        assert status == 200, found
        page = open_page("#/sessions/moves")
        see(page, ".note", "Moved from default to strict")
        see(page, ".note", "lost")
        see(page, ".tag", "auto → strict")


def test_a_session_that_sleeps(open_page: OpenPage) -> None:
    """Looking at a session that sleeps does not wake it; a cell does, and finds its variables."""
    with running_console(SESSIONS__CHECKPOINT="on_idle", SESSIONS__SLEEP_AFTER=0.3) as own:
        own.call("POST", "/sessions", {"session_id": "sleeper"})
        own.call("POST", "/sessions/sleeper/exec", {"code": "rest = 'was kept'"})
        ending = ("ERR_", "WebSocket", "503")
        page = open_page("#/sessions/sleeper", url=own.url, token=own.alice, expected=ending)
        see(page, ".session .state", "asleep")
        see(page, ".note.asleep", "The next cell wakes it")
        page.get_by_role("tab", name="Files").click()
        see(page, ".empty-title", "The session sleeps")
        page.get_by_role("tab", name="About").click()
        see(page, ".about", "REST · alice")
        assert own.call("GET", "/sessions/sleeper")[1]["state"] == "asleep"
        page.locator(".cm-content").click()
        page.keyboard.insert_text("print(rest)")
        page.keyboard.press("Shift+Enter")
        see(page, ".cell.ok .line", "was kept")


def test_nothing_is_served_if_it_is_off() -> None:
    """With `console = false` its paths are unknown, and the API goes on."""
    with running_console(CONSOLE="false") as own:
        for path in ("/console", "/console/", "/console/frame", "/console/assets/icon.svg"):
            status, _ = own.get(path)
            assert status in (401, 404), path
            assert own.get(path, token=own.alice)[0] == 404, path
        assert own.call("GET", "/me")[0] == 200
