"""The browser's process: keeps Chromium, and carries out actions over a unix socket, one at a time.

``python -m kernelbroker_kernel.browser.server PATH``. A request is a line of JSON, ``{"name", "parameters",
"picture"}``; the answer is one, too: ``{"result", "screenshot"?}`` or ``{"refused": {"code", "message"}}``.
Before the request the client waits for an empty line, which a process that ends does not send.
A client that hangs up cancels its action. The process ends with the action `close`, and with the sandbox.
"""

from __future__ import annotations

import asyncio
import json
import sys
from builtins import TimeoutError as BuiltinTimeoutError
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from playwright.async_api import Error, TimeoutError

from ..errors import Refused
from ..parameters import checked
from ..surrogates import well_formed
from .actions import ACTIONS
from .chromium import Chromium
from .client import GREETING
from .deadline import Deadline
from .screenshots import picture_of

DEFAULT_S, MOST_S = 30.0, 600.0
_SLACK_S = 0.2
"""Playwright's own timeout comes first; its message is better."""
_MAX_REQUEST = 4 * 1024**2
_MAX_MESSAGE = 1000


class Server:
    def __init__(self, *, had_crashed: bool) -> None:
        self._chromium = Chromium()
        self._chromium.restarted = had_crashed
        self._turn = asyncio.Lock()
        self._ended = asyncio.Event()
        self._hangs = False
        """The last action took too long. The window is made usable when that was answered."""

    async def serve(self, path: str) -> None:
        """Serve until the action `close`."""
        server = await asyncio.start_unix_server(self._converse, path, limit=_MAX_REQUEST)
        async with server:
            await self._ended.wait()
        await self._chromium.stop()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        work: asyncio.Task[dict[str, Any]] | None = None
        try:
            writer.write(GREETING)
            request = json.loads(await reader.readline())
            async with self._turn:
                work = asyncio.create_task(self._answer(request))
                gone = asyncio.create_task(reader.read(1))
                await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel()
                if not work.done():
                    work.cancel()
                    with suppress(asyncio.CancelledError):
                        await work
                    await self._chromium.revive()
                    return
                writer.write(json.dumps(well_formed(work.result())).encode() + b"\n")
                with suppress(OSError):
                    await writer.drain()
                if self._hangs:
                    self._hangs = False
                    await self._chromium.revive()
            if request["name"] == "close":
                self._ended.set()
        except (ValueError, OSError):  # no request
            pass
        finally:
            writer.close()

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name, parameters = str(request["name"]), dict(request["parameters"])
        try:
            if (action := ACTIONS.get(name)) is None:
                raise Refused("bad_request", f"there is no action {name[:100]!r}")
            timeout = _seconds(parameters.pop("timeout", None))
            checked(partial(action, self._chromium, None), parameters)
            result = await self._carried_out(name, partial(action, **parameters), timeout)
        except Refused as refused:
            message = refused.message[:_MAX_MESSAGE]
            return {"refused": {"code": refused.code, "message": message}}
        answer: dict[str, Any] = {"result": result}
        if name == "screenshot":
            wanted = bool(parameters.get("full_page"))
            answer["screenshot"] = await picture_of(self._chromium, full_page=wanted)
        elif request.get("picture") and name != "close":
            answer["screenshot"] = await picture_of(self._chromium, small=True)
        return {key: value for key, value in answer.items() if value is not None}

    async def _carried_out(
        self, name: str, carry_out: Callable[..., Awaitable[dict[str, Any]]], timeout: float
    ) -> dict[str, Any]:
        chromium = self._chromium
        if name == "close":
            return {}
        await chromium.ready()
        try:
            async with asyncio.timeout(timeout + _SLACK_S):
                result = await carry_out(chromium, Deadline(timeout))
                return result | await chromium.state()
        except (BuiltinTimeoutError, TimeoutError) as error:
            self._hangs = True
            raise Refused(
                "timeout", f"{name} took longer than {timeout:g} s: {_first_line(error)}"
            ) from error
        except Error as error:
            if chromium.has_ended or chromium.page_crashed:
                what = "browser" if chromium.has_ended else "page"
                raise Refused(
                    "crashed", f"the {what} crashed; the next action starts another one"
                ) from error
            raise Refused("failed", _explained(error)) from error


def _seconds(given: Any) -> float:
    if given is None:
        return DEFAULT_S
    if type(given) not in (int, float) or not 0 < given <= MOST_S:
        raise Refused("bad_request", f"timeout must be a number of seconds up to {MOST_S:g}")
    return float(given)


_HINTS = {
    "ERR_TUNNEL_CONNECTION_FAILED": "the sandbox's network does not allow this host",
    "ERR_PROXY_CONNECTION_FAILED": "the sandbox's network does not answer",
    "ERR_NAME_NOT_RESOLVED": "there is no such host, or the sandbox has no network",
    "ERR_INTERNET_DISCONNECTED": "the sandbox has no network",
    "ERR_ADDRESS_UNREACHABLE": "the sandbox has no network there",
    "ERR_CONNECTION_REFUSED": "nothing listens there",
}


def _explained(error: Error) -> str:
    """Playwright's message, without the log of its steps."""
    message = _first_line(error)
    hint = next((text for name, text in _HINTS.items() if name in message), "")
    return f"{message}: {hint}" if hint else message


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else "no answer"


def main() -> None:
    asyncio.run(Server(had_crashed="--after-a-crash" in sys.argv[2:]).serve(sys.argv[1]))


if __name__ == "__main__":
    main()
