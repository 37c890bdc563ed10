"""Workspaces over HTTP: list and delete."""

from __future__ import annotations

from kernelbroker.protocol.messages import WorkspaceInfo, WorkspaceList

from ..workspaces.store import StoredWorkspace
from .base import ApiHandler
from .descriptions import utc_time
from .openapi import operation


class Workspaces(ApiHandler):
    @operation({200: WorkspaceList})
    async def get(self) -> None:
        """List the workspaces, least recently used first."""
        workspaces = await self.tenant.workspaces.list(self.tenant.name)
        self.reply(WorkspaceList(workspaces=[_info(workspace) for workspace in workspaces]))


class OneWorkspace(ApiHandler):
    @operation({204: None})
    async def delete(self, workspace: str) -> None:
        """Delete a workspace that no session uses."""
        await self.tenant.workspaces.delete(self.tenant.name, workspace)
        self.set_status(204)


def _info(workspace: StoredWorkspace) -> WorkspaceInfo:
    expires_at = workspace.expires_at
    in_use = workspace.session_id is not None
    return WorkspaceInfo(
        name=workspace.name,
        size=None if in_use else workspace.usage.size,
        files=None if in_use else workspace.usage.files,
        last_used_at=utc_time(workspace.used_at),
        expires_at=None if expires_at is None else utc_time(expires_at),
        session_id=workspace.session_id,
    )
