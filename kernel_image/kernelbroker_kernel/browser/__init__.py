"""The browser of a sandbox, for cells: one Chromium beside the kernel, which the session's tools use, too.

    from kernelbroker_kernel import browser

    browser.navigate("http://localhost:8000/")
    browser.fill("#name", "Ada")
    browser.click("text=Send")
    print(browser.text())

`await browser.page()` is the same window as a page of Playwright's async API. The browser starts with the
first action. An action that fails raises BrowserError.
"""

from __future__ import annotations

import base64
from typing import Any

from ..errors import Refused
from . import client


class BrowserError(Exception):
    """An action that was not carried out.

    Attributes:
        code: `timeout`, `not_found`, `failed`, `crashed`, `bad_request` or `browser_unavailable`.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def navigate(url: str, timeout: float = 30) -> dict[str, Any]:
    """Open a page. Returns `url`, `title`, `status`, and what happened meanwhile."""
    return _ask("navigate", url=url, timeout=timeout)


def click(selector: str, timeout: float = 10) -> dict[str, Any]:
    """Click the first element that the selector of CSS or Playwright finds, when it can be clicked."""
    return _ask("click", selector=selector, timeout=timeout)


def fill(selector: str, value: str | bool, timeout: float = 10) -> dict[str, Any]:
    """Fill in a field; choose an option by its value or label; set a checkbox by true or false."""
    return _ask("fill", selector=selector, value=value, timeout=timeout)


def text() -> str:
    """Return the readable text of the page, with its links and fields."""
    return str(_ask("text")["text"])


def evaluate(script: str, timeout: float = 30) -> Any:
    """Return the value of an expression or function of JavaScript in the page."""
    return _ask("evaluate", script=script, timeout=timeout)["value"]


def download(
    url: str | None = None,
    selector: str | None = None,
    path: str | None = None,
    timeout: float = 60,
) -> str:
    """Download an address, or what a click on an element sends. Returns the path in the workspace."""
    given = {"url": url, "selector": selector, "path": path}
    asked = {name: value for name, value in given.items() if value is not None}
    return str(_ask("download", timeout=timeout, **asked)["path"])


def screenshot(url: str | None = None, full_page: bool = False) -> Any:
    """Return a picture of the page, which the notebook shows."""
    from IPython.display import Image

    asked = {} if url is None else {"url": url}
    answer = _answer("screenshot", full_page=full_page, **asked)
    picture = answer.get("screenshot") or {"data": ""}
    return Image(data=base64.b64decode(picture["data"]))


def close() -> None:
    """End the browser. The next action starts another one."""
    _ask("close")


async def page() -> Any:
    """Return the current window as a `Page` of Playwright's async API, over Chromium's protocol."""
    from playwright.async_api import async_playwright

    found = _ask("connect")
    playwright = await async_playwright().start()
    browser = await playwright.chromium.connect_over_cdp(found["endpoint"])
    pages = browser.contexts[0].pages
    return pages[min(found["window"], len(pages) - 1)]


def _ask(name: str, **parameters: Any) -> dict[str, Any]:
    result: dict[str, Any] = _answer(name, **parameters)["result"]
    return result


def _answer(name: str, **parameters: Any) -> dict[str, Any]:
    try:
        return client.ask(name, parameters, picture=False)
    except Refused as refused:
        raise BrowserError(refused.message, refused.code) from None
