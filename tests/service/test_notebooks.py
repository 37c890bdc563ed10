"""A session as a notebook: valid, complete, also after its end and after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernelbroker.protocol.errors import NotFound, TooLarge
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_server.service import notebooks
from kernelbroker_server.service.target import Target
from kernelbroker_server.tenants.tenant import Tenant, TenantLimits

from tests.service.test_after_a_crash import after_a_kill, started
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell, CellFailed
from tests.support.http import Api, serving
from tests.support.world import Breakpoint, World, result_of, submit, world
from tests.support.world import running as has_run

PNG = "iVBORw0KGgo="


async def rich(cell: Cell) -> None:
    cell.stdout("one ")
    cell.stdout("line\n")
    cell.send("iopub", "stream", {"name": "stderr", "text": "warning\n"})
    cell.display({"image/png": PNG, "text/plain": "<Figure>"})
    cell.display({"text/html": "<table></table>", "text/plain": "a table"})


async def hostile(cell: Cell) -> None:
    cell.display({"text/plain": "kept", "text/html": 5, "application/x+json": {"a": [1]}})
    cell.stdout("\ud800")


async def fail(cell: Cell) -> None:
    cell.stdout("so far\n")
    raise CellFailed("ValueError", "no")


async def notebook_of(w: World, session_id: str) -> dict[str, Any]:
    """The notebook of a session, which must be valid."""
    text = (await w.service.notebooks.json_of(session_id)).decode()
    parsed = nbformat.reads(text, as_version=4)
    nbformat.validate(parsed)
    assert (parsed.nbformat, parsed.nbformat_minor) == (4, 5)
    return json.loads(text)


def shape(notebook: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Sources, and the types of outputs."""
    cells = notebook["cells"]
    return [(c["source"], [output["output_type"] for output in c["outputs"]]) for c in cells]


EXPECTED = [
    ("rich", ["stream", "stream", "display_data", "display_data"]),
    ("hostile", ["display_data", "stream"]),
    ("fail", ["stream", "error"]),
    ("%%bash\nls", []),
    ("%%script node\n1", []),
]


async def run_all(w: World) -> None:
    session = await w.open("s")
    for number, code in enumerate(("rich", "hostile", "fail")):
        await result_of(submit(session, code, execution_id=f"no.cell.id.{number}"))
    await result_of(submit(session, "ls", language="shell"))
    await result_of(submit(session, "1", language="javascript"))


async def test_it_is_valid_and_complete(backend: FakeBackend, tmp_path: Path) -> None:
    """The notebook of a session is the same while it is open, when it has ended, and after a kill."""
    backend.scripts.update(rich=rich, hostile=hostile, fail=fail)
    first = await started(tmp_path / "first")
    async with world(backend, store=first) as w:
        await run_all(w)
        is_open = await notebook_of(w, "s")
        second = await after_a_kill(tmp_path / "first", "second")
        await w.service.sessions.close("s")
        assert await notebook_of(w, "s") == is_open
    await first.stop()
    async with world(backend, store=second) as w:
        assert await notebook_of(w, "s") == is_open
    await second.stop()
    assert shape(is_open) == EXPECTED
    streams = is_open["cells"][0]["outputs"]
    assert streams[0] == {"output_type": "stream", "name": "stdout", "text": "one line\n"}
    assert streams[2]["data"] == {"image/png": PNG, "text/plain": "<Figure>"}
    assert streams[3]["data"]["text/html"] == "<table></table>"
    assert is_open["cells"][1]["outputs"][0]["data"] == {
        "text/plain": "kept",
        "application/x+json": {"a": [1]},
    }
    error = is_open["cells"][2]["outputs"][1]
    assert (error["ename"], error["evalue"]) == ("ValueError", "no")
    counts = [cell["execution_count"] for cell in is_open["cells"][:3]]
    assert counts == sorted(counts)
    assert is_open["cells"][2]["metadata"]["kernelbroker"]["execution_id"] == "no.cell.id.2"
    assert is_open["metadata"]["kernelbroker"] == {"session_id": "s"}


async def test_a_store_in_memory_gives_the_same(backend: FakeBackend) -> None:
    """Without a state directory there are notebooks, too."""
    backend.scripts.update(rich=rich, hostile=hostile, fail=fail)
    async with world(backend) as w:
        await run_all(w)
        assert shape(await notebook_of(w, "s")) == EXPECTED
        await w.service.sessions.close("s")
        assert shape(await notebook_of(w, "s")) == EXPECTED


async def test_more_executions_than_are_remembered(backend: FakeBackend, tmp_path: Path) -> None:
    """Executions that the memory has forgotten come from the disk."""
    store = await started(tmp_path / "state")
    async with world(backend, store=store) as w:
        session = await w.open("s")
        for number in range(105):
            await result_of(submit(session, f"x = {number}"))
        assert len(session.executions) < 105
        cells = (await notebook_of(w, "s"))["cells"]
        assert [cell["source"] for cell in cells] == [f"x = {number}" for number in range(105)]
    await store.stop()


async def test_a_running_cell_has_its_output_so_far(backend: FakeBackend) -> None:
    """The notebook does not wait for cells that run or wait."""
    point = Breakpoint()

    async def wait(cell: Cell) -> None:
        cell.stdout("begun")
        await point(cell)

    backend.scripts.update(wait=wait)
    async with world(backend) as w:
        session = await w.open("s")
        log = submit(session, "wait")
        submit(session, "later")
        await has_run(log)
        running, queued = (await notebook_of(w, "s"))["cells"]
        assert [output["text"] for output in running["outputs"]] == ["begun"]
        assert running["metadata"]["kernelbroker"]["state"] == "running"
        assert (queued["outputs"], queued["execution_count"]) == ([], None)
        point.go_on.set()
        await result_of(log)


async def test_it_is_the_latest_session_with_the_id(backend: FakeBackend, tmp_path: Path) -> None:
    """If an id was used again, its notebook is that of the new session."""
    store = await started(tmp_path / "state")
    async with world(backend, store=store) as w:
        w.registry._gone._reasons.clear()
        for code in ("first", "second"):
            submitted = await w.service.executions.accept(ExecutionRequest(code=code), Target("s"))
            await result_of(submitted.log)
            await w.service.sessions.close("s")
            w.registry._gone._reasons.clear()  # as after an hour: the id may be used again
        assert shape(await notebook_of(w, "s")) == [("second", [])]
    await store.stop()


async def test_refusals(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown sessions, those of others, and notebooks that are too large are refused."""
    async with world(backend) as w:
        session = await w.open("s")
        await result_of(submit(session))
        other = w.tenants.of(Tenant("other", TenantLimits()))
        for tenant, name in ((w.service, "unknown"), (other, "s")):
            with pytest.raises(NotFound, match="there is no session"):
                await tenant.notebooks.json_of(name)
        monkeypatch.setattr(notebooks, "MAX_BYTES", 10)
        with pytest.raises(TooLarge, match="get them one by one"):
            await w.service.notebooks.json_of("s")


async def test_over_http(backend: FakeBackend) -> None:
    """The notebook has its media type, and a name to save it under."""
    async with world(backend) as w, serving(w) as api:
        await ask(api)


async def ask(api: Api) -> None:
    await api.ask("POST", "/api/v1/exec", {"code": "1", "session_id": "s"})
    answer = await api.ask("GET", "/api/v1/sessions/s/notebook")
    assert answer.headers["content-type"] == "application/x-ipynb+json"
    assert answer.headers["content-disposition"] == 'attachment; filename="s.ipynb"'
    assert json.loads(answer.body)["cells"][0]["source"] == "1"
    assert (await api.ask("GET", "/api/v1/sessions/none/notebook")).status == 404
