"""Pods without a cluster: hostile answers of their first processes, and an API that holds up deletions."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server.backends import kubernetes_sandbox
from kernelbroker_server.backends.base import LaunchError, Network, SandboxSpec
from kernelbroker_server.backends.directories import Directories
from kernelbroker_server.backends.kubernetes import KubernetesBackend
from kernelbroker_server.backends.kubernetes_api import NotThere
from kernelbroker_server.backends.kubernetes_check import NetworkCheck
from kernelbroker_server.backends.kubernetes_sandbox import KubernetesSandbox
from kernelbroker_server.backends.pod_context import PodContext
from kernelbroker_server.backends.pod_control import PodControl
from kernelbroker_server.backends.pod_manifest import PodSettings
from kernelbroker_server.kernels.endpoint import TcpEndpoint
from kernelbroker_server.kernels.transfer import TransferFailed

ANSWERS: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": b"<html>",
    "deep JSON": b"[" * 60_000,
    "deep JSON in a field": b'{"a":' * 10_000,
    "of another type": b"7",
    "not UTF-8": b'"\xff"',
    "large numbers": json.dumps(
        {"status": 10**30, "oom": False, "output": "", "memory": 10**30, "cpu_s": 1, "size": 10**30}
        | {"files": 10**30, "complete": True, "memory_stat": {"inactive_file": 10**30}}
    ).encode(),
    "infinity": b'{"status": 1e999, "memory": 1e999, "cpu_s": 1e999, "size": 1e999, "files": 1}',
    "negative numbers": json.dumps(
        {"status": -(10**9), "oom": True, "output": "", "memory": -1, "cpu_s": -1.0, "size": -1}
        | {"files": -1, "complete": True}
    ).encode(),
    "too long": b" " * 100_000 + b'{"output": "' + b"x" * 100_000,
}


@contextlib.asynccontextmanager
async def a_pod_that_answers(body: bytes) -> AsyncIterator[PodControl]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield PodControl(TcpEndpoint("127.0.0.1", server.sockets[0].getsockname()[1], "token"))
    finally:
        server.close()


@pytest.mark.parametrize(
    ("policies", "required", "network", "is_refused"),
    [
        ("not enforced: sandboxes reach other sandboxes", True, Network.NONE, True),
        ("not enforced: sandboxes reach other sandboxes", False, Network.NONE, False),
        ("not enforced: sandboxes reach other sandboxes", True, Network.OPEN, False),
        ("enforced", True, Network.NONE, False),
    ],
)
def test_no_network_needs_policies(
    tmp_path: Path, policies: str, required: bool, network: Network, is_refused: bool
) -> None:
    """Where nothing keeps Pods off the network, templates without one are refused, unless that is set."""
    settings = PodSettings(image="image")
    backend = KubernetesBackend(settings=settings, data_dir=tmp_path, require_policies=required)
    backend._policies = policies
    refusal = pytest.raises(LaunchError, match="require_network_policies = false")
    with refusal if is_refused else contextlib.nullcontext():
        backend.require_network(SandboxSpec(network=network))


def test_what_the_check_at_startup_tries() -> None:
    """A Pod tries its neighbour, the API, the cloud's metadata and its node; what it reaches is named."""

    class Pod:
        endpoint = TcpEndpoint("10.0.0.2", 8888, "token")
        node_address = "10.1.0.1"

    async def launch(name: str, spec: SandboxSpec) -> Any:
        return Pod()

    async def remove(sandbox: Any) -> None:
        pass

    tried: list[str] = []

    async def run_cell(sandbox: Any, code: str, timeout: float) -> str:
        tried.append(code)
        return json.dumps([False, False, True, True])

    check = NetworkCheck(launch, remove, run_cell, "https://10.96.0.1:6443")
    reached = asyncio.run(check.run())
    for address in (
        ("10.0.0.2", 8888),
        ("10.96.0.1", 6443),
        ("169.254.169.254", 80),
        ("10.1.0.1", 10250),
    ):
        assert str(address) in tried[0]
    assert reached == (
        "not enforced: sandboxes reach the cloud's metadata and the kubelet of their node"
    )


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("body", ANSWERS.values(), ids=ANSWERS)
async def test_a_hostile_answer(tmp_path: Path, body: bytes) -> None:
    """Whatever a Pod answers, the call fails as if the Pod were away, and leaves no descriptor open."""
    async with a_pod_that_answers(body) as control:
        before = await asyncio.to_thread(open_files)
        for call in (
            control.end(lambda: None),
            control.memory(),
            control.processor_time(),
            control.workspace_usage(10),
            control.fetch_files(tmp_path, 1000, 10),
        ):
            with pytest.raises(TransferFailed):
                await call
        await asyncio.sleep(0.05)  # the server's sides close
        assert await asyncio.to_thread(open_files) <= before


class Api:
    """An API with Pods whose deletion is held up by finalizers.

    Attributes:
        at_once: for each deletion, whether it waited for no node.
    """

    def __init__(self, finalizers: list[str]) -> None:
        self.finalizers = finalizers
        self.at_once: list[bool] = []
        self._pods: dict[str, dict[str, Any]] = {}

    async def create(self, kind: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        made = {"metadata": {**manifest["metadata"], "uid": "1", "finalizers": self.finalizers}}
        if kind == "pods":
            self._pods[manifest["metadata"]["name"]] = made
        return made

    async def delete(self, kind: str, name: str, *, uid: str = "", at_once: bool = False) -> None:
        self.at_once.append(at_once)
        if not self.finalizers:
            self._pods.pop(name, None)

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        if name not in self._pods:
            raise NotThere("404")
        return self._pods[name]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LOOK_S", 0.01), ("_DELETED_S", 0.1), ("_HELD_S", 0.3)):
        monkeypatch.setattr(kubernetes_sandbox, name, value)


@pytest.mark.parametrize("finalizers", [[], ["example.com/hold"]])
async def test_a_deletion_that_is_held_up(
    tmp_path: Path, finalizers: list[str], quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is waited for, then demanded at once, and then left to the cluster, with a line in the log."""
    confirmed = 0

    async def confirm() -> None:
        nonlocal confirmed
        confirmed += 1

    api: Any = Api(finalizers)
    directories = Directories.create(tmp_path / "data", tmp_path / "data")
    context = PodContext(api, directories, PodSettings("image"), "data", confirm=confirm)
    sandbox = KubernetesSandbox("one", SandboxSpec(), context)
    await sandbox.open(["-m", "gateway"])
    assert confirmed == 0
    async with asyncio.timeout(10):
        assert await sandbox.close()
    assert confirmed == 1  # nothing is ended that another broker may own by now
    assert sandbox.ended.done()
    assert not sandbox.workspace.exists()
    assert ("held by example.com/hold" in caplog.text) == bool(finalizers)
    assert (True in api.at_once) == bool(finalizers)
