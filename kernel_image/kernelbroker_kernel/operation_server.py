"""Operations on the project over HTTP, beside the gateway's own handlers; for the broker only.

`contract` has the path. Each operation runs in a thread, a few at a time, so that output keeps flowing.
"""

from __future__ import annotations

import asyncio
import json

from .contract import MAX_OPERATION_BYTES, OPERATIONS_PATH
from .file_server import Handler
from .operations.calls import CHANGING, call

MAX_AT_ONCE = 4

_places = asyncio.Semaphore(MAX_AT_ONCE)
_changing = asyncio.Lock()


class Operation(Handler):
    """POST of ``{parameter: value}`` answers with the operation's response."""

    async def post(self, name: str) -> None:
        parameters = json.loads(self.request.body or b"{}")
        async with _places:
            if name in CHANGING:
                async with _changing:
                    response = await asyncio.to_thread(call, name, parameters)
            else:
                response = await asyncio.to_thread(call, name, parameters)
        text = json.dumps(response).encode()
        if len(text) > MAX_OPERATION_BYTES:
            message = "the result is too large; ask for less of it"
            text = json.dumps({"success": False, "error": message, "code": "too_large"}).encode()
        self.set_header("Content-Type", "application/json")
        self.finish(text)


ROUTES = [(f"{OPERATIONS_PATH}/([a-z_]{{1,40}})", Operation)]
