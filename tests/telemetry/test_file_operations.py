"""File operations in the audit log and the metrics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server.audit import Audit
from kernelbroker_server.kernels.endpoint import UnixEndpoint
from kernelbroker_server.kernels.gateway import GatewayConnection
from kernelbroker_server.kernels.transfer import GatewayRequest
from kernelbroker_server.telemetry.audit_observer import AuditObserver
from kernelbroker_server.telemetry.events import combine_observers
from kernelbroker_server.telemetry.metrics import Metrics

from tests.support.backend import fake_backend
from tests.support.http import serving
from tests.support.raw import answering
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import world

FILES = "/api/v1/sessions/mine/files"
REFUSAL = b'{"code": "not_found", "message": "no"}'


async def sandbox(head: bytes, writer: asyncio.StreamWriter) -> None:
    """A file server that has `there` with 5 bytes, `endless`, and nothing else."""
    method, path = head.split(b" ")[:2]
    if b"none" in path:
        writer.write(b"HTTP/1.1 404 No\r\nContent-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL))
    elif b"endless" in path:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(bytes(2**16))
            await writer.drain()
    elif method == b"GET":
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
    else:
        writer.write(b"HTTP/1.1 204 OK\r\n\r\n")
    await writer.drain()


async def test_refused_uploads_are_recorded(tmp_path: Path) -> None:
    """An upload that is refused before its body is read has a record with the reason."""
    audit = Audit(tmp_path / "audit")
    async with (
        fake_backend() as backend,
        world(backend, observer=AuditObserver(audit).on_event) as w,
        serving(w) as api,
    ):
        limit = (await w.open("mine")).limits.max_file_bytes
        assert (await api.ask("PUT", f"{FILES}/big", length=limit + 1)).status == 413
        headers = {"Transfer-Encoding": "chunked"}
        assert (await api.ask("PUT", f"{FILES}/both", headers=headers)).status == 400
    audit.close()
    records = map(json.loads, (tmp_path / "audit").read_text().splitlines())
    assert [
        (each["session"], each["operation"], each["path"], each["outcome"], each["bytes"])
        for each in records
        if each["event"] == "file"
    ] == [("mine", "upload", "big", "too_large", 0), ("mine", "upload", "both", "bad_request", 0)]


async def test_each_file_operation_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each operation has one record with session, path, bytes and outcome, and without the content."""
    audit, metrics = Audit(tmp_path / "audit"), Metrics(dict)
    observer = combine_observers([AuditObserver(audit).on_event, metrics.on_event])

    def records() -> list[dict[str, Any]]:
        lines = (tmp_path / "audit").read_text().splitlines()
        return [each for each in map(json.loads, lines) if each["event"] == "file"]

    async def request(_: GatewayConnection, *arguments: Any) -> GatewayRequest:
        return await GatewayRequest.open(UnixEndpoint(tmp_path / "files.sock"), *arguments)

    async with (
        fake_backend() as backend,
        world(backend, observer=observer) as w,
        serving(w, observer=observer) as api,
        answering(sandbox, tmp_path / "files.sock"),
    ):
        await w.open("mine")
        monkeypatch.setattr(GatewayConnection, "request", request)
        assert (await api.ask("PUT", f"{FILES}/there", b"the content")).status == 204
        assert (
            await api.ask("PUT", f"{FILES}/there", b"4\r\nmore\r\n0\r\n\r\n", chunked=True)
        ).status == 204
        assert (await api.ask("GET", f"{FILES}/there")).body == b"hello"
        assert (await api.ask("GET", f"{FILES}/none")).status == 404
        assert (await api.ask("POST", f"{FILES}/there?op=move&to=%ff.txt")).status == 204
        assert (await api.ask("POST", f"{FILES}/new?op=mkdir")).status == 204
        assert (await api.ask("DELETE", f"{FILES}/there")).status == 204
        assert (await api.ask("DELETE", f"{FILES}/none")).status == 404
        async with api.exchange("GET", f"{FILES}/endless") as exchange:
            assert exchange.status == 200
            exchange.hang_up()
        async with asyncio.timeout(DEADLINE_S):
            await until(lambda: len(records()) == 9)
    audit.close()
    found = records()
    assert {(each["tenant"], each["template"], each["session"]) for each in found} == {
        ("default", "default", "mine")
    }
    assert [
        (each["operation"], each["path"], each["outcome"], each["bytes"]) for each in found[:-1]
    ] == [
        ("upload", "there", "success", 11),
        ("upload", "there", "success", 4),
        ("download", "there", "success", 5),
        ("download", "none", "not_found", 0),
        ("move", "there", "success", 0),
        ("mkdir", "new", "success", 0),
        ("delete", "there", "success", 0),
        ("delete", "none", "not_found", 0),
    ]
    assert found[4]["target"] == "\udcff.txt"
    assert (found[-1]["operation"], found[-1]["outcome"]) == ("download", "aborted")
    assert found[-1]["bytes"] > 0
    assert "the content" not in (tmp_path / "audit").read_text()
    text = metrics.text().decode()
    assert 'kernelbroker_file_bytes_total{operation="upload",tenant="default"} 15.0' in text
    assert (
        'kernelbroker_file_operation_seconds_count{operation="delete",outcome="not_found"} 1.0'
        in text
    )
