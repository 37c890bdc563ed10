"""Workspaces over HTTP: list them, remove one."""

from __future__ import annotations

from kernelbroker.protocol.messages import WorkspaceInfo

from ..backends.kept import Record
from ..sessions.workspace import DEFAULT_TENANT
from .base import ApiHandler, iso_time


class WorkspaceList(ApiHandler):
    """GET /workspaces: all of them, the one used last at the end."""

    async def get(self) -> None:
        records = await self.service.registry.workspaces.list(DEFAULT_TENANT)
        self.reply({"workspaces": [self._info(record) for record in records]})

    def _info(self, record: Record) -> WorkspaceInfo:
        expires_at = self.service.registry.workspaces.expires_at(record)
        unused = not record.session_id
        return WorkspaceInfo(
            name=record.name,
            size=record.size if unused else None,
            files=record.files if unused else None,
            last_used_at=iso_time(record.used_at),
            expires_at=None if expires_at is None else iso_time(expires_at),
            session_id=record.session_id or None,
        )


class OneWorkspace(ApiHandler):
    """DELETE /workspaces/{name}."""

    async def delete(self, name: str) -> None:
        await self.service.registry.workspaces.delete(DEFAULT_TENANT, name)
        self.set_status(204)
