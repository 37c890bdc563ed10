"""Workspaces over HTTP and WebSocket."""

from __future__ import annotations

from typing import Any

from tests.support.backend import FakeBackend
from tests.support.http import Api
from tests.support.waiting import until


async def workspaces(api: Api) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.ask("GET", "/api/v1/workspaces")).json["workspaces"]
    return found


async def test_workspaces_are_listed_and_deleted(api: Api, backend: FakeBackend) -> None:
    """A workspace is listed with its session, then with size and expiry, until it is deleted."""
    assert await workspaces(api) == []
    body = {"session_id": "one", "workspace": "mine"}
    opened = await api.ask("POST", "/api/v1/sessions", body)
    assert (opened.status, opened.json["workspace"]) == (201, "mine")
    (listed,) = await workspaces(api)
    assert (listed["name"], listed["session_id"], listed["size"]) == ("mine", "one", None)
    assert listed["expires_at"] is None
    answer = await api.ask("DELETE", "/api/v1/workspaces/mine")
    assert (answer.status, answer.error["code"]) == (409, "conflict")
    assert "session one" in answer.error["message"]

    for sandbox in backend.live.values():
        (sandbox.workspace / "file").write_text("x")
    assert (await api.ask("DELETE", "/api/v1/sessions/one")).status == 204
    await until(lambda: not api.world.workspaces_in_use)
    (listed,) = await workspaces(api)
    assert (listed["session_id"], listed["files"]) == (None, 1)
    assert listed["size"] > 0
    assert listed["expires_at"] > listed["last_used_at"]
    assert (await api.ask("DELETE", "/api/v1/workspaces/mine")).status == 204
    assert await workspaces(api) == []
    assert (await api.ask("DELETE", "/api/v1/workspaces/mine")).status == 404


async def test_a_workspace_in_use_is_refused(api: Api) -> None:
    """A second session for a workspace is refused over HTTP and over the WebSocket."""
    await api.ask("POST", "/api/v1/sessions", {"session_id": "one", "workspace": "mine"})
    for path in ("sessions", "exec"):
        body = {"workspace": "mine"} | ({"code": "1"} if path == "exec" else {})
        answer = await api.ask("POST", f"/api/v1/{path}", body)
        assert (answer.status, answer.error["code"]) == (409, "conflict")
        assert "session one" in answer.error["message"]
    answer = await api.ask("POST", "/api/v1/sessions", {"workspace": "../mine"})
    assert answer.status == 400


async def test_single_cells_keep_files_in_named_workspaces(api: Api, backend: FakeBackend) -> None:
    """A cell without a session keeps its files only if it names a workspace."""

    async def write(cell: Any) -> None:
        for sandbox in backend.live.values():
            if sandbox.gateway is cell.kernel:
                (sandbox.workspace / "file").write_text("x")

    backend.scripts["write"] = write
    for body in ({"code": "write"}, {"code": "write", "workspace": "mine"}):
        assert (await api.ask("POST", "/api/v1/exec", body)).status == 200
    await until(lambda: not api.world.workspaces_in_use)
    assert [workspace["name"] for workspace in await workspaces(api)] == ["mine"]
