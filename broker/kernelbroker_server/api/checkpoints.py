"""Checkpoints over HTTP: save a session, fork it; list, get and delete checkpoints."""

from __future__ import annotations

import msgspec
from kernelbroker.protocol.messages import (
    CheckpointInfo,
    CheckpointList,
    CheckpointRequest,
    CheckpointSummary,
    ForkOptions,
    SessionInfo,
)

from .base import ApiHandler
from .descriptions import session_info
from .disconnect import Disconnectable
from .openapi import operation


class SaveCheckpoint(Disconnectable, ApiHandler):
    @operation({201: CheckpointInfo}, body=CheckpointRequest)
    async def post(self, session_id: str) -> None:
        """Save the session's variables and files, after the cells that were queued before."""
        request = self.body_as(CheckpointRequest)
        session = await self.tenant.sessions.resolve(session_id)
        async with self.until_disconnected():
            self.reply(await self.tenant.checkpoints.save(session, request), 201)


class Fork(Disconnectable, ApiHandler):
    @operation({201: SessionInfo}, body=ForkOptions)
    async def post(self, session_id: str) -> None:
        """Open a session with the variables and a copy of the files of this one."""
        options = self.body_as(ForkOptions)
        session = await self.tenant.sessions.resolve(session_id)
        async with self.until_disconnected():  # no client would know the fork
            fork = await self.tenant.checkpoints.fork(session, options)
            self.reply(session_info(fork), 201)


class Checkpoints(ApiHandler):
    @operation({200: CheckpointList})
    async def get(self) -> None:
        """List the checkpoints, oldest first, without their variables."""
        found = await self.tenant.checkpoints.list()
        summaries = [
            msgspec.convert(each, CheckpointSummary, from_attributes=True) for each in found
        ]
        self.reply(CheckpointList(checkpoints=summaries))


class OneCheckpoint(ApiHandler):
    @operation({200: CheckpointInfo})
    async def get(self, checkpoint: str) -> None:
        """Get a checkpoint: what it holds, and what is missing in it."""
        self.reply(await self.tenant.checkpoints.get(checkpoint))

    @operation({204: None})
    async def delete(self, checkpoint: str) -> None:
        """Delete a checkpoint."""
        await self.tenant.checkpoints.delete(checkpoint)
        self.set_status(204)
