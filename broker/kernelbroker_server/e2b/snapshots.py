"""Snapshots, which are checkpoints. A sandbox is created from one by its name, in place of a template's."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import CheckpointInfo, CheckpointRequest
from kernelbroker.protocol.wrong_fields import words_of

from .listing import PagedHandler
from .messages import NewSnapshot
from .sandboxes import SandboxesHandler


class NewSnapshots(SandboxesHandler):
    """`POST /sandboxes/ID/snapshots`."""

    async def post(self, sandbox_id: str) -> None:
        name = self.body_as(NewSnapshot).name or f"snapshot-{secrets.token_hex(6)}"
        if name in self.surface.templates or name in self.service.pools:
            raise BadRequest(f"{name} is the name of a template; choose another one")
        try:
            request = msgspec.convert({"name": name}, CheckpointRequest)
        except msgspec.ValidationError as exc:
            raise BadRequest(f"the name of a snapshot: {words_of(exc, CheckpointRequest)}") from exc
        session = await self.session(sandbox_id)
        self.reply(_described(await self.tenant.checkpoints.save(session, request)), 201)


class Snapshots(PagedHandler):
    """`GET /snapshots`."""

    async def get(self) -> None:
        sandbox_id = self.get_query_argument("sandboxID", None)
        name = self.get_query_argument("name", None)
        found = [
            each
            for each in await self.tenant.checkpoints.list()
            if sandbox_id in (None, each.session_id) and name in (None, each.name)
        ]
        found.sort(key=lambda each: each.name)
        self.reply_page(found, lambda each: each.name, _described)


class DeleteTemplate(SandboxesHandler):
    """`DELETE /templates/NAME`, by which E2B's clients delete snapshots."""

    async def delete(self, name: str) -> None:
        if name in self.surface.templates or name in self.service.pools:
            raise BadRequest(f"{name} is a template of this broker: its operator can remove it")
        await self.tenant.checkpoints.delete(name)
        self.set_status(204)


def _described(checkpoint: CheckpointInfo) -> dict[str, Any]:
    return {"snapshotID": checkpoint.name, "names": [checkpoint.name]}
