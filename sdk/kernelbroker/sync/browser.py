"""The browser in a session's sandbox, without `await`."""

from __future__ import annotations

from typing import Any

from .. import browser
from ..browser import BrowserPage
from ..loop_thread import LoopThread


class Browser:
    """See `kernelbroker.Browser`."""

    def __init__(self, asynchronous: browser.Browser, thread: LoopThread) -> None:
        self._async = asynchronous
        self._thread = thread

    def navigate(
        self, url: str, timeout: float | None = None, confirm: str | None = None
    ) -> BrowserPage:
        return self._thread.call(self._async.navigate(url, timeout, confirm))

    def click(
        self, selector: str, timeout: float | None = None, confirm: str | None = None
    ) -> BrowserPage:
        return self._thread.call(self._async.click(selector, timeout, confirm))

    def fill(
        self,
        selector: str,
        value: str | bool,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> BrowserPage:
        return self._thread.call(self._async.fill(selector, value, timeout, confirm))

    def screenshot(
        self,
        url: str | None = None,
        full_page: bool = False,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> bytes:
        return self._thread.call(self._async.screenshot(url, full_page, timeout, confirm))

    def text(self, timeout: float | None = None, confirm: str | None = None) -> str:
        return self._thread.call(self._async.text(timeout, confirm))

    def evaluate(
        self, script: str, timeout: float | None = None, confirm: str | None = None
    ) -> Any:
        return self._thread.call(self._async.evaluate(script, timeout, confirm))

    def download(
        self,
        url: str | None = None,
        selector: str | None = None,
        path: str | None = None,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> str:
        return self._thread.call(self._async.download(url, selector, path, timeout, confirm))

    def close(self) -> None:
        self._thread.call(self._async.close())

    def execute(self, action: str, **parameters: Any) -> BrowserPage:
        return self._thread.call(self._async.execute(action, **parameters))
