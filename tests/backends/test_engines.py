"""Engines of the tests' own: stopped and restarted, with other runtimes, and Podman."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
from kernelbroker_server.backends.docker_ways import Transport
from kernelbroker_server.backends.inside import GATEWAY_COMMAND
from kernelbroker_server.kernels.client import KernelClient
from kernelbroker_server.kernels.requests import execute_request

from tests.support.engines import OwnDocker, OwnEngine, OwnPodman, missing

from .probes import (
    DEADLINE_S,
    IMAGE,
    ask,
    container_of,
    end,
    engines_are_away,
    needs_docker,
    running_docker,
    until,
)

NO_DOCKERD = missing("dockerd", "crun")
NO_PODMAN = missing("podman", "crun", "catatonit")
pytestmark = [
    pytest.mark.sandbox,
    needs_docker,
    *engines_are_away,
]
needs_dockerd = pytest.mark.skipif(NO_DOCKERD is not None, reason=str(NO_DOCKERD))
needs_podman = pytest.mark.skipif(NO_PODMAN is not None, reason=str(NO_PODMAN))


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
    """Up, and with a gVisor that does not work, whatever the test before did."""
    own_docker.set_gvisor("echo gVisor does not run here >&2; exit 1")
    yield own_docker
    own_docker.stop()
    own_docker.start()


# Runtimes


@needs_dockerd
async def test_a_runtime_by_its_name(own_docker: OwnDocker) -> None:
    """Whatever the engine offers can be named, and is what runs the sandboxes."""
    async with running_docker(host=own_docker.host, runtime="crun") as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        assert await ask(sandbox, "result = 1") == 1
        assert backend.describe()["runtime"] == "crun"
        name = container_of(sandbox, own_docker.host)
        inspected = own_docker.cli("inspect", "--format", "{{.HostConfig.Runtime}}", name)
        assert inspected.stdout.strip() == "crun"


@needs_dockerd
async def test_auto_takes_gvisor_where_it_works(own_docker: OwnDocker) -> None:
    """A runtime of the name runsc in which the trial runs is taken."""
    own_docker.set_gvisor('exec runc "$@"')
    async with running_docker(host=own_docker.host) as backend:
        assert backend.describe()["runtime"] == "runsc"
        assert backend.isolation is Isolation.GVISOR


@needs_dockerd
async def test_auto_does_without_gvisor(
    own_docker: OwnDocker, caplog: pytest.LogCaptureFixture
) -> None:
    """Where gVisor is offered and fails, the engine's own runtime is taken, and the log says why."""
    own_docker.set_gvisor("echo gVisor does not run here >&2; exit 1")
    with caplog.at_level(logging.INFO):
        async with running_docker(host=own_docker.host) as backend:
            assert backend.describe()["runtime"] == "runc"
            assert backend.isolation is Isolation.CONTAINER
    (line,) = [message for message in caplog.messages if "run under" in message]
    assert line.startswith(
        "Sandboxes run under runc over unix sockets: runsc over unix sockets was"
    )
    assert (
        "runsc did not terminate successfully" in line
    )  # what it says is not the engine's to know


@needs_dockerd
async def test_gvisor_by_name_is_never_replaced(own_docker: OwnDocker) -> None:
    """Who asks for gVisor gets it, or an error that says what it said."""
    own_docker.set_gvisor("echo gVisor does not run here >&2; exit 1")
    with pytest.raises(BackendUnavailable, match="runsc did not terminate successfully"):
        async with running_docker(host=own_docker.host, runtime="runsc", transport=Transport.UNIX):
            pass


# Images


@needs_dockerd
async def test_an_image_that_goes_and_comes_back(own_docker: OwnDocker) -> None:
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


@needs_dockerd
async def test_a_restart_ends_sandboxes(docker: OwnDocker) -> None:
    """An engine that stops takes its sandboxes along; when it is back, launches work again."""
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


@needs_dockerd
async def test_a_live_restore_keeps_sandboxes(docker: OwnDocker) -> None:
    """Sandboxes that an engine leaves running through its restart are used on, and removed after."""
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


@needs_podman
async def test_podman(podman: OwnPodman) -> None:
    """A sandbox of Podman's is as closed as one of Docker's, and leaves nothing."""
    spec = SandboxSpec(limits=Limits(memory=200 << 20, processes=40, tmp_size=8 << 20))
    async with running_docker(host=podman.host) as backend:
        sandbox = await backend.launch("one", spec)
        source = """
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
def writable(top):
    try:
        open(os.path.join(top, "new-file"), "x").close()
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
        assert set(directories) - {"/dev/mqueue"} == {"/data", "/dev/shm", "/home/sandbox", "/tmp"}
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


@needs_podman
async def test_a_kernel_under_podman(podman: OwnPodman) -> None:
    """The real gateway starts its kernel, and a kernel's death is told with its signal."""
    async with running_docker(host=podman.host, command=GATEWAY_COMMAND) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        client = await KernelClient.open(sandbox.endpoint, DEADLINE_S)
        await client.send(execute_request("import os; os.kill(os.getpid(), 11)", {}))
        died = await end(sandbox)
        await client.close()
        died = await end(sandbox)
        assert died == SandboxEnd(EndCause.KERNEL_DIED, "the kernel was killed by SIGSEGV")
