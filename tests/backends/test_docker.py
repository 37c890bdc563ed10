"""Behaviour of the docker backend alone: a missing engine, and interventions from outside."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import contextlib
import io
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
from kernelbroker_kernel.contract import CONTRACT, CONTRACT_LABEL, EXIT_GATEWAY_FAILED
from kernelbroker_server.backends import startup_check
from kernelbroker_server.backends.base import (
    BackendUnavailable,
    EndCause,
    Isolation,
    LaunchError,
    SandboxEnd,
    SandboxSpec,
)
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.docker_transport import Transport
from kernelbroker_server.backends.engine import Engine
from kernelbroker_server.pool.warm_sandbox import join, run_silently

from tests.support.requires import IMAGE, engine, requires

from .brokers import GATEWAY, dead_broker, other_broker
from .probes import (
    DEADLINE_S,
    PROBE,
    ask,
    container_of,
    containers_of,
    end,
    engines_are_away,
    run_cell,
    running_docker,
    until,
)

pytestmark = [pytest.mark.sandbox, requires("docker"), *engines_are_away]


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[DockerBackend]:
    async with running_docker() as backend:
        yield backend


def lost(what: str) -> SandboxEnd:
    return SandboxEnd(EndCause.SANDBOX_LOST, f"the container {what}")


# The engine


async def test_a_missing_engine_stops_the_start(tmp_path: Path) -> None:
    """If no engine answers, the broker ends at once with advice."""
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
    assert b"or set docker.host to its address" in message


async def test_a_missing_image_is_named() -> None:
    """A missing image is named, with advice."""
    with pytest.raises(
        BackendUnavailable, match=r"does not have the image no/such:image.*make image"
    ):
        async with running_docker(image="no/such:image"):
            pass


async def test_a_runtime_that_is_not_offered() -> None:
    """A configured runtime is never replaced by another."""
    with pytest.raises(BackendUnavailable, match=r"does not have the runtime no-such.*set docker"):
        async with running_docker(runtime="no-such"):
            pass


async def test_auto_logs_the_runtime_it_chose(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen runtime is one line in the log, and a field of /health."""
    connect = Engine.connect

    async def without_gvisor(self: Engine) -> dict[str, Any]:
        return {**await connect(self), "Runtimes": {"runc": {}}}

    monkeypatch.setattr(Engine, "connect", without_gvisor)
    with caplog.at_level(logging.INFO):
        async with running_docker(runtime="auto") as backend:
            assert backend.describe()["runtime"] == "runc"
            assert backend.isolation is Isolation.CONTAINER
    (line,) = [message for message in caplog.messages if "run under" in message]
    assert line == (
        "Sandboxes run under runc over unix sockets: the engine does not have gVisor (runsc)"
    )


async def test_an_image_without_python_stops_the_start(tmp_path: Path) -> None:
    """An image without Python is detected at the start."""
    with engine() as api:
        (tmp_path / "file").write_text("all there is")
        api.import_image_from_file(str(_tar(tmp_path)), repository="kernelbroker-test-empty")
    try:
        with pytest.raises(
            BackendUnavailable, match="No sandbox of the image kernelbroker-test-empty can"
        ):
            async with running_docker(image="kernelbroker-test-empty"):
                pass
    finally:
        with engine() as api:
            api.remove_image("kernelbroker-test-empty")


def _tar(directory: Path) -> Path:
    with tarfile.open(directory / "image.tar", "w") as archive:
        archive.add(directory / "file", "file")
    return directory / "image.tar"


async def test_a_socket_path_that_is_too_long(tmp_path: Path) -> None:
    """A directory whose socket path is too long is reported."""
    with pytest.raises(BackendUnavailable, match="shorter run_dir"):
        async with running_docker(run_dir=tmp_path / ("long" * 25), transport=Transport.UNIX):
            pass


# The broker's death


async def test_containers_end_with_their_broker() -> None:
    """The gateway of a killed broker ends, and its container with it."""
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


async def test_containers_of_another_broker_are_left_to_it_for_their_grace() -> None:
    """They run on while the next broker may adopt them, and are removed by any broker afterwards."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        await dead_broker("docker", data, run, command=GATEWAY, grace=600)
        (dead,) = data.iterdir()

        async def seen_by_another() -> list[str]:
            other = DockerBackend(
                image=IMAGE,
                data_dir=data,
                run_dir=run,
                runtime="runc",
                command=PROBE,
                run_cell=run_cell,
            )
            await other.start()
            await other.stop()
            return containers_of(data)

        assert len(await seen_by_another()) == 2
        noted = dead / "dead-since"
        noted.write_text(repr(float(noted.read_text()) - 599 + 60))
        assert len(await seen_by_another()) == 2
        noted.write_text(repr(float(noted.read_text()) - 61))
        assert await seen_by_another() == []
        assert list(data.iterdir()) == []


@pytest.mark.parametrize(
    ("contract", "tag_then", "tag_now", "adopted"),
    [
        (CONTRACT, "latest", "latest", ["one"]),
        (CONTRACT, "1.0", "1.1", ["one"]),
        ("0", "latest", "latest", []),
    ],
    ids=["built again", "another version", "another contract"],
)
async def test_a_session_goes_on_in_an_earlier_image(
    contract: str, tag_then: str, tag_now: str, adopted: list[str]
) -> None:
    """If the image was built again, or has another tag, only sessions go on, if both fit the broker."""
    name = f"kernelbroker-test-rebuilt-{os.getpid()}"
    names = sorted({f"{name}:{tag_then}", f"{name}:{tag_now}"})
    with tempfile.TemporaryDirectory(prefix="kb-") as directory, engine() as api:
        data, run = Path(directory, "data"), Path(directory, "run")

        def build(tag: str, *lines: str) -> None:
            text = "\n".join([f"FROM {IMAGE}", *lines])
            image = {"fileobj": io.BytesIO(text.encode()), "tag": f"{name}:{tag}"}
            for _ in api.build(**image, rm=True):
                pass

        try:
            build(tag_then, f"LABEL {CONTRACT_LABEL}={contract}")
            image = f"{name}:{tag_then}"
            await dead_broker("docker", data, run, command=GATEWAY, grace=60, image=image)
            build(tag_now, "LABEL other=1")
            async with running_docker(
                data_dir=data,
                run_dir=run,
                image=f"{name}:{tag_now}",
                command=("-c", GATEWAY),
                run_cell=startup_check.run_cell,
                id_file=data.with_name("broker-id"),
            ) as backend:
                orphans = backend.orphans([SandboxSpec(orphan_grace=60.0)])
                await backend.end_orphans([])
                assert [orphan.sandbox.id for orphan in orphans] == adopted
                for orphan in orphans:
                    warm = await join(orphan, DEADLINE_S, None)
                    await run_silently(warm, "pass", {})
                    await warm.gateway.close()
                    await backend.remove(orphan.sandbox)
        finally:
            for each in names:
                api.remove_image(each, force=True)


# From outside

INTERVENTIONS: dict[str, tuple[Callable[[Any, str], Any], str]] = {
    "killed": (lambda api, name: api.kill(name), "was killed from outside"),
    "stopped": (lambda api, name: api.stop(name, timeout=1), "was killed from outside"),
    # Its removal begins with a kill. Whether that end is reported depends on the order of events.
    "removed": (
        lambda api, name: api.remove_container(name, force=True),
        "was removed from outside",
    ),
    "paused": (lambda api, name: api.pause(name), "was paused from outside"),
}


@pytest.mark.parametrize("how", INTERVENTIONS)
async def test_a_container_ended_from_outside(backend: DockerBackend, how: str) -> None:
    """A container that is ended from outside is reported at once, and can be removed."""
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
    """A proxy between a backend and the engine, which a test can stop for a while."""

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
    """Without an engine sandboxes continue and launches fail; missed ends are detected later."""
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


@requires("root")
async def test_a_full_disk_fails_launches(tmp_path: Path) -> None:
    """With a full disk cells get an error and launches fail by name; both work when there is space."""
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


async def test_the_running_container_has_the_options(backend: DockerBackend) -> None:
    """The engine's description of the container has every boundary and label."""
    sandbox = await backend.launch("one", SandboxSpec(template="small"))
    with engine() as api:
        inspected = api.inspect_container(container_of(sandbox))
    host = inspected["HostConfig"]
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
    assert inspected["Config"]["User"].partition(":")[0] in ("1000", str(os.geteuid()))
    directory = sandbox.workspace.parents[2]
    labels = {
        k: v for k, v in inspected["Config"]["Labels"].items() if k.startswith("kernelbroker.")
    }
    assert labels == {
        "kernelbroker.broker": directory.name,
        "kernelbroker.data": str(directory.parent),
        "kernelbroker.sandbox": "one",
        "kernelbroker.template": "small",
    }
