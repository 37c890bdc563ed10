"""The browser outside of the sandboxes."""

from __future__ import annotations

from typing import Any

from kernelbroker.protocol.operations import CodeOperationResponse

from .base import ApiHandler
from .disconnect import Disconnectable
from .openapi import operation


class ExternalBrowser(Disconnectable, ApiHandler):
    @operation({200: CodeOperationResponse}, body=dict[str, Any])
    async def post(self, action: str) -> None:
        """Use the operator's browser: `navigate`, `screenshot` or `close`, with their parameters.

        It shares no files with sessions. The answer has a picture of the page.
        """
        parameters = self.body_as(dict[str, Any])
        async with self.until_disconnected():
            self.reply(await self.tenant.browse(action, parameters))
