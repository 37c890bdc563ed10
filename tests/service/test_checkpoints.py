"""Checkpoints with a scripted sandbox, which answers what a hostile or failing one might."""

from __future__ import annotations

from typing import Any

import pytest
from kernelbroker.protocol.errors import Conflict, NotFound, TooLarge, Unavailable
from kernelbroker.protocol.messages import CheckpointRequest, ForkOptions
from kernelbroker_kernel.contract import INTERNAL_CELL_CODE, INTERNAL_CELL_MIME, METADATA_KEY

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell, CellFailed
from tests.support.world import World, world

REPORT: dict[str, Any] = {
    "variables": [{"name": "x", "type": "int", "size": 3, "form": "pickle"}],
    "missing": [{"name": "g", "reason": "a generator"}],
    "env": [],
    "python": "3.11.7",
}


class Sandbox:
    """What the internal cells of all sandboxes do."""

    def __init__(self, backend: FakeBackend) -> None:
        self.saved: Any = {"saved": REPORT}
        self.loaded: Any = {"loaded": {"missing": REPORT["missing"], "env_missing": ["KEY"]}}
        self.data: bytes | None = b"the stream"
        self.received: list[bytes] = []
        self._backend = backend
        backend.scripts[INTERNAL_CELL_CODE] = self._run

    async def _run(self, cell: Cell) -> None:
        asked = cell.metadata[METADATA_KEY]
        if "save" in asked:
            cell.kernel.exports[asked["save"]["ticket"]] = self.data
            cell.display({INTERNAL_CELL_MIME: self.saved})
        else:
            self.received.append(cell.kernel.files.pop(asked["load"]["path"]))
            if self.loaded is None:
                raise CellFailed("MemoryError", "")
            cell.display({INTERNAL_CELL_MIME: self.loaded})


@pytest.fixture
def sandbox(backend: FakeBackend) -> Sandbox:
    return Sandbox(backend)


async def save(made: World, name: str = "one", **options: Any) -> Any:
    session = await made.open(**options)
    return await made.service.checkpoints.save(session, CheckpointRequest(name=name))


async def test_what_a_sandbox_saves_another_one_gets(
    backend: FakeBackend, sandbox: Sandbox
) -> None:
    """The stream is stored and sent unchanged, and the session tells what could not be loaded."""
    async with world(backend) as made:
        saved = await save(made)
        assert (saved.size, saved.complete, saved.variables[0].name) == (10, False, "x")
        later = await made.open(from_checkpoint="one")
        assert sandbox.received == [b"the stream"]
        assert [each.name for each in later.not_restored] == ["g", "$KEY"]


async def test_a_fork_has_the_environment_and_leaves_no_checkpoint(
    backend: FakeBackend, sandbox: Sandbox
) -> None:
    """A fork inherits environment, secrets and metadata, and the copy between is gone."""
    async with world(backend) as made:
        session = await made.open(env={"A": "1"}, secrets={"S": "s"}, metadata={"m": 1})
        fork = await made.service.checkpoints.fork(session, ForkOptions(session_id="mine"))
        assert (fork.id, fork.workspace) == ("mine", "mine")
        assert fork.options.env == {"A": "1"} and fork.options.secrets == {"S": "s"}
        assert fork.options.metadata == {"m": 1} and fork.options.from_checkpoint is None
        with pytest.raises(Conflict, match="session mine is open"):
            await made.service.checkpoints.fork(session, ForkOptions(session_id="mine"))
        store = made.service.workspaces.checkpoints
        assert await store.list("default") == []


@pytest.mark.parametrize(
    ("saved", "error", "message"),
    [
        ({"saved": 1}, Unavailable, "invalid answer"),
        ({"saved": REPORT | {"variables": [{"name": 1}]}}, Unavailable, "invalid answer"),
        ({"ready": True}, Unavailable, "invalid answer"),
        ({"refused": {"code": "too_large", "message": "delete df"}}, TooLarge, "delete df"),
        ({"refused": {"code": "odd", "message": "no"}}, Conflict, "no"),
    ],
)
async def test_a_refusal_or_an_invalid_answer(
    backend: FakeBackend, sandbox: Sandbox, saved: Any, error: type[Exception], message: str
) -> None:
    """Nothing is stored, and the session can be used."""
    sandbox.saved = saved
    async with world(backend) as made:
        with pytest.raises(error, match=message):
            await save(made)
        assert await made.service.checkpoints.list() == []


async def test_a_stream_that_never_comes(backend: FakeBackend, sandbox: Sandbox) -> None:
    """The earlier checkpoint stays if the sandbox announces data and sends none."""
    async with world(backend) as made:
        await save(made)
        sandbox.data = None
        with pytest.raises(Unavailable, match="status 404"):
            await save(made)
        assert (await made.service.checkpoints.get("one")).size == 10


@pytest.mark.parametrize(
    ("loaded", "error", "message"),
    [
        ({"refused": {"code": "conflict", "message": "it is damaged"}}, Conflict, "it is damaged"),
        ({"refused": {"code": "too_large", "message": "full"}}, TooLarge, "full"),
        ({"loaded": {"missing": [1]}}, Unavailable, "could not be loaded"),
        (None, Unavailable, "MemoryError"),
    ],
)
async def test_a_session_is_not_opened_with_half_a_checkpoint(
    backend: FakeBackend, sandbox: Sandbox, loaded: Any, error: type[Exception], message: str
) -> None:
    """If a checkpoint cannot be loaded, opening fails with the reason, and nothing is left."""
    async with world(backend) as made:
        await save(made, session_id="first")
        sandbox.loaded = loaded
        with pytest.raises(error, match=message):
            await made.open(from_checkpoint="one")
        assert [each.id for each in made.registry.list()] == ["first"]


async def test_an_unknown_checkpoint_costs_no_sandbox(backend: FakeBackend) -> None:
    """The name is checked before a sandbox is leased."""
    async with world(backend) as made:
        with pytest.raises(NotFound, match="no checkpoint nowhere"):
            await made.open(from_checkpoint="nowhere")
        await made.open("here")
        with pytest.raises(Conflict, match="did not begin with checkpoint 'nowhere'"):
            await made.open("here", from_checkpoint="nowhere")
