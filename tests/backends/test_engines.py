"""Engines of the tests, with restarts and other runtimes, and Podman."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server.backends.base import (
    BackendUnavailable,
    EndCause,
    Isolation,
    LaunchError,
    Limits,
    SandboxEnd,
    SandboxSpec,
)
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_transport import Transport
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND
from kernelbroker_server.kernels.gateway import GatewayConnection
from kernelbroker_server.kernels.requests import execute_request

from tests.support.engines import OwnDocker, OwnEngine, OwnPodman
from tests.support.requires import IMAGE, requires

from .probes import (
    DEADLINE_S,
    PROBE,
    ask,
    container_of,
    end,
    engines_are_away,
    run_cell,
    running_docker,
    until,
)

pytestmark = [
    pytest.mark.sandbox,
    requires("docker"),
    *engines_are_away,
]


@pytest.fixture(scope="module")
def own_docker() -> Iterator[OwnDocker]:
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/var/tmp") as directory:
        yield from _running(OwnDocker(Path(directory)))


@pytest.fixture(scope="module")
def podman() -> Iterator[OwnPodman]:
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/var/tmp") as directory:
        yield from _running(OwnPodman(Path(directory)))


def _running(engine: OwnEngine) -> Iterator[OwnEngine]:
    try:
        engine.start()
        engine.load(IMAGE)
        yield engine
    finally:
        engine.close()


@pytest.fixture
def docker(own_docker: OwnDocker) -> Iterator[OwnDocker]:
    """A running dockerd that offers a gVisor that does not work."""
    own_docker.set_gvisor("echo gVisor does not run here >&2; exit 1")
    yield own_docker
    own_docker.stop()
    own_docker.start()


# Runtimes


@requires("root", "dockerd")
async def test_a_runtime_by_its_name(own_docker: OwnDocker) -> None:
    """A runtime of the engine that is named runs the sandboxes."""
    async with running_docker(host=own_docker.host, runtime="crun") as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        assert await ask(sandbox, "result = 1") == 1
        assert backend.describe()["runtime"] == "crun"
        name = container_of(sandbox, own_docker.host)
        inspected = own_docker.cli("inspect", "--format", "{{.HostConfig.Runtime}}", name)
        assert inspected.stdout.strip() == "crun"


@requires("root", "dockerd")
async def test_auto_uses_a_working_gvisor(own_docker: OwnDocker) -> None:
    """`auto` uses a runtime with the name runsc if a cell runs in it."""
    own_docker.set_gvisor('exec runc "$@"')
    async with running_docker(host=own_docker.host, runtime="auto") as backend:
        assert backend.describe()["runtime"] == "runsc"
        assert backend.isolation is Isolation.GVISOR


BREAKS_GATEWAYS = """
for argument; do
  if [ "$before" = --bundle ]; then
    sed -i 's/"--handover"/"--no-such-option"/' "$argument/config.json"
  fi
  before=$argument
done
exec runc "$@"
"""
"""A runtime whose containers start, and in which the gateway fails."""


@requires("root", "dockerd")
async def test_auto_skips_a_gvisor_that_does_not_start(
    own_docker: OwnDocker, caplog: pytest.LogCaptureFixture
) -> None:
    """If gVisor does not start, `auto` uses the engine's default runtime and logs the reason."""
    own_docker.set_gvisor("echo gVisor does not run here >&2; exit 1")
    line = await _chosen_without_gvisor(own_docker, caplog)
    # The engine does not report its output.
    assert "runsc did not terminate successfully" in line


@requires("root", "dockerd")
async def test_auto_skips_a_gvisor_that_runs_no_cell(
    own_docker: OwnDocker, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` does not use a gVisor whose containers start but run no cell."""
    own_docker.set_gvisor(BREAKS_GATEWAYS)
    line = await _chosen_without_gvisor(own_docker, caplog, command=GATEWAY_COMMAND)
    assert "runsc over unix sockets does not work: the gateway failed: SystemExit: 2" in line


async def _chosen_without_gvisor(
    engine: OwnDocker, caplog: pytest.LogCaptureFixture, **options: Any
) -> str:
    """Starts a backend that must choose runc; returns the line of the log that says why."""
    with caplog.at_level(logging.WARNING):
        async with running_docker(host=engine.host, runtime="auto", **options) as backend:
            assert backend.describe()["runtime"] == "runc"
            assert backend.isolation is Isolation.CONTAINER
    (line,) = [message for message in caplog.messages if "run under" in message]
    assert line.startswith("Sandboxes run under runc over unix sockets. runsc over unix sockets")
    return line


@requires("root", "dockerd")
async def test_gvisor_by_name_is_never_replaced(own_docker: OwnDocker) -> None:
    """A configured gVisor is used, or the error says why it does not work."""
    own_docker.set_gvisor("echo gVisor does not run here >&2; exit 1")
    with pytest.raises(BackendUnavailable, match="runsc did not terminate successfully"):
        async with running_docker(host=own_docker.host, runtime="runsc", transport=Transport.UNIX):
            pass


# Images


@requires("root", "dockerd")
async def test_a_missing_image_fails_launches_until_it_is_back(own_docker: OwnDocker) -> None:
    """A template's missing image fails its launches by name, until the engine has it."""
    spec = SandboxSpec(image="kernelbroker-test-other")
    async with running_docker(host=own_docker.host) as backend:
        with pytest.raises(LaunchError, match="Build or pull kernelbroker-test-other"):
            await backend.launch("one", spec)
        assert own_docker.cli("tag", IMAGE, "kernelbroker-test-other").returncode == 0
        try:
            assert await ask(await backend.launch("one", spec), "result = 1") == 1
        finally:
            own_docker.cli("rmi", "kernelbroker-test-other")


# The engine's restart


@requires("root", "dockerd")
async def test_a_restart_ends_sandboxes(docker: OwnDocker) -> None:
    """A stopping engine ends its sandboxes; after its restart launches work again."""
    async with running_docker(host=docker.host) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        await ask(sandbox, "pass")
        await asyncio.to_thread(docker.stop)
        with pytest.raises(LaunchError, match="could not be started"):
            await backend.launch("two", SandboxSpec())
        await asyncio.to_thread(docker.start)
        assert (await end(sandbox)).cause is EndCause.SANDBOX_LOST
        await backend.remove(sandbox)
        assert not sandbox.workspace.exists()
        assert await ask(await backend.launch("three", SandboxSpec()), "result = 3") == 3


@requires("root", "dockerd")
async def test_a_stop_without_an_engine_closes_all_sockets(docker: OwnDocker) -> None:
    """Sandboxes that cannot be removed keep no socket of a broker that stops."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        data, run = Path(name, "data"), Path(name, "run")
        backend = DockerBackend(
            image=IMAGE,
            data_dir=data,
            run_dir=run,
            host=docker.host,
            runtime="runc",
            command=PROBE,
            run_cell=run_cell,
        )
        await backend.start()
        await asyncio.to_thread(docker.stop)
        with pytest.raises(LaunchError, match="could not be started"):
            await backend.launch("one", SandboxSpec())
        assert _has_sockets(run)
        await backend.stop()
        assert not _has_sockets(run)

        await asyncio.to_thread(docker.start)
        async with running_docker(host=docker.host, data_dir=data, run_dir=run):
            pass  # removes what is left


def _has_sockets(directory: Path) -> bool:
    return str(directory) in Path("/proc/net/unix").read_text()


@requires("root", "dockerd")
async def test_a_live_restore_keeps_sandboxes(docker: OwnDocker) -> None:
    """Sandboxes that survive the engine's restart stay in use, and are removed later."""
    docker.stop()
    docker.start("--live-restore")
    async with running_docker(host=docker.host) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        await asyncio.to_thread(docker.stop)
        assert await ask(sandbox, "result = 1") == 1
        await asyncio.to_thread(docker.start, "--live-restore")
        assert await ask(sandbox, "result = 2") == 2
        assert not sandbox.ended.done()
        name = container_of(sandbox, docker.host)
        await until(lambda: docker.cli("kill", name).returncode == 0)
        assert (await end(sandbox)).cause is EndCause.SANDBOX_LOST


# Podman


@pytest.mark.long
@requires("root", "podman")
async def test_podman_sandboxes_are_isolated(podman: OwnPodman) -> None:
    """A sandbox in Podman is as isolated as one in Docker, and leaves nothing behind."""
    spec = SandboxSpec(limits=Limits(memory=200 << 20, processes=40, tmp_size=8 << 20))
    async with running_docker(host=podman.host) as backend:
        sandbox = await backend.launch("one", spec)
        source = """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def writable(top):
    try:
        open(os.path.join(top, "new-file"), "x").close()
        os.unlink(os.path.join(top, "new-file"))
    except OSError:
        return False
    return True
result = [os.getuid(), [name for _, name in socket.if_nameindex()],
          [status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")],
          sorted(top for top, _, _ in os.walk("/") if not top.startswith(("/proc", "/sys"))
                 and writable(top)),
          [os.statvfs(top).f_blocks * os.statvfs(top).f_frsize for top in ("/tmp", "/dev/shm")]]"""
        user, interfaces, status, directories, sizes = await ask(sandbox, source)
        assert (user, interfaces) == (1000, ["lo"])
        assert status == ["0" * 16, "0" * 16, "1", "2"]
        expected = {"/data", "/dev/shm", "/home/sandbox", "/home/user", "/tmp", "/workspace"}
        assert set(directories) - {"/dev/mqueue"} == expected
        assert sizes == [8 << 20] * 2
        podman.cli("kill", container_of(sandbox, podman.host))
        lost = await end(sandbox)
        assert lost.detail == "the container was killed from outside"
        assert lost.cause is EndCause.SANDBOX_LOST

        paused = await backend.launch("two", spec)
        podman.cli("pause", container_of(paused, podman.host))
        assert (await end(paused)).detail == "the container was paused from outside"

        removed = await backend.launch("three", spec)
        podman.cli("rm", "--force", container_of(removed, podman.host))
        assert (await end(removed)).cause is EndCause.SANDBOX_LOST


@pytest.mark.long
@requires("root", "podman")
async def test_a_kernel_under_podman(podman: OwnPodman) -> None:
    """The real gateway starts its kernel, and a kernel's death is reported with its signal."""
    async with running_docker(host=podman.host, command=GATEWAY_COMMAND) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        gateway = GatewayConnection(sandbox.endpoint)
        channel = await gateway.start_kernel(DEADLINE_S)
        await channel.send(execute_request("import os; os.kill(os.getpid(), 11)", {}))
        died = await end(sandbox)
        await gateway.close()
        died = await end(sandbox)
        assert died == SandboxEnd(EndCause.KERNEL_DIED, "the kernel was killed by SIGSEGV")
