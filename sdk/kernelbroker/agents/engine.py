"""Runs the actions of an agent's plan: code, files and web pages."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

from ..agent_workspace import AgentWorkspace
from ..client import Broker
from .browser_router import BrowserAction, BrowserRouter
from .manager import SandboxManager, identifier
from .models import ExecutionRequest


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a plan.

    Attributes:
        type: `code_execution`, `web_browsing` or `file_operation`.
        data: for code the fields of an `ExecutionRequest`; for files `operation` (`read`, `write`, `list`),
            `path` and `content`; for the web `action` with its parameters, and `backend` (`sandbox`, or
            `cdp` for the broker's external browser).
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What an action has done.

    Attributes:
        data: for code the fields of an `ExecutionResult`; for files `path` with `content` and `encoding`
            (`utf-8`, or `base64` for other bytes), or `files`; for the web that of a `BrowserResult`, with
            its `screenshot` in base64.
        error: one line; None if it succeeded.
    """

    success: bool
    data: Any = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        return asdict(self)


class Browser(Protocol):
    """What carries out `web_browsing`, in place of the browsers of the broker."""

    async def execute(self, action: str, params: Mapping[str, Any]) -> ActionResult:
        """Do one step in a browser, such as `navigate`."""


class InvalidAction(Exception):
    """The action cannot be carried out; the message says why."""


_Handler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[ActionResult]]

_CODE_FIELDS = ExecutionRequest.__dataclass_fields__.keys()


class ExecutionEngine:
    """Carries out actions in one session and its workspace. Use it in one event loop.

    Args:
        session_id: the session; a new one if not given. Its workspace has the same name.
        broker: what `kernelbroker.connect` returns; a new one if not given.
        workspace: another workspace, by its name.
        browser: carries out `web_browsing`; by default the browser of the session's sandbox, which shares
            the workspace, or the broker's external one.
    """

    def __init__(
        self,
        session_id: str | None = None,
        *,
        broker: Broker | None = None,
        workspace: str | AgentWorkspace | None = None,
        browser: Browser | None = None,
    ) -> None:
        session_id = session_id or uuid4().hex
        self.manager = SandboxManager(session_id, workspace, broker=broker)
        if isinstance(workspace, AgentWorkspace):
            self.workspace = workspace
        else:
            name = workspace or identifier(session_id)
            self.workspace = AgentWorkspace(name, self.manager.broker)
        self._browser = browser
        self._handlers: dict[str, _Handler] = {
            "code_execution": self._execute_code,
            "file_operation": self._use_file,
            "web_browsing": self._browse,
        }

    async def execute(self, action: Action) -> ActionResult:
        """Carry out an action. Everything that fails is a result with `success` False."""
        try:
            handler = self._handlers.get(action.type)
            if handler is None:
                known = ", ".join(self._handlers)
                raise InvalidAction(f"unknown action type {action.type!r}; there are: {known}")
            if not isinstance(action.data, Mapping):
                raise InvalidAction("the data of an action must be a dict")
            return await handler(action.data)
        except Exception as exc:
            return ActionResult(False, error=str(exc) or type(exc).__name__)

    async def cleanup(self) -> None:
        """Close the session. The files stay."""
        await self.manager.cleanup()

    async def __aenter__(self) -> ExecutionEngine:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cleanup()

    async def _execute_code(self, data: Mapping[str, Any]) -> ActionResult:
        if "code" not in data:
            raise InvalidAction("code_execution needs 'code'")
        if unknown := sorted(set(data) - set(_CODE_FIELDS)):
            known = ", ".join(_CODE_FIELDS)
            raise InvalidAction(
                f"unknown field {unknown[0]!r} of code_execution; there are: {known}"
            )
        result = await self.manager.execute(ExecutionRequest(**data))
        return ActionResult(result.success, result.to_dict(), result.error)

    async def _use_file(self, data: Mapping[str, Any]) -> ActionResult:
        operation = data.get("operation")
        match operation:
            case "read":
                path = _path(data)
                return ActionResult(True, _content(path, await self.workspace.read_file(path)))
            case "write":
                path = _path(data)
                content = data.get("content")
                if not isinstance(content, str | bytes):
                    raise InvalidAction("write needs 'content': text, or bytes")
                await self.workspace.write_file(path, content)
                size = len(content.encode() if isinstance(content, str) else content)
                return ActionResult(True, {"path": path, "size": size})
            case "list":
                path = _path(data, default="")
                files = await self.workspace.list_files(path)
                return ActionResult(True, {"path": path, "files": files})
        raise InvalidAction(f"unknown file operation {operation!r}; there are: read, write, list")

    async def _browse(self, data: Mapping[str, Any]) -> ActionResult:
        params = dict(data)
        action, backend = str(params.pop("action", "navigate")), params.pop("backend", None)
        if isinstance(nested := params.pop("params", None), Mapping):
            params |= nested
        if self._browser is not None:
            return await self._browser.execute(action, params)
        session = None if backend == "cdp" else await self.manager.session()
        router = BrowserRouter(session, self.manager.broker)
        done = await router.execute(
            BrowserAction(action, params), needs_file_access=True, backend=backend
        )
        found = done.to_dict()
        shown = {**(found["data"] or {}), "screenshot": found["screenshot"]}
        return ActionResult(done.success, shown if done.success else None, done.error)


def _path(data: Mapping[str, Any], default: str | None = None) -> str:
    path = data.get("path", default)
    if not isinstance(path, str):
        raise InvalidAction("file_operation needs 'path', relative to the workspace")
    if path == "/data" or path.startswith("/data/"):  # models name absolute paths as well
        path = path.removeprefix("/data").lstrip("/")
    return path


def _content(path: str, content: bytes) -> dict[str, Any]:
    try:
        return {"path": path, "content": content.decode(), "encoding": "utf-8"}
    except UnicodeDecodeError:
        text = base64.b64encode(content).decode()
        return {"path": path, "content": text, "encoding": "base64"}
