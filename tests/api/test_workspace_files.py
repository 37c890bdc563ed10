"""The files of workspaces that no session has, over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.telemetry.audit_observer import AuditObserver
from kernelbroker_server.workspaces.directory_store import DirectoryStore
from kernelbroker_server.workspaces.quota import Quota

from tests.support.backend import FakeBackend, fake_backend
from tests.support.deep_tree import make_deep_tree
from tests.support.http import TOKEN, Answer, Api, serving
from tests.support.waiting import until
from tests.support.world import world

MINE = "/api/v1/workspaces/mine"
FILES = f"{MINE}/files"


async def put(api: Api, path: str, data: bytes = b"x", expected: int = 204) -> Answer:
    answer = await api.ask("PUT", f"{FILES}/{path}", data)
    assert answer.status == expected, answer.body
    return answer


async def listed(api: Api, query: str = "?recursive=true") -> list[str]:
    answer = await api.ask("GET", f"{FILES}{query}")
    assert answer.status == 200, answer.body
    return [f"{each['path']} {each['kind']}" for each in answer.json["entries"]]


def public(backend: FakeBackend) -> Path:
    return backend.data_dir / "workspaces" / "default" / "mine"


async def test_files_are_written_listed_read_and_deleted(api: Api) -> None:
    """The first upload makes the workspace; lists, parts and deletions are as in a session."""
    assert (await api.ask("GET", FILES)).status == 404
    await put(api, "deep/er/file.txt", b"0123456789")
    await put(api, "other")
    assert await listed(api) == [
        "deep directory",
        "deep/er directory",
        "deep/er/file.txt file",
        "other file",
    ]
    assert await listed(api, "") == ["deep directory", "other file"]
    assert await listed(api, "?path=deep/er") == ["deep/er/file.txt file"]
    assert await listed(api, "?path=other") == ["other file"]
    answer = await api.ask("GET", f"{FILES}/deep/er/file.txt")
    assert (answer.status, answer.body) == (200, b"0123456789")
    async with api.exchange("HEAD", f"{FILES}/deep/er/file.txt") as exchange:
        assert (exchange.status, exchange.headers["content-length"]) == (200, "10")
    assert answer.headers["content-type"] == "text/plain"
    assert answer.headers["content-disposition"] == "attachment"
    for part, status, body, content_range in [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=8-", 206, b"89", "bytes 8-9/10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("lines=1", 200, b"0123456789", None),
    ]:
        answer = await api.ask("GET", f"{FILES}/deep/er/file.txt", headers={"Range": part})
        assert (answer.status, answer.body) == (status, body), part
        assert answer.headers.get("content-range") == content_range
    answer = await api.ask("GET", f"{FILES}/other", headers={"Range": "bytes=5-"})
    assert (answer.status, answer.headers["content-range"]) == (416, "bytes */1")
    assert (await api.ask("DELETE", f"{FILES}/deep")).status == 409
    assert (await api.ask("DELETE", f"{FILES}/deep?recursive=true")).status == 204
    assert (await api.ask("DELETE", f"{FILES}/deep")).status == 404
    assert await listed(api) == ["other file"]
    await put(api, "empty", b"")
    assert (await api.ask("GET", f"{FILES}/empty")).body == b""


async def test_bad_requests_are_refused(api: Api) -> None:
    """Paths out of the workspace, wrong kinds, names and options get a clear error and leave nothing."""
    await put(api, "directory/file")
    for path in ("..%2Fx", "a/..%2F..%2Fx", "%2Fetc/passwd", "a%00b", "x" * 5000, ""):
        for method in ("GET", "DELETE"):
            answer = await api.ask(method, f"{FILES}/{path}")
            assert (answer.status, answer.error["code"]) == (400, "bad_request"), path
        await put(api, path, expected=400)
    await put(api, "directory", expected=409)
    await put(api, "directory/file/deeper", expected=409)
    assert (await api.ask("GET", f"{FILES}/directory")).status == 409
    assert (await api.ask("GET", f"{FILES}/nothing")).status == 404
    assert (await api.ask("GET", f"{FILES}?recursive=perhaps")).status == 400
    for name in (".hidden", "..", "a%2Fb"):
        answer = await api.ask("PUT", f"/api/v1/workspaces/{name}/files/x", b"x")
        assert answer.status in (400, 404), name
    for body in ({"max_size": 0}, {"retention": -1}, {"layout": "other"}, {"unknown": 1}):
        assert (await api.ask("PUT", MINE, body)).status == 400, body
    assert await listed(api) == ["directory directory", "directory/file file"]
    assert [
        each["name"] for each in (await api.ask("GET", "/api/v1/workspaces")).json["workspaces"]
    ] == ["mine"]


async def test_planted_links_lead_nowhere(api: Api, backend: FakeBackend, tmp_path: Path) -> None:
    """Links, pipes and directories of user code are neither followed nor waited for."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    await put(api, "file")
    (public(backend) / "link").symlink_to(secret / "file")
    (public(backend) / "directory").symlink_to(secret)
    os.mkfifo(public(backend) / "pipe")
    for path in ("link", "directory/file", "pipe"):
        answer = await api.ask("GET", f"{FILES}/{path}")
        assert (answer.status, answer.error["code"]) == (409, "conflict"), path
    await put(api, "directory/new", expected=409)
    assert (await api.ask("DELETE", f"{FILES}/directory/file")).status == 409
    assert (await api.ask("GET", f"{FILES}?path=directory/file")).status == 409
    assert await listed(api) == ["directory symlink", "file file", "link symlink", "pipe other"]
    await put(api, "link", b"replaced")
    assert (await api.ask("DELETE", f"{FILES}/directory?recursive=true")).status == 204
    assert [path.name for path in secret.iterdir()] == ["file"]
    assert (secret / "file").read_text() == "secret"


async def test_a_deep_tree_is_deleted(api: Api, backend: FakeBackend) -> None:
    """A tree that is deeper than a list may be is listed up to the bound, and deleted."""
    await put(api, "tree/file")
    make_deep_tree(public(backend) / "tree", 200)
    answer = await api.ask("GET", f"{FILES}?recursive=true")
    assert answer.json["truncated"] is True
    assert (await api.ask("DELETE", f"{FILES}/tree?recursive=true")).status == 204
    assert (await api.ask("GET", FILES)).status == 404  # an empty workspace is not kept


async def test_requests_share_a_workspace_and_sessions_wait_for_them(
    api: Api, backend: FakeBackend
) -> None:
    """Many files are written and read at once, and a session that opens meanwhile gets all of them."""
    await asyncio.gather(*(put(api, f"file{n}", b"%d" % n * 100_000) for n in range(20)))
    writes = [asyncio.create_task(put(api, f"more{n}")) for n in range(5)]
    reads = [asyncio.create_task(api.ask("GET", f"{FILES}/file{n}")) for n in range(10)]
    for n, answer in enumerate(await asyncio.gather(*reads)):
        assert (answer.status, answer.body) == (200, b"%d" % n * 100_000)
    await asyncio.gather(*writes)
    body = {"session_id": "one", "workspace": "mine"}
    reading = asyncio.create_task(api.ask("GET", f"{FILES}/file1"))
    opened = await api.ask("POST", "/api/v1/sessions", body)
    assert opened.status == 201
    await asyncio.wait([reading])
    (sandbox,) = [each for each in backend.live.values() if any(each.workspace.iterdir())]
    assert len(list(sandbox.workspace.iterdir())) == 25


async def test_a_read_does_not_keep_a_session_waiting(api: Api) -> None:
    """A slow download goes on while a session opens with the workspace."""
    await put(api, "large", bytes(30_000_000))
    async with api.exchange("GET", f"{FILES}/large") as exchange:
        body = {"session_id": "one", "workspace": "mine"}
        assert (await api.ask("POST", "/api/v1/sessions", body)).status == 201
        assert len(await exchange.body()) == 30_000_000


async def test_the_quota_is_enforced() -> None:
    """Files that do not fit are refused, also together, and leave nothing; deleting makes room."""
    spec = SandboxSpec(limits=Limits(workspace_size=1_000_000, workspace_files=5))
    async with fake_backend() as backend, world(backend, spec=spec) as w, serving(w) as api:
        answer = await put(api, "large", bytes(1_100_000), expected=413)
        assert "its limit is" in answer.error["message"]
        answers = await asyncio.gather(
            *(api.ask("PUT", f"{FILES}/part{n}", bytes(400_000)) for n in range(4))
        )
        assert sorted(each.status for each in answers) == [204, 204, 413, 413]
        kept = [each.split()[0] for each in await listed(api)]
        assert len(kept) == 2
        await put(api, "one-more", bytes(400_000), expected=413)
        assert (await api.ask("DELETE", f"{FILES}/{kept[0]}")).status == 204
        await until(lambda: not w.workspaces_in_use)
        await put(api, "one-more", bytes(400_000))
        await put(api, "a")
        await put(api, "b")
        await put(api, "c")
        answer = await put(api, "d", expected=413)
        assert "5 files" in answer.error["message"]


async def test_a_workspace_is_made_with_bounds_and_a_layout(api: Api, backend: FakeBackend) -> None:
    """PUT makes a workspace that stays while it is empty, with its own size and retention."""
    answer = await api.ask("PUT", MINE, {"max_size": 100_000, "retention": 60})
    assert (answer.status, answer.json["files"]) == (201, 0)
    await until(lambda: not api.world.workspaces_in_use)
    found = (await api.ask("GET", MINE)).json
    assert found["expires_at"] is not None
    assert found["host_path"] == str(public(backend))
    assert (await api.ask("PUT", MINE, {"max_size": 100_000, "layout": "agent"})).status == 200
    assert await listed(api) == [
        ".memory directory",
        ".memory/findings.md file",
        ".memory/progress.md file",
        ".memory/task_plan.md file",
        "artifacts directory",
        "code directory",
        "data directory",
        "output directory",
        "temp directory",
    ]
    notes = await api.ask("GET", f"{FILES}/.memory/task_plan.md")
    assert notes.body.decode().splitlines()[0] == "# Task Plan"
    await put(api, ".memory/findings.md", b"mine")
    assert (await api.ask("PUT", MINE, {"max_size": 100_000, "layout": "agent"})).status == 200
    assert (await api.ask("GET", f"{FILES}/.memory/findings.md")).body == b"mine"
    await put(api, "large", bytes(100_001), expected=413)
    assert (await api.ask("GET", "/api/v1/workspaces/other")).status == 404


async def test_operations_are_audited(tmp_path: Path) -> None:
    """The audit log has each operation with workspace, path, outcome and size."""
    audit = Audit(tmp_path / "audit")
    async with (
        fake_backend() as backend,
        world(backend, observer=AuditObserver(audit).on_event) as w,
        serving(w) as api,
    ):
        await put(api, "file", b"hello")
        await api.ask("GET", f"{FILES}/file")
        await api.ask("GET", f"{FILES}/none")
        limit = w.service.workspace_files.max_file_bytes
        assert (await api.ask("PUT", f"{FILES}/big", length=limit + 1)).status == 413
        await api.ask("DELETE", f"{FILES}/file")
    audit.close()
    records = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert [
        (r["operation"], r["workspace"], r["path"], r["outcome"], r["bytes"])
        for r in records
        if r["event"] == "file"
    ] == [
        ("upload", "mine", "file", "success", 5),
        ("download", "mine", "file", "success", 5),
        ("download", "mine", "none", "not_found", 0),
        ("upload", "mine", "big", "too_large", 0),
        ("delete", "mine", "file", "success", 0),
    ]
    assert {(r["tenant"], r["session"]) for r in records if r["event"] == "file"} == {
        ("default", None)
    }


async def test_an_upload_that_breaks_off_leaves_nothing(api: Api, backend: FakeBackend) -> None:
    """A client that disconnects in the middle of an upload leaves no file, and no lock."""
    await put(api, "file")
    head = f"PUT {FILES}/large HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(f"{head}Content-Length: 1000\r\n\r\nhalf".encode())
    await until(lambda: len(list(public(backend).iterdir())) == 2)
    writer.transport.abort()
    await until(lambda: not api.world.workspaces_in_use)
    assert await listed(api) == ["file file"]
    assert [path.name for path in public(backend).iterdir()] == ["file"]


async def test_a_closing_session_is_waited_for(api: Api, backend: FakeBackend) -> None:
    """A call that comes while a session puts its files back waits, and then finds them."""
    body = {"session_id": "one", "workspace": "mine"}
    assert (await api.ask("POST", "/api/v1/sessions", body)).status == 201
    for sandbox in backend.live.values():
        (sandbox.workspace / "file").write_text("x")
    closing = asyncio.create_task(api.ask("DELETE", "/api/v1/sessions/one"))
    answers = await asyncio.gather(*(api.ask("GET", f"{FILES}/file") for _ in range(3)))
    assert (await closing).status == 204
    assert {answer.status for answer in answers} <= {200, 410, 503}
    assert (await api.ask("GET", f"{FILES}/file")).body == b"x"


async def test_tenants_do_not_see_each_other(backend: FakeBackend) -> None:
    """A workspace of the same name of another tenant is another workspace."""
    store = DirectoryStore(backend.data_dir)

    async def data() -> Any:
        yield b"theirs"

    async with world(backend, workspaces=store) as w, serving(w) as api:
        await store.files.write("another", "mine", "file", data(), Quota(1_000_000, 100))
        assert (await api.ask("GET", f"{FILES}/file")).status == 404
        await put(api, "file", b"ours")
        assert (await api.ask("GET", f"{FILES}/file")).body == b"ours"
        assert (await api.ask("DELETE", MINE)).status == 204
        async with store.files.open("another", "mine", "file") as file:
            assert [chunk async for chunk in file.chunks(0, file.size)] == [b"theirs"]
