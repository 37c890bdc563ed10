"""A client of Chromium's DevTools protocol, for a browser outside of the sandboxes.

It knows what `service/external_browsers.py` needs: a window with cookies of its own, to open a page there,
and a picture of it. https://chromedevtools.github.io/devtools-protocol/ describes the messages.

Who reaches the endpoint of the protocol has the windows of all tenants. So no page does, nor what it
frames, redirects to, opens or starts: each of these is held until its requests to the endpoint are blocked.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.websocket import WebSocketClientConnection, WebSocketError, websocket_connect

_CONNECT_S = 10.0
_ANSWER_S = 30.0
_ATTEMPTS, _ATTEMPT_S, _PAUSE_S = 3, 5.0, 0.1
"""How often a page is asked for its address or its picture, and after which time again."""
_MAX_MESSAGE = 32 * 1024**2
_MAX_HEIGHT = 12_000
_MAX_TITLE = 500


_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}


class CdpError(Exception):
    """The browser cannot be reached, or refuses; the message is one line."""


@dataclass(slots=True)
class Window:
    """A window, with cookies of its own."""

    context: str
    target: str
    session: str
    loaded: asyncio.Event


class CdpBrowser:
    """A connection to a browser, made when it is needed, and again after it was lost.

    Args:
        endpoint: `http://HOST:PORT` of its remote debugging, or the `ws://` address itself.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._tasks: set[asyncio.Task[None]] = set()
        self._socket: WebSocketClientConnection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._windows: dict[str, Window] = {}
        self._last_id = 0

    async def open(self) -> Window:
        """Open a window. Raises CdpError."""
        made = await self._send("Target.createBrowserContext", {"disposeOnDetach": True})
        context = made["browserContextId"]
        asked = {"url": "about:blank", "browserContextId": context}
        target = (await self._send("Target.createTarget", asked))["targetId"]
        attached = await self._send("Target.attachToTarget", {"targetId": target, "flatten": True})
        window = Window(context, target, attached["sessionId"], asyncio.Event())
        self._windows[window.session] = window
        try:
            await self._protect(window.session, has_pages=True)
            await self._send("Page.enable", session=window.session)
        except CdpError:
            await self.close(window)
            raise
        return window

    def reaches_endpoint(self, url: str) -> bool:
        """Whether an address may be that of the endpoint, by whatever name of its host."""
        try:
            parts, own = urlsplit(url.strip()), urlsplit(self._endpoint)
            return (parts.port or _PORTS.get(parts.scheme.lower(), 0)) == _port(own) and (
                _port(own) not in _PORTS.values() or parts.hostname == own.hostname
            )
        except ValueError:
            return True

    def has(self, window: Window) -> bool:
        """Whether the window is still there."""
        return self._windows.get(window.session) is window

    async def navigate(self, window: Window, url: str, timeout: float) -> dict[str, Any]:
        """Open a page. Returns its address and title. Raises CdpError, TimeoutError."""
        window.loaded.clear()
        async with asyncio.timeout(timeout):
            opened = await self._send("Page.navigate", {"url": url}, window.session)
            if error := opened.get("errorText"):
                raise CdpError(f"{url[:200]}: {error}")
            if opened.get("loaderId"):  # otherwise it is the same page
                await window.loaded.wait()
            return await self.where(window)

    async def _protect(self, session: str, *, has_pages: bool) -> None:
        """Block the endpoint for a target, and for all that it makes. Raises CdpError.

        Args:
            has_pages: it is no worker. Blocked addresses are not blocked for what is navigated to.
        """
        blocked = _patterns(self._endpoint)
        await self._send("Network.enable", session=session)
        await self._send("Network.setBlockedURLs", {"urls": blocked}, session)
        if has_pages:
            patterns = [{"urlPattern": each} for each in blocked]
            await self._send("Fetch.enable", {"patterns": patterns}, session)
        related = {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
        await self._send("Target.setAutoAttach", related, session)

    async def _protect_related(self, session: str, kind: str) -> None:
        """Let a frame, a worker or another window go on when it is protected. Else it stands still."""
        with contextlib.suppress(CdpError):
            await self._protect(session, has_pages="worker" not in kind)
            await self._send("Runtime.runIfWaitingForDebugger", session=session)

    async def _refuse(self, session: str, request: str) -> None:
        with contextlib.suppress(CdpError):
            asked = {"requestId": request, "errorReason": "AccessDenied"}
            await self._send("Fetch.failRequest", asked, session)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def where(self, window: Window) -> dict[str, Any]:
        """Return the `url` and the `title` of the page. Raises CdpError."""
        asked = {"expression": "[location.href, document.title]", "returnByValue": True}
        found = await self._ask_page("Runtime.evaluate", asked, window)
        url, title = found["result"]["value"]
        return {"url": str(url), "title": str(title)[:_MAX_TITLE]}

    async def screenshot(self, window: Window, *, full_page: bool) -> bytes:
        """Return a picture as PNG. Raises CdpError."""
        asked: dict[str, Any] = {"format": "png"}
        if full_page:
            metrics = await self._send("Page.getLayoutMetrics", session=window.session)
            size = metrics["cssContentSize"]
            height = min(size["height"], _MAX_HEIGHT)
            clip = {"x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1}
            asked |= {"clip": clip, "captureBeyondViewport": True}
        return base64.b64decode(
            (await self._ask_page("Page.captureScreenshot", asked, window))["data"]
        )

    async def _ask_page(self, method: str, asked: dict[str, Any], window: Window) -> dict[str, Any]:
        """Ask about a page, again if need be: one that goes elsewhere meanwhile refuses, or is silent."""
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(TimeoutError, CdpError):
                async with asyncio.timeout(_ATTEMPT_S):
                    return await self._send(method, asked, window.session)
            await asyncio.sleep(_PAUSE_S)
        return await self._send(method, asked, window.session)

    async def close(self, window: Window) -> None:
        """Close the window, and forget its cookies. Never raises CdpError."""
        if self._windows.pop(window.session, None) is not None:
            with contextlib.suppress(CdpError):
                await self._send(
                    "Target.disposeBrowserContext", {"browserContextId": window.context}
                )

    async def stop(self) -> None:
        """Close the connection, and with it all windows."""
        if self._socket is not None:
            self._socket.close()
        if self._reading is not None:
            await self._reading

    async def _send(
        self, method: str, params: dict[str, Any] | None = None, session: str | None = None
    ) -> dict[str, Any]:
        socket = await self._connected()
        self._last_id += 1
        number = self._last_id
        message: dict[str, Any] = {"id": number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        answered = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await socket.write_message(json.dumps(message))
            async with asyncio.timeout(_ANSWER_S):
                answer = await answered
        except WebSocketError as exc:
            raise CdpError("the connection to the browser is lost") from exc
        except TimeoutError as exc:
            raise CdpError(f"the browser does not answer to {method}") from exc
        finally:
            self._answers.pop(number, None)
        if "error" in answer:
            raise CdpError(str(answer["error"].get("message", "it refused"))[:200])
        result: dict[str, Any] = answer.get("result", {})
        return result

    async def _connected(self) -> WebSocketClientConnection:
        async with self._connecting:
            if self._socket is None:
                try:
                    async with asyncio.timeout(_CONNECT_S):
                        url = await self._websocket_url()
                        self._socket = await websocket_connect(
                            url, max_message_size=_MAX_MESSAGE, ping_interval=None
                        )
                except (OSError, TimeoutError, HTTPClientError, ValueError, KeyError) as exc:
                    raise CdpError(
                        f"no browser answers at browser.endpoint ({type(exc).__name__})"
                    ) from exc
                self._reading = asyncio.create_task(self._read(self._socket))
            return self._socket

    async def _websocket_url(self) -> str:
        parts = urlsplit(self._endpoint)
        if parts.scheme in ("ws", "wss"):
            return self._endpoint
        response = await AsyncHTTPClient().fetch(
            f"{self._endpoint.rstrip('/')}/json/version", request_timeout=_CONNECT_S
        )
        found = urlsplit(json.loads(response.body)["webSocketDebuggerUrl"])
        scheme = "wss" if parts.scheme == "https" else "ws"
        return f"{scheme}://{parts.netloc}{found.path}"  # it names itself as it sees itself

    async def _read(self, socket: WebSocketClientConnection) -> None:
        try:
            while (text := await socket.read_message()) is not None:
                self._on_message(json.loads(text))
        finally:
            self._socket = None
            self._windows.clear()
            for answered in self._answers.values():
                if not answered.done():
                    answered.set_exception(CdpError("the connection to the browser is lost"))

    def _on_message(self, message: dict[str, Any]) -> None:
        if (answered := self._answers.get(message.get("id", 0))) is not None:
            if not answered.done():
                answered.set_result(message)
            return
        method, params = message.get("method"), message.get("params", {})
        if method == "Target.attachedToTarget" and "sessionId" in message:
            self._start(self._protect_related(params["sessionId"], params["targetInfo"]["type"]))
            return
        if method == "Fetch.requestPaused":
            self._start(self._refuse(message["sessionId"], params["requestId"]))
            return
        session = message.get("sessionId") or params.get("sessionId", "")
        window = self._windows.get(session)
        if window is None:
            return
        if method in ("Page.loadEventFired", "Inspector.targetCrashed"):
            window.loaded.set()
        elif method == "Target.detachedFromTarget":
            del self._windows[session]
            window.loaded.set()


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS[parts.scheme]


def _patterns(endpoint: str) -> list[str]:
    """What is blocked: the port of the endpoint on each host, or its host if the port is a usual one."""
    parts = urlsplit(endpoint)
    if _port(parts) in _PORTS.values():
        return [f"*://{parts.hostname}/*"]
    return [f"*://*:{_port(parts)}/*"]
