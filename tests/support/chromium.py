"""Chromium for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.support.requires import require


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require("chromium")
    with sync_playwright() as playwright:
        # The shell has the same engine, and takes half of the processor time.
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-proxy-server"],
        )
        yield browser
        browser.close()


class Problems:
    """What a page must not do: fail, violate its policy, or ask another origin."""

    def __init__(self, page: Page, origin: str) -> None:
        self.found: list[str] = []
        self.expected: tuple[str, ...] = ()
        page.on("pageerror", lambda error: self.found.append(f"error: {error}"))
        page.on("console", self._read)
        page.on("request", lambda request: self._look(request.url, origin))

    def _read(self, message: ConsoleMessage) -> None:
        # Chromium reports each answer that is an error, also if a cell has overtaken a completion, and if
        # the session of the test ends while its variables are asked for.
        path = message.location["url"]
        overtaken = (path.endswith("/complete") and "409" in message.text) or (
            path.endswith("/variables") and "410" in message.text
        )
        if message.type == "error" and not overtaken:
            self.found.append(message.text)

    def _look(self, url: str, origin: str) -> None:
        if not url.startswith(
            (origin, origin.replace("http", "ws", 1), "data:", "blob:", "about:")
        ):
            self.found.append(f"request to {url}")

    def unexpected(self) -> list[str]:
        return [each for each in self.found if not any(text in each for text in self.expected)]
