"""People watch agents: sessions, executions and their output appear as they happen."""

from __future__ import annotations

import json
import re
import signal
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.support import whole_system

from .conftest import TIMEOUT_MS, Console, OpenPage, running_console, sign_in

pytestmark = whole_system

WAIT_FOR_FILE = "import os, time\nwhile not os.path.exists('/data/go'): time.sleep(0.02)\n"


def see(page: Page, selector: str, text: str | re.Pattern[str] | None = None) -> None:
    """Wait until an element with this text is visible."""
    found = page.locator(selector, has_text=text) if text else page.locator(selector)
    expect(found.first).to_be_visible(timeout=TIMEOUT_MS)


def go_on(console: Console, session_id: str) -> None:
    """Let the cell end that waits for the file."""
    status, _ = console.call("PUT", f"/sessions/{session_id}/files/go", "x")
    assert status == 204


def test_the_token_is_kept_for_the_tab_alone(console: Console, open_page: OpenPage) -> None:
    """A wrong token is refused; the right one survives a reload, and is in no other tab and no cookie."""
    page = open_page(token="", expected=("401",))
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    see(page, "[role=alert]", "not valid")
    sign_in(page, console.alice)
    see(page, "h1", "Sessions")
    page.reload()
    see(page, "h1", "Sessions")
    assert page.evaluate("sessionStorage.length") == 1
    page.evaluate("sessionStorage.setItem('kernelbroker.token', 'one that is no longer valid')")
    page.reload()
    see(page, "[role=alert]", "no longer valid")
    sign_in(page, console.alice)
    see(page, "h1", "Sessions")
    assert console.alice not in page.evaluate("JSON.stringify(localStorage)")
    assert page.context.cookies() == []
    other = page.context.new_page()
    other.goto(console.url)
    see(other, "input[name=token]")
    page.get_by_label("Sign out").click()
    see(page, "input[name=token]")
    assert page.evaluate("sessionStorage.length") == 0


def test_sessions_of_all_clients_appear_at_once(console: Console, open_page: OpenPage) -> None:
    """A session appears when a client opens it, with what ran last, by whom, through which client."""
    page = open_page(token=console.bob)
    with console.session("by-sdk") as session:
        session.run("answer = 42")
        row = page.locator("tr", has_text="by-sdk")
        for text in ("SDK", "alice", "answer = 42", "idle", "MB"):
            expect(row).to_contain_text(text, timeout=TIMEOUT_MS)
        console.call("POST", "/sessions", {"session_id": "by-rest"}, token=console.bob)
        console.call("POST", "/sessions/by-rest/exec", {"code": "1"}, token=console.bob)
        expect(page.locator("tr", has_text="by-rest")).to_contain_text("REST", timeout=TIMEOUT_MS)
        page.get_by_label("Filter sessions").fill("by-rest")
        expect(row).to_have_count(0, timeout=TIMEOUT_MS)
        page.get_by_label("Filter sessions").fill("")
    expect(row).to_have_count(0, timeout=TIMEOUT_MS)
    stranger = open_page(token=console.stranger)
    see(stranger, ".empty-title", "No session is open")
    assert console.call("DELETE", "/sessions/by-rest")[0] == 204


def test_output_is_seen_while_the_cell_runs_and_by_two_people(
    console: Console, open_page: OpenPage
) -> None:
    """Code and output appear while the cell runs; two people see the same; a reload changes nothing."""
    with console.session("streamed") as session:
        session.run("import sys")
        pages = [
            open_page("#/sessions/streamed", token=each) for each in (console.alice, console.bob)
        ]
        code = f"print('begins', flush=True)\n{WAIT_FOR_FILE}print('ends')\n'the value'"
        status, _ = console.call("POST", "/sessions/streamed/executions", {"code": code})
        assert status == 202
        for page in pages:
            see(page, ".cell.running .line", "begins")
            see(page, ".session .state", "busy")
            assert "ends" not in page.locator(".output").last.inner_text()
        pages[1].reload()
        see(pages[1], ".cell.running .line", "begins")
        go_on(console, "streamed")
        for page in pages:
            see(page, ".cell.ok .line.value", "the value")
        seen = [page.locator(".cell").last.inner_text() for page in pages]
        assert "begins\nends" in seen[0]
        assert re.sub(r"\d+ m?s", "", seen[0]) == re.sub(r"\d+ m?s", "", seen[1])


def test_each_kind_of_output(console: Console, open_page: OpenPage) -> None:
    """Text with colours, progress bars, stderr, errors, plots, tables and changed files are shown."""
    with console.session("kinds") as session:
        session.run(
            "print('\\x1b[31mred\\x1b[0m plain'); import sys; print('bad', file=sys.stderr)"
        )
        session.run("for i in range(101): print(f'\\r{i}%', end='')")
        session.run("import pandas as pd; pd.DataFrame({'city': ['Oslo']})")
        session.run("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
        session.run("open('made.txt', 'w').write('x'); 1/0")
        page = open_page("#/sessions/kinds")
        see(page, ".chip", "made.txt")
        page.evaluate("document.querySelector('.stream').scrollTop = 0")
        see(page, ".ansi-red-fg", "red")
        see(page, ".line.stderr", "bad")
        progress = page.locator(".cell").nth(1).locator(".line")
        expect(progress).to_have_text(["100%"], timeout=TIMEOUT_MS)
        frame = page.frame_locator("iframe").first
        expect(frame.locator("td")).to_have_text(["Oslo"], timeout=TIMEOUT_MS)
        picture = page.locator("img.output-image")
        expect(picture).to_be_visible(timeout=TIMEOUT_MS)
        assert picture.evaluate("each => each.naturalWidth") > 100
        see(page, ".line.traceback", "ZeroDivisionError")
        see(page, ".chip", "made.txt")


def test_links_lead_to_an_execution_and_a_file(console: Console, open_page: OpenPage) -> None:
    """The links that are copied open the same execution and file for somebody else of the tenant."""
    with console.session("linked") as session:
        for number in range(12):
            session.run(f"print('cell {number}\\n' * 20)")
        session.run("open('notes.txt', 'w').write('hello\\nfile')")
        page = open_page("#/sessions/linked")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator(".cell").nth(3).get_by_label("Copy a link to this cell").click()
        see(page, ".toast", "copied")
        link = page.evaluate("navigator.clipboard.readText()")
        other = open_page(link.removeprefix(console.url), token=console.bob)
        see(other, ".cell.target .line", "cell 3")
        expect(other.locator(".cell.target")).to_be_in_viewport(timeout=TIMEOUT_MS)
        page.locator(".chip", has_text="notes.txt").click()
        see(page, "dialog .line", "hello")
        shared = page.url.removeprefix(console.url)
        see(open_page(shared, token=console.bob), "dialog .line", "hello")
        stranger = open_page(shared, token=console.stranger)
        see(stranger, ".empty-title", "There is no such session")


def test_running_ones_own_code(console: Console, open_page: OpenPage) -> None:
    """The editor completes names of the session, runs cells by keyboard, and answers `input()`."""
    with console.session("edited") as session:
        session.run("customers = {'first': 1}")
        page = open_page("#/sessions/edited", token=console.bob)
        page.locator(".cm-content").click()
        page.keyboard.type("custom")
        page.locator(".cm-tooltip-autocomplete li", has_text="customers").click()
        expect(page.locator(".cm-content")).to_have_text("customers", timeout=TIMEOUT_MS)
        page.keyboard.type("['first'] + int(input('how many?'))")
        page.keyboard.press("Shift+Enter")
        page.get_by_label("how many?").fill("41")
        page.keyboard.press("Enter")
        see(page, ".cell.ok .line.value", "42")
        see(page, ".note.asked", "how many?")
        last = page.locator(".cell").last
        expect(last).to_contain_text("Console")
        expect(last).to_contain_text("bob")
        page.get_by_label("Language").select_option("shell")
        page.locator(".cm-content").click()
        page.keyboard.type("echo from $0")
        page.keyboard.press("Control+Enter")
        see(page, ".cell.ok .line", "from ")


def test_files(console: Console, open_page: OpenPage, tmp_path: Path) -> None:
    """Files are uploaded, also by dropping them, and are shown, downloaded and deleted."""
    with console.session("filed"):
        page = open_page("#/sessions/filed")
        page.get_by_role("tab", name="Files").click()
        see(page, ".empty-title", "No files")
        file = tmp_path / "a b#.csv"
        file.write_text("x,y\n1,2\n")
        page.get_by_label("Files to upload").set_input_files(file)
        see(page, ".entry", "a b#.csv")
        page.evaluate(
            """() => {
              const data = new DataTransfer();
              data.items.add(new File(['dropped text'], 'dropped.txt'));
              const drop = new DragEvent('drop', {dataTransfer: data, bubbles: true});
              document.querySelector('.files').dispatchEvent(drop);
            }"""
        )
        page.locator(".entry", has_text="dropped.txt").click()
        see(page, "dialog .line", "dropped text")
        page.keyboard.press("Escape")
        with page.expect_download() as download:
            page.get_by_label("Download a b#.csv").click()
        assert Path(download.value.path()).read_text() == "x,y\n1,2\n"
        page.get_by_label("Delete a b#.csv").click()
        page.get_by_role("button", name="Delete", exact=True).click()
        expect(page.locator(".entry")).to_have_text(["dropped.txt"], timeout=TIMEOUT_MS)


def test_a_table_of_five_million_rows_scrolls(console: Console, open_page: OpenPage) -> None:
    """A table opens at once, and any of its rows is shown, from the first to the last."""
    with console.session("tabled") as session:
        session.run(
            "import numpy as np, pandas as pd\n"
            "big = pd.DataFrame({'id': np.arange(5_000_000), 'day': pd.Timestamp('2026-01-02')})"
        )
        page = open_page("#/sessions/tabled")
        page.locator("button.entry", has_text="big").click()
        see(page, ".grid-cell", "2026-01-02")
        assert "5,000,000 rows, 2 columns" in page.locator("dialog").inner_text()
        grid = page.get_by_role("grid", name="big")
        grid.focus()
        page.keyboard.press("End")
        see(page, "[role=gridcell]", re.compile("^4999999$"))
        page.get_by_label("Row").fill("2500000")
        page.keyboard.press("Enter")
        see(page, "[role=gridcell]", re.compile("^25000[0-9][0-9]$"))
        grid.focus()
        page.keyboard.press("Home")
        see(page, "[role=gridcell]", re.compile("^0$"))
        assert page.locator(".grid-row").count() < 80


def test_interrupt_restart_notebook_close(console: Console, open_page: OpenPage) -> None:
    """A person interrupts a cell, gives the session a fresh kernel, takes the notebook, and closes it."""
    console.call("POST", "/sessions", {"session_id": "handled"})
    console.call("POST", "/sessions/handled/executions", {"code": WAIT_FOR_FILE})
    page = open_page("#/sessions/handled")
    see(page, ".cell.running")
    page.get_by_role("button", name="Interrupt").click()
    see(page, ".cell.failed")
    see(page, ".cell.failed", "KeyboardInterrupt")
    page.get_by_role("button", name="Restart").click()
    page.locator("dialog").get_by_role("button", name="Restart").click()
    see(page, ".toast", "fresh kernel")
    with page.expect_download() as download:
        page.get_by_label("Download as a notebook").click()
    notebook = json.loads(Path(download.value.path()).read_text())
    assert notebook["nbformat"] == 4
    assert download.value.suggested_filename == "handled.ipynb"
    page.get_by_role("button", name="Close the session").click()
    page.locator("dialog").get_by_role("button", name="Close the session").last.click()
    see(page, "h1", "Sessions")
    assert console.call("GET", "/sessions/handled")[0] == 410
    page.goto(f"{console.url}#/sessions/handled")
    see(page, ".note.ended", "The session has ended.")
    see(page, ".cell.failed")


RISKY = "import os\nos.system('rm -rf /')"


def test_a_person_answers_what_a_policy_asks(console: Console, open_page: OpenPage) -> None:
    """Code that waits is shown to people: approved it runs, for its client too; declined it never does."""
    console.call("POST", "/sessions", {"session_id": "risky"})
    page = open_page("#/sessions/risky", token=console.bob)
    asked = {"code": f"{RISKY} if False else 0"}
    status, refusal = console.call("POST", "/sessions/risky/executions", asked)
    assert status == 409
    see(page, ".confirmation", "rm deletes")
    expect(page.locator(".badge")).to_have_text("1", timeout=TIMEOUT_MS)
    see(page, ".confirmation", "alice")
    page.get_by_role("button", name="Run it").click()
    see(page, ".cell.ok")
    again = {**asked, "confirm": refusal["error"]["confirmation"]}
    status, found = console.call("POST", "/sessions/risky/executions", again)
    assert (status, found["client"], found["user"]) == (202, "console", "bob")
    _, listed = console.call("GET", "/sessions/risky/executions")
    assert len(listed["executions"]) == 1
    expect(page.locator(".confirmation")).to_have_count(0)

    _, refusal = console.call("POST", "/sessions/risky/executions", {"code": RISKY})
    page.goto(f"{console.url}#/confirmations")
    page.get_by_role("button", name="Decline").click()
    see(page, ".empty-title", "Nothing waits for you")
    confirmed = {"code": RISKY, "confirm": refusal["error"]["confirmation"]}
    status, answer = console.call("POST", "/sessions/risky/executions", confirmed)
    assert (status, answer["error"]["code"]) == (422, "policy_refused")
    assert "declined" in answer["error"]["message"]

    assert console.call("POST", "/sessions/risky/executions", {"code": RISKY})[0] == 409
    see(page, ".confirmation", "rm deletes")
    assert console.call("DELETE", "/sessions/risky")[0] == 204
    see(page, ".empty-title", "Nothing waits for you")


def test_nothing_is_hidden_from_who_decides(console: Console, open_page: OpenPage) -> None:
    """Characters that hide or reorder code are shown as what they are, in the list and in the dialog."""
    hidden = f"{RISKY} if False else '\u202e\u2066safe\u200b'"
    with console.session("hidden"):
        page = open_page("#/sessions/hidden", expected=("409",))
        assert console.call("POST", "/sessions/hidden/executions", {"code": hidden})[0] == 409
        see(page, ".confirmation code", "'⟨U+202E⟩⟨U+2066⟩safe⟨U+200B⟩'")
        page.locator(".cm-content").click()
        page.keyboard.insert_text(hidden)
        page.keyboard.press("Shift+Enter")
        see(page, "dialog code", "'⟨U+202E⟩⟨U+2066⟩safe⟨U+200B⟩'")


def test_ones_own_risky_code_is_confirmed_in_a_dialog(
    console: Console, open_page: OpenPage
) -> None:
    """Who runs risky code sees the findings first, and may run it anyway."""
    with console.session("own-risk"):
        page = open_page("#/sessions/own-risk", expected=("409",))
        page.locator(".cm-content").click()
        page.keyboard.insert_text(f"{RISKY} if False else 7")
        page.keyboard.press("Shift+Enter")
        see(page, "dialog .findings", "rm deletes")
        page.get_by_role("button", name="Run it anyway").click()
        see(page, ".cell.ok .line.value", "7")


def test_the_page_goes_on_after_a_broker_that_was_killed(
    open_page: OpenPage, console: Console
) -> None:
    """A page whose broker is killed and started again goes on where it was, with a cell that still runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with running_console(PORT=port) as own:
        own.call("POST", "/sessions", {"session_id": "kept"})
        code = f"print('before', flush=True)\n{WAIT_FOR_FILE}print('after')"
        own.call("POST", "/sessions/kept/executions", {"code": code, "timeout": 200})
        expected = ("ERR_CONNECTION_REFUSED", "WebSocket", "ERR_", "503")
        page = open_page("#/sessions/kept", url=own.url, token=own.alice, expected=expected)
        see(page, ".cell.running .line", "before")
        own.broker.stop(signal.SIGKILL)
        expect(page.locator(".link-state")).to_contain_text("again", timeout=TIMEOUT_MS)
        own.broker.start()
        expect(page.locator(".link-state")).to_have_text("live", timeout=TIMEOUT_MS)
        go_on(own, "kept")
        see(page, ".cell.ok .line", "after")
        assert page.locator(".cell .line").all_inner_texts() == ["before", "after"]
        assert page.locator(".cell").count() == 1


@pytest.mark.parametrize("path", ["/console", "/console/assets/icon.svg", "/console/frame"])
def test_headers(console: Console, path: str) -> None:
    """Each file forbids sniffing and framing by others, and allows no request to another origin."""
    with urlopen(console.broker.url + path) as answer:
        headers = answer.headers
    policy = headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in policy
    if path == "/console":
        assert "script-src 'self';" in policy
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    if path == "/console/frame":
        assert policy.startswith("sandbox allow-scripts;")
        assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
