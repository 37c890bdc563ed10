"""How CRIU is found, run and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.backends.base import Network, SandboxSpec
from kernelbroker_server.backends.criu import Criu, free_pid
from kernelbroker_server.backends.process_saver import CheckpointFailed

from tests.support.requires import requires

from .probes import running_backend

SPEC = SandboxSpec(process_checkpoints=True)


@given(st.sets(st.integers(1, 1000)))
def test_criu_gets_process_ids_that_nobody_had(used: set[int]) -> None:
    """CRIU's own process ids are none of those that it restores."""
    pid = free_pid(used)
    assert pid >= 300
    assert not used & set(range(pid, pid + 64))


def test_a_directory_is_run_with_its_own_loader(tmp_path: Path) -> None:
    """An unpacked Debian system is run by its loader and libraries; an incomplete one is named."""
    criu = Criu.find(str(tmp_path))
    assert criu is not None
    with pytest.raises(CheckpointFailed, match="ld-linux"):
        criu.command("/proc/self/fd/9")
    for name in ("usr/lib64/ld-linux-x86-64.so.2", "usr/lib/x86_64-linux-gnu/x", "usr/sbin/criu"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert criu.command("/9") == [
        "/9/usr/lib64/ld-linux-x86-64.so.2",
        "--library-path",
        "/9/usr/lib/x86_64-linux-gnu",
        "/9/usr/sbin/criu",
    ]


def test_a_program_is_found_by_its_name() -> None:
    """A name is looked up in PATH, and nothing is found if it is not there."""
    criu = Criu.find("sh")
    assert criu is not None and criu.command("/9") == ["/9"]
    assert Criu.find("no-such-program") is None


@requires("bubblewrap")
@requires("root")
@requires("the kernels' environment")
@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("criu", "reason"),
    [("no-such-program", "CRIU is missing: no-such-program"), ("false", "CRIU does not work here")],
)
@requires("control groups")
async def test_the_backend_tells_why_it_does_not_work(criu: str, reason: str) -> None:
    """Sandboxes are launched all the same, and the reason is told for each kind of template."""
    async with running_backend(criu=criu) as backend:
        assert reason in backend.why_no_process_checkpoints(SPEC)
        assert reason in str(backend.describe()["process_checkpoints"])
        sandbox = await backend.launch("one", SPEC)
        assert sandbox.process_saver is None
        networked = SandboxSpec(process_checkpoints=True, network=Network.ALLOWLIST)
        assert "has a network" in backend.why_no_process_checkpoints(networked)
        assert "process_checkpoints = true" in backend.why_no_process_checkpoints(SandboxSpec())
