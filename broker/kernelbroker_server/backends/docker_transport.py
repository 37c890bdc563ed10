"""Chooses the runtime of the sandboxes and how the broker reaches them, by running a cell in each mode.

The first mode that works is used: gVisor before the engine's default runtime, unix sockets before TCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeAlias

from ..kernels.endpoint import TcpEndpoint
from .base import BackendUnavailable, LaunchError, Network, SandboxSpec
from .docker_context import BackendContext
from .docker_sandbox import DockerSandbox
from .engine import EngineError
from .internal_network import InternalNetwork
from .startup_check import Address, CheckFailed, RunCell, addresses_reached, listening_on

log = logging.getLogger(__name__)

GVISOR = "runsc"
AUTO = "auto"
CHECKS = ("check", "neighbour")
"""The ids of the sandboxes in which a mode is tried."""
_CHECK_TIMEOUT_S = 60.0
"""For one mode. It is long, since a machine that has just started is busy."""


class Transport(enum.StrEnum):
    """How the broker reaches the gateways."""

    AUTO = "auto"
    """Unix sockets if they work, else TCP if user code cannot reach the host."""
    UNIX = "unix"
    TCP = "tcp"


@dataclass(frozen=True, slots=True)
class LaunchMode:
    """How sandboxes are run and reached.

    Attributes:
        runtime: the name of the runtime in the engine.
        gvisor: whether the runtime is gVisor.
        network: the network in which the broker reaches gateways; None for unix sockets.
        host_guarded: user code does not reach services on the host's addresses.
        networks: the policies that sandboxes of this mode support.
    """

    runtime: str
    gvisor: bool = False
    network: InternalNetwork | None = None
    host_guarded: bool = True
    networks: frozenset[Network] = frozenset(Network)

    def __str__(self) -> str:
        return f"{self.runtime} over {'TCP' if self.network else 'unix sockets'}"


@dataclass(frozen=True, slots=True)
class RequestedMode:
    """The settings that determine the mode."""

    image: str
    runtime: str
    transport: Transport


Launch: TypeAlias = Callable[[str, SandboxSpec, LaunchMode], Awaitable[DockerSandbox]]
"""Launches a sandbox with this id in this mode."""


class LaunchModeSelector:
    """Finds the mode to use. Call `choose` first, and `close` when all sandboxes are removed.

    Args:
        info: the engine's description of itself (`GET /info`).
        run_cell: runs the check's cell in a launched sandbox.
    """

    def __init__(
        self,
        context: BackendContext,
        info: Mapping[str, Any],
        requested: RequestedMode,
        launch: Launch,
        remove: Callable[[DockerSandbox], Awaitable[None]],
        run_cell: RunCell,
    ) -> None:
        self._context = context
        self._runtimes: Mapping[str, Any] = info.get("Runtimes") or {}
        self._default_runtime = str(info.get("DefaultRuntime", "runc"))
        self._requested = requested
        self._launch = launch
        self._remove = remove
        self._run_cell = run_cell
        self._network: InternalNetwork | None = None

    async def choose(self) -> LaunchMode:
        """Return the first mode, in order of safety, in which a cell runs.

        Raises:
            BackendUnavailable: no cell runs in a mode that the settings allow.
        """
        problems: list[str] = []
        for runtime, transport in self._candidates():
            try:
                mode = await self._check(runtime, transport)
            except TimeoutError:
                problem = f"it took longer than {_CHECK_TIMEOUT_S:g} s"
            except (CheckFailed, LaunchError, EngineError, OSError) as error:
                problem = str(error)
            else:
                self._log_choice(mode, problems)
                return mode
            over = "unix sockets" if transport is Transport.UNIX else "TCP"
            problems.append(f"{runtime} over {over} does not work: {problem}")
        raise BackendUnavailable(
            f"No sandbox of the image {self._requested.image} can run a cell. {'. '.join(problems)}. The "
            "engine must be on this machine, and see data_dir and run_dir under the same paths. See "
            "docs/docker.md."
        )

    async def close(self) -> None:
        """Remove the network, if there is one. Never raises."""
        if self._network is not None:
            try:
                await self._network.remove()
            except EngineError as error:
                log.error("The network %s could not be removed: %s", self._network.name, error)

    def _candidates(self) -> Iterator[tuple[str, Transport]]:
        """Yield runtimes and transports to try, the safest first. Raises BackendUnavailable."""
        if self._requested.transport is Transport.AUTO:
            transports = [Transport.UNIX, Transport.TCP]
        else:
            transports = [self._requested.transport]
        if self._requested.runtime == AUTO:
            gvisor = sorted(filter(self._is_gvisor, self._runtimes))
            own = [] if self._default_runtime in gvisor else [self._default_runtime]
            groups = [gvisor, own]
        elif self._requested.runtime in self._runtimes:
            groups = [[self._requested.runtime]]
        else:
            raise BackendUnavailable(
                f"The engine does not have the runtime {self._requested.runtime}. Add it to the engine's "
                "configuration, or set docker.runtime to auto or one of these: "
                f"{', '.join(sorted(self._runtimes))}."
            )
        for group in groups:
            for transport in transports:
                for runtime in group:
                    yield runtime, transport

    def _is_gvisor(self, runtime: str) -> bool:
        """Whether a runtime of the engine is gVisor, by its name, program or shim."""
        entry = self._runtimes.get(runtime) or {}
        program = PurePath(str(entry.get("path", ""))).name
        return any(GVISOR in text for text in (runtime, program, str(entry.get("runtimeType", ""))))

    def _networks(self, runtime: str) -> frozenset[Network]:
        """The network policies that sandboxes support over unix sockets. gVisor may have no network."""
        arguments = (self._runtimes.get(runtime) or {}).get("runtimeArgs") or []
        closed = "--network=none" in arguments
        return frozenset(Network) - ({Network.OPEN} if closed else frozenset())

    def _log_choice(self, mode: LaunchMode, problems: list[str]) -> None:
        if problems:
            log.warning("Sandboxes run under %s. %s", mode, ". ".join(problems))
        elif self._requested.runtime == AUTO and not mode.gvisor:
            log.info("Sandboxes run under %s: the engine does not have gVisor (runsc)", mode)
        if not mode.host_guarded:
            log.warning("User code can reach services on this host's addresses: see docs/docker.md")

    async def _have_network(self) -> InternalNetwork:
        if self._network is None:
            context = self._context
            # Kept before its creation, so that `close` also removes it if `create` fails.
            self._network = InternalNetwork(context.engine, context.directories.broker_id)
        if not self._network.gateway:
            await self._network.create(self._context.labels)
        return self._network

    async def _check(self, runtime: str, transport: Transport) -> LaunchMode:
        """Run a cell in this mode. Raises CheckFailed, LaunchError, EngineError, OSError."""
        gvisor = self._is_gvisor(runtime)
        if transport is Transport.UNIX:
            mode = LaunchMode(runtime, gvisor, networks=self._networks(runtime))
            await self._check_socket(mode)
            return mode
        network = await self._have_network()
        mode = LaunchMode(runtime, gvisor, network, networks=frozenset({Network.NONE}))
        guarded = await self._check_network(mode, network)
        return replace(mode, host_guarded=guarded)

    async def _check_socket(self, mode: LaunchMode) -> None:
        async with self._launched(mode, CHECKS[0]) as (sandbox,):
            await addresses_reached(self._run_cell, sandbox, [], _CHECK_TIMEOUT_S)

    async def _check_network(self, mode: LaunchMode, network: InternalNetwork) -> bool:
        """Run a cell that tries to reach a neighbour and the host. Returns whether the host is guarded."""
        async with self._launched(mode, *CHECKS) as (sandbox, neighbour):
            with listening_on(network.gateway) as host:
                others = [_address(neighbour), host]
                reached_neighbour, reached_host = await addresses_reached(
                    self._run_cell, sandbox, others, _CHECK_TIMEOUT_S
                )
        if reached_neighbour:
            raise CheckFailed("sandboxes can reach each other")
        if reached_host and self._requested.transport is Transport.AUTO:
            raise CheckFailed(
                "user code could reach services on this host. Run the broker as root with iptables, so "
                "that it can prevent that, or accept it with docker.transport = tcp"
            )
        return not reached_host

    @contextlib.asynccontextmanager
    async def _launched(self, mode: LaunchMode, *names: str) -> AsyncIterator[list[DockerSandbox]]:
        """Launch sandboxes with these ids, and remove them at the end of the block."""
        sandboxes: list[DockerSandbox] = []
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                for name in names:
                    sandboxes.append(await self._launch(name, SandboxSpec(), mode))
            yield sandboxes
        finally:
            for sandbox in sandboxes:
                await self._remove(sandbox)


def _address(sandbox: DockerSandbox) -> Address:
    assert isinstance(sandbox.endpoint, TcpEndpoint), "it was launched on a network"
    return sandbox.endpoint.host, sandbox.endpoint.port
