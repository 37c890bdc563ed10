"""Sends actions of a browser to the one that fits: that of a sandbox, or one outside of sandboxes."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..browser import Browser, BrowserError
from ..client import Broker
from ..protocol.errors import KernelBrokerError
from ..session import Session

BACKENDS = ("sandbox", "cdp")
"""The browser in a session's sandbox, and the external one, over Chromium's DevTools protocol."""
SANDBOX_ACTIONS = (
    "navigate",
    "click",
    "fill",
    "text",
    "screenshot",
    "evaluate",
    "download",
    "close",
)
CDP_ACTIONS = ("navigate", "screenshot", "close")


@dataclass(frozen=True, slots=True)
class BrowserAction:
    """One step in a browser.

    Attributes:
        action: `navigate`, `click`, `fill`, `text`, `screenshot`, `evaluate`, `download` or `close`.
        params: its parameters, as those of `session.browser`.
    """

    action: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BrowserResult:
    """What an action has done.

    Attributes:
        data: `url`, `title` and what belongs to the action, such as `text`, `value` or `path`.
        error: one line; None if it succeeded.
        screenshot: a picture of the page, if there is one.
    """

    success: bool
    data: Any = None
    error: str | None = None
    screenshot: bytes | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON: the picture in base64."""
        picture = None if self.screenshot is None else base64.b64encode(self.screenshot).decode()
        return {**asdict(self), "screenshot": picture}


class BrowserRouter:
    """Carries out actions, and never raises: what fails is a result.

    Args:
        session: whose sandbox has the browser that shares its files.
        broker: the broker of the external browser; see `browser.endpoint` in its settings.
    """

    def __init__(
        self, session: Session | Browser | None = None, broker: Broker | None = None
    ) -> None:
        self._sandbox = session.browser if isinstance(session, Session) else session
        self._broker = broker

    async def execute(
        self,
        action: BrowserAction,
        needs_file_access: bool = False,
        is_research: bool = False,
        backend: str | None = None,
    ) -> BrowserResult:
        """Carry out an action.

        Args:
            needs_file_access: it downloads, or opens files of the workspace: the sandbox's browser.
            is_research: it reads, over several steps: the sandbox's browser. Otherwise the external one is
                taken, which can navigate, take pictures and close.
            backend: `sandbox` or `cdp`, whatever the rest says.
        """
        try:
            return await self._execute(action, needs_file_access or is_research, backend)
        except BrowserError as exc:
            return BrowserResult(False, error=exc.message, screenshot=exc.screenshot)
        except Exception as exc:
            return BrowserResult(False, error=str(exc) or type(exc).__name__)

    async def _execute(
        self, action: BrowserAction, in_sandbox: bool, backend: str | None
    ) -> BrowserResult:
        chosen = backend or ("sandbox" if in_sandbox else "cdp")
        if chosen not in BACKENDS:
            return _failed(f"unknown backend {chosen!r}; there are: {', '.join(BACKENDS)}")
        known = SANDBOX_ACTIONS if chosen == "sandbox" else CDP_ACTIONS
        name = action.action
        if name not in known:
            return _failed(
                f"unknown action {name!r} of the backend {chosen}; there are: {', '.join(known)}"
            )
        if not isinstance(action.params, Mapping):
            return _failed("the params of an action must be a dict")
        if chosen == "sandbox":
            if self._sandbox is None:
                return _failed("there is no browser in a sandbox: give the router a session")
            page = await self._sandbox.execute(name, **action.params)
            return BrowserResult(True, page.data, screenshot=page.screenshot)
        if self._broker is None:
            return _failed(
                'there is no external browser: give the router a broker, or take backend="sandbox"'
            )
        return await self._external(self._broker, name, action.params)

    async def _external(
        self, broker: Broker, name: str, params: Mapping[str, Any]
    ) -> BrowserResult:
        try:
            answer = await broker.external_browser(name, params)
        except KernelBrokerError as exc:
            return _failed(str(exc))
        picture = None if answer.screenshot is None else base64.b64decode(answer.screenshot)
        return BrowserResult(answer.success, answer.result, answer.error, picture)


def _failed(error: str) -> BrowserResult:
    return BrowserResult(False, error=error)
