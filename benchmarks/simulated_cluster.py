"""A backend of nodes that exist only as numbers: sandboxes take the times that were measured on real ones.

Everything above the wire is the broker's own: `GatewayConnection` alone is replaced, by one whose
kernel answers the messages of the protocol after a while, in the same process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelbroker_server.backends.base import (
    Backend,
    EndCause,
    Isolation,
    LaunchError,
    Rescue,
    Sandbox,
    SandboxEnd,
    SandboxSpec,
    Usage,
)
from kernelbroker_server.kernels.channel import KernelChannel
from kernelbroker_server.kernels.endpoint import UnixEndpoint
from kernelbroker_server.kernels.framing import decode_frame, join_parts


@dataclass(frozen=True, slots=True)
class Latencies:
    """Seconds, each a median of benchmarks/README.md.

    Attributes:
        launch: from the call of the backend until the kernel is warm, on a node with nothing else to do.
        launch_work: the processor time of a launch, on the node.
        removal: of a sandbox.
        first_cell: the first cell of a sandbox, more than others.
        cell: a cell `1` in gateway and kernel.
        open, run, close: the processor time of the broker to open a session, run a cell, close a session.
        request: the same for a launch or a removal. This is an assumption: one request to the engine or
            the cluster, which does the work. A broker that starts the sandboxes itself spends ten times
            as much (`capacity.py`).
        detection: from the loss of a node until the broker is told: by default that of Kubernetes.
    """

    launch: float
    launch_work: float
    removal: float = 0.02
    first_cell: float = 0.012
    cell: float = 0.0021
    open: float = 0.0040
    run: float = 0.0014
    close: float = 0.0015
    request: float = 0.0015
    detection: float = 40.0


LATENCIES = {
    "local": Latencies(launch=0.201, launch_work=0.160),
    "docker": Latencies(launch=1.379, launch_work=1.332),
}
"""Forked sandboxes, and started ones."""


class Processor:
    """A core, or several as one that is faster: work is done in the order of its arrival."""

    def __init__(self, cores: int = 1) -> None:
        self.busy = 0.0
        self._cores = cores
        self._free_at = 0.0

    async def work(self, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + seconds / self._cores
        self.busy += seconds
        await asyncio.sleep(self._free_at - now)


class Node:
    """A machine for sandboxes."""

    def __init__(self, cores: int) -> None:
        self.processor = Processor(cores)
        self.sandboxes: dict[str, SimulatedSandbox] = {}
        self.is_lost = False


class SimulatedSandbox(Sandbox):
    """A sandbox on a node. Its workspace is never on a disk."""

    def __init__(self, name: str, spec: SandboxSpec, node: Node, root: Path) -> None:
        self.id, self.spec, self.limits, self.node = name, spec, spec.limits, node
        self.endpoint = UnixEndpoint(root / name)
        self.workspace = root / name / "workspace"
        self.ended = asyncio.get_running_loop().create_future()

    def end(self, detail: str) -> None:
        if not self.ended.done():
            self.ended.set_result(SandboxEnd(EndCause.SANDBOX_LOST, detail))

    async def memory(self) -> int | None:
        return 0

    async def usage(self, max_files: int) -> Usage:  # noqa: ARG002
        return Usage()

    async def change_limits(self, memory: int, cpus: float) -> None:
        pass

    async def cut_network(self) -> None:
        pass

    async def kill(self) -> None:
        self.end("it was killed")


class Cluster(Backend):
    """Nodes with a fixed number of places each. The sandbox goes to the node with the most free ones.

    Attributes:
        live: the sandboxes, by the path of their endpoint, where `SimulatedGateway` finds them.
        held: seconds of all sandboxes together.
    """

    isolation = Isolation.CONTAINER

    def __init__(
        self,
        root: Path,
        latencies: Latencies,
        broker: Processor,
        nodes: int,
        places: int,
        cores: int,
    ) -> None:
        self.data_dir = root
        self._broker = broker
        self.latencies = latencies
        self.nodes = [Node(cores) for _ in range(nodes)]
        self.live: dict[Path, SimulatedSandbox] = {}
        self.held = 0.0
        self.most = 0
        self._places = places
        self._began: dict[str, float] = {}

    @property
    def capacity(self) -> int:
        return self._places * sum(not node.is_lost for node in self.nodes)

    async def start(self, rescue: Rescue | None = None) -> None:
        pass

    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> SimulatedSandbox:
        node = min(
            (each for each in self.nodes if not each.is_lost),
            key=lambda each: len(each.sandboxes),
            default=None,
        )
        if node is None or len(node.sandboxes) >= self._places:
            raise LaunchError("no node has a place")
        sandbox = SimulatedSandbox(sandbox_id, spec, node, self.data_dir)
        assert isinstance(sandbox.endpoint, UnixEndpoint)
        node.sandboxes[sandbox_id] = self.live[sandbox.endpoint.path] = sandbox
        self._began[sandbox_id] = asyncio.get_running_loop().time()
        self.most = max(self.most, len(self.live))
        try:
            await self._broker.work(self.latencies.request)
            await node.processor.work(self.latencies.launch_work)
            await asyncio.sleep(self.latencies.launch - self.latencies.launch_work)
        except BaseException:
            await self.remove(sandbox)
            raise
        return sandbox

    async def remove(self, sandbox: Sandbox) -> None:
        assert isinstance(sandbox, SimulatedSandbox)
        assert isinstance(sandbox.endpoint, UnixEndpoint)
        if self.live.get(sandbox.endpoint.path) is not sandbox:
            return
        sandbox.end("it was removed")
        await self._broker.work(self.latencies.request)
        await asyncio.sleep(self.latencies.removal)
        if self.live.pop(sandbox.endpoint.path, None) is not None:
            sandbox.node.sandboxes.pop(sandbox.id, None)
            self.held += asyncio.get_running_loop().time() - self._began.pop(sandbox.id)

    async def lose(self, node: Node) -> int:
        """Take a node away with its sandboxes. Returns how many it had, when the broker is told."""
        node.is_lost = True
        lost = list(node.sandboxes.values())
        await asyncio.sleep(self.latencies.detection)
        for sandbox in lost:
            sandbox.end("its node is lost")
        return len(lost)

    async def stop(self) -> None:
        for sandbox in list(self.live.values()):
            await self.remove(sandbox)

    def describe(self) -> dict[str, object]:
        return {"backend": "simulated"}


class _Transport:
    """As much of a transport as a channel uses."""

    def __init__(self, frames: asyncio.Queue[bytes | None]) -> None:
        self._frames = frames

    def abort(self) -> None:
        self._frames.put_nowait(None)

    def get_write_buffer_size(self) -> int:
        return 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, 65536


class _Kernel:
    """In place of a WebSocket to a kernel: it answers each cell after the time that is its first line."""

    def __init__(self, sandbox: SimulatedSandbox, latencies: Latencies) -> None:
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._asked: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self._latencies, self._node = latencies, sandbox.node
        self._count = 0
        self.transport = _Transport(self._frames)
        self._working = asyncio.create_task(self._work())
        sandbox.ended.add_done_callback(lambda _: self._end())

    def _end(self) -> None:
        self._working.cancel()
        self.transport.abort()

    async def send(self, frame: bytes) -> None:
        message = decode_frame(frame)
        if message.header.msg_type == "execute_request":
            self._asked.put_nowait((message.header.msg_id, message.content_as(dict)))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (frame := await self._frames.get()) is not None:
            yield frame

    async def _work(self) -> None:
        while True:
            msg_id, request = await self._asked.get()
            seconds = self._latencies.cell
            self._answer("iopub", "status", msg_id, {"execution_state": "busy"})
            if not request["silent"]:
                self._count += 1
                first = self._latencies.first_cell if self._count == 1 else 0.0
                seconds += first + float(request["code"].partition("\n")[0].removeprefix("#"))
                input_ = {"execution_count": self._count, "code": request["code"]}
                self._answer("iopub", "execute_input", msg_id, input_)
            await asyncio.sleep(seconds)
            if self._node.is_lost:
                return  # nobody answers any more
            reply = {"status": "ok", "execution_count": self._count, "payload": []}
            self._answer("shell", "execute_reply", msg_id, reply)
            self._answer("iopub", "status", msg_id, {"execution_state": "idle"})

    def _answer(self, channel: str, kind: str, parent: str, content: dict[str, Any]) -> None:
        header = {"msg_id": "k", "msg_type": kind, "date": ""}
        parts = [header, {"msg_id": parent}, {}, content]
        frame = join_parts([channel.encode(), *(json.dumps(part).encode() for part in parts)])
        self._frames.put_nowait(frame)


def gateway_of(cluster: Cluster) -> type:
    """Return what takes the place of `GatewayConnection`."""

    class SimulatedGateway:
        def __init__(self, endpoint: UnixEndpoint) -> None:
            self._sandbox = cluster.live[endpoint.path]
            self.channels: list[KernelChannel] = []

        async def start_kernel(self, _timeout: float) -> KernelChannel:
            socket: Any = _Kernel(self._sandbox, cluster.latencies)
            channel = KernelChannel("the-kernel", socket, self._interrupt)
            self.channels.append(channel)
            return channel

        async def close(self) -> None:
            for channel in self.channels:
                await channel.close()

        async def _interrupt(self, _kernel_id: str) -> None:
            pass

    return SimulatedGateway
