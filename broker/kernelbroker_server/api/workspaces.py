"""Workspaces over HTTP: list them, remove one."""

from __future__ import annotations

from kernelbroker.protocol.messages import WorkspaceInfo, WorkspaceList

from ..backends.kept import Record
from .base import ApiHandler, iso_time
from .contract import operation


class Workspaces(ApiHandler):
    @operation({200: WorkspaceList})
    async def get(self) -> None:
        """List the workspaces, the one used last at the end."""
        records = await self.registry.workspaces.list(self.registry.tenant.name)
        self.reply(WorkspaceList(workspaces=[self._info(record) for record in records]))

    def _info(self, record: Record) -> WorkspaceInfo:
        expires_at = self.registry.workspaces.expires_at(record)
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
    @operation({204: None})
    async def delete(self, workspace: str) -> None:
        """Remove a workspace that no session has."""
        await self.registry.workspaces.delete(self.registry.tenant.name, workspace)
        self.set_status(204)
