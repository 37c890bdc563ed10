"""Calls of the engine, with scripted answers."""

from __future__ import annotations

from typing import Any

import pytest
from docker.errors import APIError, NotFound
from kernelbroker_server.backends import engine as engine_module
from kernelbroker_server.backends.engine import Engine, EngineError


class Api:
    """An engine that gives these answers, one for each call."""

    def __init__(self, *answers: Exception | None) -> None:
        self.answers = list(answers)

    def remove_container(self, name: str, **_: Any) -> None:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_REMOVE_PAUSES_S", (0.0,) * 3)


@pytest.mark.parametrize("last", [None, NotFound("no such container")], ids=["removed", "gone"])
async def test_removal_is_attempted_again(last: Exception | None) -> None:
    """Podman refuses to remove a container while it cleans up after the container's end."""
    engine = Engine(None)
    engine._api = Api(APIError("container state improper"), APIError("stopped"), last)
    await engine.remove("one")
    assert engine._api.answers == []


async def test_removal_that_fails_is_an_error() -> None:
    """After a few attempts the engine's message is raised."""
    engine = Engine(None)
    engine._api = Api(*[APIError("container state improper")] * 4)
    with pytest.raises(EngineError, match="improper"):
        await engine.remove("one")
    assert engine._api.answers == []
