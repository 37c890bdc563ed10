"""Drives JupyterLab in Chromium, on a session that somebody else has opened.

Usage: lab.py KERNELSPEC SCREENSHOT CODE..., with URL and TOKEN of the broker in the environment. Runs the cells in a
new notebook that uses that kernelspec, and prints what the page shows as JSON.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from urllib.error import URLError
from urllib.request import urlopen

from playwright.sync_api import expect, sync_playwright

DEADLINE_S = 90


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
            assert server.poll() is None and time.monotonic() < deadline, "JupyterLab does not start"
            time.sleep(0.2)


def notebook(kernelspec, codes, cwd):
    """A notebook file with these cells."""
    cells = [
        {"cell_type": "code", "id": f"c{n}", "source": code, "metadata": {}, "outputs": [], "execution_count": None}
        for n, code in enumerate(codes)
    ]
    spec = {"name": kernelspec, "display_name": kernelspec, "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    with open(os.path.join(cwd, "analysis.ipynb"), "w") as file:
        json.dump(content, file)


def main():
    kernelspec, screenshot, *codes = sys.argv[1:]
    port = free_port()
    with tempfile.TemporaryDirectory() as home:
        work = f"{home}/work"
        os.mkdir(work)
        notebook(kernelspec, codes, work)
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", f"--gateway-url={os.environ['URL']}/jupyter"]
            + [f"--port={port}", "--no-browser", "--allow-root", "--IdentityProvider.token=", "--ServerApp.password="],
            cwd=work,
            env={**os.environ, "HOME": home, "JUPYTER_GATEWAY_AUTH_TOKEN": os.environ["TOKEN"]},
            stdout=open(f"{home}/log", "w"),
            stderr=subprocess.STDOUT,
        )
        try:
            until_served(f"http://127.0.0.1:{port}/api", server)
            drive(f"http://127.0.0.1:{port}", screenshot, len(codes))
        except BaseException:
            sys.stderr.write(open(f"{home}/log").read()[-3000:])
            raise
        finally:
            server.terminate()
            server.wait()


def drive(url, screenshot, count):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 620})
        page.set_default_timeout(DEADLINE_S * 1000)
        expect.set_options(timeout=DEADLINE_S * 1000)
        try:
            page.goto(f"{url}/lab/tree/analysis.ipynb?reset")
            page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]")
            page.get_by_role("button", name="No", exact=True).click()  # the news
            page.locator(".jp-Notebook .jp-CodeCell").first.click()
            for _ in range(count):
                page.keyboard.press("Shift+Enter")
            expect(page.locator(".jp-CodeCell .jp-InputPrompt", has_text="]:").last).to_be_visible()
            page.wait_for_function(
                "n => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')].slice(0, n)"
                ".every(each => /\\[\\d+\\]/.test(each.textContent))",
                arg=count,
            )
            page.wait_for_timeout(500)  # the picture is painted
            shown = {
                "texts": page.locator(".jp-OutputArea-output").all_inner_texts(),
                "pictures": page.locator(".jp-OutputArea-output img").count(),
                "sliders": page.locator(".widget-slider").count(),
            }
            page.screenshot(path=screenshot)
            print(json.dumps(shown))
        except BaseException:
            page.screenshot(path=screenshot + ".failed.png")
            raise
        finally:
            browser.close()


if __name__ == "__main__":
    main()
