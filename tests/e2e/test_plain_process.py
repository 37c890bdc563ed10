"""A broker on a machine without bubblewrap."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess
from tests.support.requires import requires

pytestmark = [pytest.mark.sandbox, requires("the kernels' environment")]

LONGEST_DEFAULT = f"/var/tmp/kernelbroker-{2**32 - 1}"
"""What a broker takes for `data_dir` by itself, for the user with the longest id."""


@pytest.fixture
def directory() -> Iterator[Path]:
    """The path of its `data` is as long as the default can be."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        (directory := Path(name, "x" * (len(LONGEST_DEFAULT) - len(f"{name}//data")))).mkdir()
        assert len(str(directory / "data")) == len(LONGEST_DEFAULT)
        yield directory


@pytest.fixture
def without_bubblewrap(directory: Path) -> tuple[str, ...]:
    """A command that takes it off the PATH, and leaves what a broker needs."""
    programs = directory / "bin"
    programs.mkdir()
    for program in ("rm", "chmod"):
        (programs / program).symlink_to(shutil.which(program) or "")
    return ("env", f"PATH={programs}")


async def test_cells_run_without_a_jail(
    directory: Path, without_bubblewrap: tuple[str, ...]
) -> None:
    """Cells run and keep their state if no jail can be created."""
    settings = {"LOCAL__REQUIRE_ISOLATION": "false", "LOCAL__BUBBLEWRAP": "no-such-program"}
    with BrokerProcess(directory, without_bubblewrap, **settings).running() as broker:
        async with kernelbroker.connect(broker.url, broker.token) as client:
            assert (await client.health())["isolation"] == "process"
            async with client.session() as session:
                await session.run("x = 41")
                assert (await session.run("print(x + 1)")).stdout == "42\n"
