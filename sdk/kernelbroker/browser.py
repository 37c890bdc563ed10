"""The browser in a session's sandbox: `session.browser`.

Each action is an execution of the session, in the order of its cells. What fails raises BrowserError; what
the broker refuses raises as for cells.
"""

from __future__ import annotations

import base64
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .code import Code
from .code_errors import CodeOperationError
from .protocol.errors import KernelBrokerError, RequestError
from .protocol.operations import CodeOperationResponse


class BrowserError(KernelBrokerError):
    """An action that was not carried out.

    Attributes:
        message: what happened, and what to do next.
        code: `timeout`, `not_found`, `failed`, `crashed`, `bad_request`, `browser_unavailable` and so on.
        screenshot: the page after it, if there is a picture.
    """

    def __init__(self, message: str, code: str = "failed", screenshot: bytes | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.screenshot = screenshot


@dataclass(frozen=True, slots=True)
class BrowserPage:
    """The current window after an action.

    Attributes:
        status: of HTTP, if the action opened a page.
        windows: the addresses of all windows, if there are several. The last one opened is the current one.
        dialogs: those that the page opened meanwhile, with `type`, `message` and `answer`. Alerts are
            accepted, questions are dismissed.
        downloads: files that came meanwhile, with `url`, and `path` and `size`, or `error`.
        restarted: an earlier browser had crashed, and its windows are lost.
        screenshot: a picture of the window.
        data: all that the action has answered.
    """

    url: str = ""
    title: str = ""
    status: int | None = None
    windows: list[str] = field(default_factory=list)
    dialogs: list[dict[str, str]] = field(default_factory=list)
    downloads: list[dict[str, Any]] = field(default_factory=list)
    restarted: bool = False
    screenshot: bytes | None = None
    data: dict[str, Any] = field(default_factory=dict)


class Browser:
    """The browser of one session. It starts with the first action, and shares files with the session.

    A selector is one of CSS or of Playwright, such as `#name` or `text=Send`. `timeout` is in seconds.
    `confirm` is the `confirmation` of the `ConfirmationRequired` that the action got before.
    """

    def __init__(self, code: Code) -> None:
        self._code = code

    async def navigate(
        self, url: str, timeout: float | None = None, confirm: str | None = None
    ) -> BrowserPage:
        """Open a page.

        Raises:
            BrowserError: there is no such page, or it does not answer in time.
            Conflict: the session's template has no browser.
            ConfirmationRequired, PolicyRefused: the broker's policy holds the action back.
            RequestError: the broker refused it for another reason.
        """
        return await self.execute("navigate", url=url, timeout=timeout, confirm=confirm)

    async def click(
        self, selector: str, timeout: float | None = None, confirm: str | None = None
    ) -> BrowserPage:
        """Click the first element that the selector finds. Raises as `navigate`."""
        return await self.execute("click", selector=selector, timeout=timeout, confirm=confirm)

    async def fill(
        self,
        selector: str,
        value: str | bool,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> BrowserPage:
        """Fill in a field; choose an option by its value or label; set a checkbox by true or false.

        The broker stores no value. Raises as `navigate`.
        """
        return await self.execute(
            "fill", selector=selector, value=value, timeout=timeout, confirm=confirm
        )

    async def screenshot(
        self,
        url: str | None = None,
        full_page: bool = False,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> bytes:
        """Return a picture of the page, as PNG; as JPEG, if it is very large. Raises as `navigate`.

        Args:
            url: open this page first.
            full_page: all of the page, not only what the window shows.
        """
        page = await self.execute(
            "screenshot", url=url, full_page=full_page, timeout=timeout, confirm=confirm
        )
        if page.screenshot is None:
            raise BrowserError("the page has no picture: it does not answer, or it is too large")
        return page.screenshot

    async def text(self, timeout: float | None = None, confirm: str | None = None) -> str:
        """Return what there is to read, as Markdown with links, and the fields with their selectors.

        It has at most 20,000 characters. Raises as `navigate`.
        """
        return str((await self.execute("text", timeout=timeout, confirm=confirm)).data["text"])

    async def evaluate(
        self, script: str, timeout: float | None = None, confirm: str | None = None
    ) -> Any:
        """Return the value of an expression or a function of JavaScript. Raises as `navigate`."""
        page = await self.execute("evaluate", script=script, timeout=timeout, confirm=confirm)
        return page.data["value"]

    async def download(
        self,
        url: str | None = None,
        selector: str | None = None,
        path: str | None = None,
        timeout: float | None = None,
        confirm: str | None = None,
    ) -> str:
        """Save a file in the workspace, and return its path there. Raises as `navigate`.

        Args:
            url: of the file.
            selector: or what to click for it.
            path: where to save it; `downloads` and its own name if not given.
        """
        page = await self.execute(
            "download", url=url, selector=selector, path=path, timeout=timeout, confirm=confirm
        )
        return str(page.data["path"])

    async def close(self) -> None:
        """End the browser, if it runs. The next action starts another one."""
        try:
            await self.execute("close")
        except BrowserError as exc:
            if exc.code != "not_running":
                raise

    async def execute(self, action: str, **parameters: Any) -> BrowserPage:
        """Carry out an action by its name. Raises as `navigate`."""
        picture: bytes | None = None
        last: dict[str, Any] = {}
        try:
            async with aclosing(self._code.stream(f"browser_{action}", parameters)) as events:
                async for event in events:
                    if event["type"] == "image":
                        picture = base64.b64decode(event["content"])
                    last = event
        except CodeOperationError as exc:
            if isinstance(exc.__cause__, RequestError):
                raise exc.__cause__ from None
            raise BrowserError(exc.message, exc.code) from exc
        answer = msgspec.convert(last, CodeOperationResponse)
        if not answer.success:
            raise BrowserError(answer.error or "it failed", answer.code or "failed", picture)
        return _page(answer.result or {}, picture)


def _page(result: dict[str, Any], picture: bytes | None) -> BrowserPage:
    return BrowserPage(
        url=result.get("url", ""),
        title=result.get("title", ""),
        status=result.get("status"),
        windows=result.get("windows", []),
        dialogs=result.get("dialogs", []),
        downloads=result.get("downloads", []),
        restarted=result.get("restarted", False),
        screenshot=picture,
        data=result,
    )
