"""What is the docker backend's alone: its engine's absence, returns and interventions from outside."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kernelbroker_kernel.contract import EXIT_GATEWAY_FAILED
from kernelbroker_server.backends.base import (
    BackendUnavailable,
    EndCause,
    Isolation,
    LaunchError,
    SandboxEnd,
    SandboxSpec,
)
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_ways import Transport

from .brokers import other_broker
from .probes import (
    DEADLINE_S,
    ask,
    container_of,
    containers_of,
    end,
    engine,
    engines_are_away,
    needs_docker,
    needs_root,
    running_docker,
    until,
)

pytestmark = [pytest.mark.sandbox, needs_docker, *engines_are_away]


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[DockerBackend]:
    async with running_docker() as backend:
        yield backend


def lost(what: str) -> SandboxEnd:
    return SandboxEnd(EndCause.SANDBOX_LOST, f"the container {what}")


# The engine


async def test_no_engine(tmp_path: Path) -> None:
    """Where no engine answers, the broker ends at once, and says what to do."""
    broker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kernelbroker_server"),
        env={
            "KERNELBROKER_BACKEND": "docker",
            "KERNELBROKER_DOCKER__HOST": f"unix://{tmp_path}/none.sock",
        },
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        _, message = await broker.communicate()
    assert broker.returncode == 2
    assert b"or say by docker.host where it listens" in message


async def test_no_image() -> None:
    """A missing image is named, with how to get it."""
    with pytest.raises(
        BackendUnavailable, match=r"does not have the image no/such:image.*make image"
    ):
        async with running_docker(image="no/such:image"):
            pass


async def test_a_runtime_that_is_not_offered() -> None:
    """A runtime asked for outright is never replaced by another."""
    with pytest.raises(BackendUnavailable, match=r"does not offer the runtime no-such.*set docker"):
        async with running_docker(runtime="no-such"):
            pass


async def test_auto_says_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    """The choice of a runtime is one line in the log, and a field for /health."""
    with engine() as api:
        if "runsc" in api.info()["Runtimes"]:
            pytest.skip("the engine offers gVisor, so there is nothing to do without")
    with caplog.at_level(logging.INFO):
        async with running_docker() as backend:
            assert backend.describe()["runtime"] == "runc"
            assert backend.isolation is Isolation.CONTAINER
    (line,) = [message for message in caplog.messages if "run under" in message]
    assert line == (
        "Sandboxes run under runc over unix sockets: the engine does not offer gVisor (runsc)"
    )


async def test_an_image_that_is_none_of_ours(tmp_path: Path) -> None:
    """An image without Python is found out at start, not by the first session."""
    with engine() as api:
        (tmp_path / "file").write_text("all there is")
        api.import_image_from_file(str(_tar(tmp_path)), repository="kernelbroker-test-empty")
    try:
        with pytest.raises(BackendUnavailable, match="No sandbox can be had of the image"):
            async with running_docker(image="kernelbroker-test-empty"):
                pass
    finally:
        with engine() as api:
            api.remove_image("kernelbroker-test-empty")


def _tar(directory: Path) -> Path:
    with tarfile.open(directory / "image.tar", "w") as archive:
        archive.add(directory / "file", "file")
    return directory / "image.tar"


async def test_too_long_a_socket_path(tmp_path: Path) -> None:
    """A directory too deep for a socket's path is told as such."""
    with pytest.raises(BackendUnavailable, match="shorter run_dir"):
        async with running_docker(run_dir=tmp_path / ("long" * 25), transport=Transport.UNIX):
            pass


# The broker's death

GATEWAY = "import runpy; runpy.run_module('kernelbroker_kernel', run_name='__main__')"


async def test_containers_end_with_their_broker() -> None:
    """The gateway of a broker that was killed ends by itself, and the container with it."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        broker = await other_broker("docker", data, run, GATEWAY)
        (name,) = containers_of(data)
        (socket,) = run.glob("*/one.sock")
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(b"GET /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        await writer.wait_closed()
        broker.kill()
        await broker.wait()
        with engine() as api:
            ended = await asyncio.to_thread(api.wait, name, timeout=DEADLINE_S)
        assert ended["StatusCode"] == EXIT_GATEWAY_FAILED
        async with running_docker(data_dir=data, run_dir=run):  # which removes what is left
            pass


# From outside

INTERVENTIONS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "killed": (lambda api, name: api.kill(name), "was killed from outside"),
    "stopped": (lambda api, name: api.stop(name, timeout=1), "was killed from outside"),
    # Its removal begins with a kill, and whether that end is still told depends on who is first.
    "removed": (
        lambda api, name: api.remove_container(name, force=True),
        "was removed from outside",
    ),
    "paused": (lambda api, name: api.pause(name), "was paused from outside"),
}


@pytest.mark.parametrize("how", INTERVENTIONS)
async def test_ended_from_outside(backend: DockerBackend, how: str) -> None:
    """What somebody does to a container is told as such, at once, and it can be removed after."""
    sandbox = await backend.launch("one", SandboxSpec())
    await ask(sandbox, "pass")
    intervene, what = INTERVENTIONS[how]
    with engine() as api:
        await asyncio.to_thread(intervene, api, container_of(sandbox))
    assert await end(sandbox) in (lost(what), lost("was killed from outside"))
    async with asyncio.timeout(DEADLINE_S):
        await backend.remove(sandbox)
    assert not sandbox.workspace.exists()


class Proxy:
    """Stands between a backend and the engine, so that the engine can be gone for a while."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._pass_on, self.path)

    def cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._open = True

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        there, back = await asyncio.open_unix_connection(host.removeprefix("unix://"))
        ends = {writer, back}
        self._writers |= ends
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            self._writers -= ends
            for end_ in ends:
                end_.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


@asynccontextmanager
async def behind_a_proxy() -> AsyncIterator[tuple[DockerBackend, Proxy]]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        proxy = Proxy(Path(directory, "engine.sock"))
        server = await proxy.serve()
        try:
            async with running_docker(host=f"unix://{proxy.path}") as backend:
                try:
                    yield backend, proxy
                finally:
                    proxy.mend()
        finally:
            proxy.cut()
            server.close()


async def test_the_engine_goes_and_comes_back() -> None:
    """Without an engine sandboxes work on and launches fail clearly; what was missed is found out."""
    async with behind_a_proxy() as (backend, proxy):
        names = ("lives", "dies", "goes")
        lives, dies, goes = [await backend.launch(name, SandboxSpec()) for name in names]
        proxy.cut()
        assert await ask(lives, "result = 1") == 1
        with pytest.raises(LaunchError, match="could not be started"):
            await backend.launch("late", SandboxSpec())
        await backend.remove(goes)
        assert goes.workspace.exists()
        with engine() as api:
            api.kill(container_of(dies))
        assert not dies.ended.done()

        proxy.mend()
        assert await end(dies) == lost("ended while the engine could not be reached")
        await until(lambda: not goes.workspace.exists())
        assert await ask(lives, "result = 2") == 2


@needs_root
async def test_a_full_disk(tmp_path: Path) -> None:
    """A cell gets its error, launches fail by the disk's name for it, and both work when there is space."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=40", "kb-test", str(disk)]
    await asyncio.to_thread(subprocess.run, mount, check=True)
    try:
        async with running_docker(data_dir=disk / "data") as backend:
            sandbox = await backend.launch("one", SandboxSpec())
            fill = """
def write():
    with open("/data/full", "wb", buffering=0) as file:
        while True: file.write(bytes(65536))
def create():
    for number in range(100): open(f"/data/{number}", "x").close()
result = [attempt(write), attempt(create)]"""
            assert await ask(sandbox, fill) == ["ENOSPC", "ENOSPC"]
            with pytest.raises(LaunchError, match="No space left on device"):
                await backend.launch("two", SandboxSpec())
            await ask(sandbox, "for name in os.listdir('/data'): os.unlink(f'/data/{name}')")
            assert await ask(await backend.launch("two", SandboxSpec()), "result = 1") == 1
    finally:
        await asyncio.to_thread(subprocess.run, ["umount", str(disk)], check=True)


async def test_the_engine_has_what_was_asked_for(backend: DockerBackend) -> None:
    """Every boundary stands in what the engine tells of the running container, and its labels."""
    sandbox = await backend.launch("one", SandboxSpec(template="small"))
    with engine() as api:
        told = api.inspect_container(container_of(sandbox))
    host = told["HostConfig"]
    assert (host["NetworkMode"], host["IpcMode"], host["PidMode"]) == ("none", "private", "")
    assert (host["ReadonlyRootfs"], host["Privileged"], host["Init"]) == (True, False, True)
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    assert host["SecurityOpt"] == ["no-new-privileges:true"]
    limits = SandboxSpec().limits
    assert host["Memory"] == host["MemorySwap"] == limits.memory
    assert host["CpuQuota"] / host["CpuPeriod"] == limits.cpus
    assert host["PidsLimit"] == limits.processes
    assert {limit["Name"] for limit in host["Ulimits"]} == {"core", "fsize", "nofile"}
    assert f"size={limits.tmp_size}" in host["Tmpfs"]["/tmp"]
    assert told["Config"]["User"].partition(":")[0] in ("1000", str(os.geteuid()))
    directory = sandbox.workspace.parents[2]
    labels = {k: v for k, v in told["Config"]["Labels"].items() if k.startswith("kernelbroker.")}
    assert labels == {
        "kernelbroker.broker": directory.name,
        "kernelbroker.data": str(directory.parent),
        "kernelbroker.sandbox": "one",
        "kernelbroker.template": "small",
    }
