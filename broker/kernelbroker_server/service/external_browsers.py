"""A browser outside of the sandboxes, which the operator provides. Each tenant has one window there.

It knows no files and no sessions, so it can only open pages and take pictures of them. Its network is that
of the machine where it runs, not the allow list's.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from kernelbroker.protocol.errors import BadRequest, NotFound, RequestError, TooManyRequests
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker.protocol.operations import CodeOperationResponse

from ..cdp import CdpBrowser, CdpError, Window
from ..telemetry.events import CodeOperationEnded, Observer
from .browsing import seconds_of, shown_action, target_of
from .policy import Policies

ACTIONS = ("navigate", "screenshot", "close")
_MAX_WINDOWS = 20
_TEMPLATE = "default"
"""Whose policy judges the actions."""
_SCOPE = "external-browser"
"""Of confirmations. No session has this name with a tenant's right to confirm it."""
_SCHEMES = ("http", "https")
_MAX_TIMEOUT_S = 300.0


class ExternalBrowsers:
    """The windows of all tenants. Without an endpoint there are none.

    Args:
        endpoint: of the DevTools protocol.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._browser = None if endpoint is None else CdpBrowser(endpoint)
        self._windows: dict[str, Window] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    @property
    def is_there(self) -> bool:
        """Whether the operator provides one."""
        return self._browser is not None

    async def act(
        self, tenant: str, policies: Policies, observer: Observer, name: str, given: dict[str, Any]
    ) -> CodeOperationResponse:
        """Carry out an action in the tenant's window. A failure of the browser is an answer.

        Raises:
            NotFound: there is no external browser, or no such action.
            BadRequest: a parameter is invalid.
            PolicyRefused, ConfirmationRequired: the policy of the template `default` holds it back.
        """
        started_at, outcome = time.monotonic(), "aborted"
        parameters = dict(given)
        confirm = parameters.pop("confirm", None)
        try:
            if self._browser is None:
                raise NotFound("this broker has no external browser: browser.endpoint is not set")
            work = self._checked(tenant, self._browser, name, parameters)
            request = ExecutionRequest(
                code=shown_action(name, parameters),
                language="shell",
                confirm=confirm if isinstance(confirm, str) else None,
            )
            if policies.effective(_TEMPLATE).mode != "off":
                assessment = await policies.assess(name, "browser", parameters)
                policies.check(request, _TEMPLATE, _SCOPE, assessment)
            turn = self._turns.setdefault(tenant, asyncio.Lock())
            async with turn:
                response = await _answered(work)
            response.execution_time_ms = round((time.monotonic() - started_at) * 1000)
            outcome = "success" if response.success else str(response.code)
            return response
        except RequestError as exc:
            outcome = exc.code
            raise
        finally:
            seconds = time.monotonic() - started_at
            target = target_of(parameters)
            observer(
                CodeOperationEnded(
                    tenant, "", "", f"external_{name[:40]}", target, outcome, seconds
                )
            )

    async def stop(self) -> None:
        """Close all windows."""
        if self._browser is not None:
            await self._browser.stop()

    def _checked(
        self, tenant: str, browser: CdpBrowser, name: str, parameters: Mapping[str, Any]
    ) -> Callable[[], Awaitable[CodeOperationResponse]]:
        """The action, ready to be carried out. Raises NotFound, BadRequest."""
        if name not in ACTIONS:
            raise NotFound(
                f"the external browser has no action {name[:100]}; there are: {', '.join(ACTIONS)}"
            )
        known = {"navigate": ("url",), "screenshot": ("url", "full_page"), "close": ()}[name]
        for key in parameters:
            if key not in (*known, "timeout"):
                raise BadRequest(f"there is no parameter {key[:100]!r} of {name}")
        timeout = min(seconds_of(parameters), _MAX_TIMEOUT_S)
        url, full_page = parameters.get("url"), parameters.get("full_page") or False
        if url is None and name == "navigate":
            raise BadRequest("the parameter 'url' is missing")
        if url is not None and not _is_web(url):
            raise BadRequest("url must be an address that begins with http:// or https://")
        if url is not None and browser.reaches_endpoint(url):
            raise BadRequest("url must not be the address of the browser's own DevTools endpoint")
        if not isinstance(full_page, bool):
            raise BadRequest("full_page must be true or false")

        async def work() -> CodeOperationResponse:
            if name == "close":
                window = self._windows.pop(tenant, None)
                if window is not None:
                    await browser.close(window)
                return CodeOperationResponse(success=True, result={})
            window = await self._window(tenant, browser)
            try:
                if url is None:
                    where = await browser.where(window)
                else:
                    where = await browser.navigate(window, url, timeout)
                picture = await browser.screenshot(window, full_page=full_page)
            except TimeoutError:
                self._windows.pop(tenant, None)  # it may hang
                await browser.close(window)
                raise
            return CodeOperationResponse(
                success=True,
                result=where,
                screenshot=base64.b64encode(picture).decode(),
                screenshot_mime="image/png",
            )

        return work

    async def _window(self, tenant: str, browser: CdpBrowser) -> Window:
        window = self._windows.get(tenant)
        if window is not None and browser.has(window):
            return window
        self._windows = {name: each for name, each in self._windows.items() if browser.has(each)}
        if len(self._windows) >= _MAX_WINDOWS:
            raise TooManyRequests(
                "too many tenants use the external browser; close its window when it is not needed",
                retry_after=10,
            )
        window = self._windows[tenant] = await browser.open()
        return window


async def _answered(
    work: Callable[[], Awaitable[CodeOperationResponse]],
) -> CodeOperationResponse:
    with contextlib.suppress(TimeoutError):
        try:
            return await work()
        except CdpError as exc:
            return CodeOperationResponse(success=False, error=str(exc), code="failed")
    return CodeOperationResponse(
        success=False, error="the page did not load in time", code="timeout"
    )


def _is_web(url: object) -> bool:
    """Whether it is an address of the web: files of the browser's machine are nobody's business."""
    if not isinstance(url, str):
        return False
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        return False
    return parts.scheme.lower() in _SCHEMES and bool(parts.hostname)
