"""Fork servers: launches, deaths, silence, replacement, and what the broker reports of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.base import EndCause, SandboxSpec
from kernelbroker_server.backends.fork_server import ForkServer
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND
from kernelbroker_server.pool.warm_sandbox import discard, launch, run_silently

from .probes import (
    DEADLINE_S,
    ask,
    end,
    needs_jail,
    needs_kernel_environment,
    running_backend,
    tell,
    until,
)

pytestmark = [pytest.mark.sandbox, needs_jail, needs_kernel_environment]

MIB = 1024**2


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with running_backend(fork_server=True) as backend:
        yield backend


async def server_of(backend: LocalBackend) -> ForkServer:
    """The server of the default template."""
    assert backend.fork_servers is not None
    server = await backend.fork_servers.get(SandboxSpec(), backend._command)
    assert server is not None
    return server


def pid_of(server: ForkServer) -> int:
    """The pid of the server's Python, which is a child of bubblewrap."""
    table = procfs.processes()
    (pid,) = (pid for pid, entry in table.items() if entry.parent == server._child.pid)
    return pid


# Launches


async def test_sandboxes_are_forked(backend: LocalBackend) -> None:
    """All sandboxes of a template are forked from one server, also the first one."""
    for name in ("one", "two"):
        sandbox = await backend.launch(name, SandboxSpec())
        assert sandbox.forked
        assert await ask(sandbox, "result = [os.getpid(), os.getuid(), os.getcwd()]") == [
            3,
            1000,
            "/data",
        ]
    assert backend.describe()["launches"] == {
        "default": {"by": "fork", "fork_server": "ready", "forks": 2, "failures": 0}
    }


async def test_each_template_has_a_server(backend: LocalBackend) -> None:
    """Sandboxes with other variables come from another server, which had them at its imports."""
    spec = SandboxSpec(template="other", env={"MINE": "1"})
    other = await backend.launch("other", spec)
    default = await backend.launch("default", SandboxSpec())
    assert await ask(other, "result = os.environ.get('MINE')") == "1"
    assert await ask(default, "result = os.environ.get('MINE')") is None
    assert set(backend.describe()["launches"]) == {"default", "other"}  # type: ignore[call-overload]


async def test_a_forked_kernel_runs_cells() -> None:
    """A forked gateway gives its kernel, forked as well, to the broker; cells run there."""
    async with running_backend(fork_server=True, command=GATEWAY_COMMAND) as backend:
        warm = await launch(backend, "one", SandboxSpec(imports=("json",)), DEADLINE_S)
        await run_silently(warm, "import os; open('/data/pid', 'w').write(str(os.getppid()))", {})
        assert (warm.sandbox.workspace / "pid").read_text() == "3"
        await discard(backend, warm.sandbox, warm.gateway)


# Failures of the server


async def test_a_dead_server_ends_no_sandbox(backend: LocalBackend) -> None:
    """Sandboxes survive their server's death. The next one is started, later ones are forked again."""
    survivor = await backend.launch("survivor", SandboxSpec())
    server = await server_of(backend)
    os.kill(pid_of(server), signal.SIGKILL)
    await asyncio.wait_for(server.closed, DEADLINE_S)
    plain = await backend.launch("plain", SandboxSpec())
    assert not plain.forked
    assert await ask(plain, "result = 1") == 1
    assert await ask(survivor, "result = 1") == 1
    launches = backend.describe()["launches"]
    assert launches["default"]["by"] == "start"  # type: ignore[index]
    assert launches["default"]["fork_server"] == "backing_off"  # type: ignore[index]
    await until(lambda: backend.describe()["launches"]["default"]["by"] == "fork")  # type: ignore[index]
    assert (await backend.launch("forked", SandboxSpec())).forked
    await tell(survivor, "os._exit(3)")
    ended = await end(survivor)
    assert ended.cause is EndCause.KERNEL_DIED
    await backend.remove(survivor)
