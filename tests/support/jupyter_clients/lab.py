"""Drives JupyterLab in Chromium, on a session that somebody else has opened.

Usage: lab.py KERNELSPEC SCREENSHOT CODE..., with URL and TOKEN of the broker in the environment. Runs the
cells in a new notebook that uses that kernelspec, moves the slider that they show, completes and inspects
in an empty cell, and debugs one. Prints what the page shows as JSON.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import expect, sync_playwright

DEADLINE_S = 90
IDLE = ".jp-Notebook-ExecutionIndicator[data-status=idle]"
"""JupyterLab hides it if the toolbar has no room when it is laid out."""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until_served(url, server):
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return urlopen(url).close()
        except URLError:
            assert server.poll() is None, "JupyterLab does not start"
            assert time.monotonic() < deadline, "JupyterLab does not answer"
            time.sleep(0.2)


def notebook(kernelspec, codes):
    """A notebook file with these cells."""
    empty = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [{**empty, "id": f"c{number}", "source": code} for number, code in enumerate(codes)]
    spec = {"name": kernelspec, "display_name": kernelspec, "language": "python"}
    made = {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made)


def main():
    kernelspec, screenshot, *codes = sys.argv[1:]
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        work, log = Path(home, "work"), Path(home, "log")
        work.mkdir()
        (work / "analysis.ipynb").write_text(notebook(kernelspec, codes))
        options = ["--no-browser", "--allow-root", "--IdentityProvider.token=", f"--port={port}"]
        gateway = f"--gateway-url={os.environ['URL']}/jupyter"
        with log.open("w") as file:
            server = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", gateway, *options],
                cwd=work,
                env={**os.environ, "HOME": home, "JUPYTER_GATEWAY_AUTH_TOKEN": os.environ["TOKEN"]},
                stdout=file,
                stderr=file,
            )
        try:
            until_served(f"http://127.0.0.1:{port}/api", server)
            drive(f"http://127.0.0.1:{port}", kernelspec, screenshot, len(codes))
        except BaseException:
            sys.stderr.write(log.read_text()[-3000:])
            raise
        finally:
            server.terminate()
            server.wait()


def run_cell(page, cell, kernelspec):
    """Run a cell. On a busy machine the page connects to its kernel again at first, and forgets cells."""
    prompt = cell.locator(".jp-InputPrompt").first
    for _ in range(5):
        if (dialog := page.locator(".jp-Dialog select")).count():
            dialog.select_option(label=kernelspec.replace("session-", "Session "))
            page.get_by_role("button", name="Select", exact=True).click()
        cell.locator(".jp-InputArea-editor").click()
        page.keyboard.press("Shift+Enter")
        try:
            expect(prompt).to_have_text(re.compile(r"\[[\d*]+\]"), timeout=10_000)
            expect(prompt).to_have_text(re.compile(r"\[\d+\]"), timeout=30_000)
        except AssertionError:
            continue
        return
    raise AssertionError("the cell does not run")


def drive(url, kernelspec, screenshot, count):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 620})
        page.set_default_timeout(DEADLINE_S * 1000)
        expect.set_options(timeout=DEADLINE_S * 1000)
        try:
            page.goto(f"{url}/lab/tree/analysis.ipynb?reset")
            page.wait_for_selector(IDLE, state="attached")
            page.get_by_role("button", name="No", exact=True).click()  # the news
            for number in range(count):
                run_cell(page, page.locator(".jp-Notebook .jp-CodeCell").nth(number), kernelspec)
            expect(page.locator(".jp-OutputArea-output img").first).to_be_visible()
            page.locator(".jp-Notebook .jp-CodeCell").first.scroll_into_view_if_needed()
            shown = {
                "sliders": page.locator(".jp-OutputArea-output .widget-slider").count(),
                "texts": page.locator(".jp-OutputArea-output").all_inner_texts(),
                "pictures": page.locator(".jp-OutputArea-output img").count(),
                "kernel": page.locator(".jp-Toolbar-kernelName").first.inner_text(),
            }
            page.screenshot(path=screenshot)
            shown["moved"] = move_slider(page)
            shown["completed"], shown["inspected"] = complete_and_inspect(page)
            shown["stopped"], shown["debugged"] = debug(page)
            sys.stdout.write(json.dumps(shown))
        except BaseException:
            page.screenshot(path=f"{screenshot}.failed.png")
            raise
        finally:
            browser.close()


def move_slider(page):
    """Move the slider by one. Returns what its function prints then."""
    page.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    output = page.locator(".jp-OutputArea-output").filter(has_text="moved to 5").last
    expect(output).to_be_visible()
    return output.inner_text()


def type_in_last_cell(page, text):
    cell = page.locator(".jp-Notebook .jp-CodeCell").last
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    return cell


def complete_and_inspect(page):
    """Ask for completions and for a description. Returns both."""
    found = ask_for(page, "zebra_", "Tab", ".jp-Completer-item")
    names = found.all_inner_texts()
    page.keyboard.press("Escape")
    tooltip = ask_for(page, "zip", "Shift+Tab", ".jp-Tooltip")
    text = tooltip.inner_text()
    page.keyboard.press("Escape")
    return names, text


def ask_for(page, text, key, selector):
    """Type a text and press a key until something is shown: JupyterLab waits a second for completions."""
    found = page.locator(selector)
    for _ in range(15):
        type_in_last_cell(page, text)
        page.keyboard.press(key)
        try:
            expect(found.first).to_be_visible(timeout=5_000)
        except AssertionError:
            continue
        return found
    raise AssertionError(f"{key} shows nothing")


def debug(page):
    """Stop a cell at a breakpoint, and let it go on. Returns where it stopped and what it prints."""
    page.locator(".jp-DebuggerBugButton").first.click()
    expect(page.locator(".jp-DebuggerBugButton[aria-pressed=true]").first).to_be_visible()
    cell = type_in_last_cell(page, "total = 1\ntotal += 41\nprint('debugged', total)")
    cell.locator(".cm-breakpoint-gutter .cm-gutterElement").nth(2).click(force=True)
    expect(cell.locator(".cm-breakpoint-icon").first).to_be_attached()
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    frame = page.locator(".jp-DebuggerCallstackFrame").first
    expect(frame).to_be_visible()
    where = frame.inner_text()
    page.keyboard.press("F9")
    output = cell.locator(".jp-OutputArea-output").filter(has_text="debugged 42")
    expect(output).to_be_visible()
    return where, output.inner_text()


if __name__ == "__main__":
    main()
