"""Under which runtime sandboxes run, and how the broker reaches them: tried out, the safest first."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..kernels.endpoint import TcpEndpoint
from .base import BackendUnavailable, LaunchError, SandboxSpec
from .docker_sandbox import DockerSandbox, Ground
from .engine import EngineError
from .internal_network import InternalNetwork
from .trial import TCP_TRIAL, UNIX_TRIAL, listening_on, reached_from

log = logging.getLogger(__name__)

GVISOR = "runsc"
AUTO = "auto"
_TRIAL_TIMEOUT_S = 30.0


class Transport(enum.StrEnum):
    """How the broker reaches the gateways."""

    AUTO = "auto"
    """By unix sockets, else by TCP, but never so that user code reaches the host."""
    UNIX = "unix"
    TCP = "tcp"


@dataclass(frozen=True, slots=True)
class Way:
    """How sandboxes are run and reached; no network means unix sockets."""

    runtime: str
    network: InternalNetwork | None = None
    host_guarded: bool = True

    def __str__(self) -> str:
        return f"{self.runtime} over {'TCP' if self.network else 'unix sockets'}"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the settings say."""

    image: str
    runtime: str
    transport: Transport


Launch: TypeAlias = Callable[[str, SandboxSpec, Way, Sequence[str]], Awaitable[DockerSandbox]]
"""Launches a sandbox of this id in this way, with this command in the gateway's place."""


class Ways:
    """`choose` comes first, `close` last, when all sandboxes are gone.

    Args:
        info: what the engine tells of itself.
    """

    def __init__(
        self,
        ground: Ground,
        info: Mapping[str, Any],
        asked: Asked,
        launch: Launch,
        remove: Callable[[DockerSandbox], Awaitable[None]],
    ) -> None:
        self._ground = ground
        self._info = info
        self._asked = asked
        self._launch = launch
        self._remove = remove
        self._network: InternalNetwork | None = None

    async def choose(self) -> Way:
        """The first way in which a sandbox really runs, the safest first.

        Raises BackendUnavailable where sandboxes do not run in the way that was asked for.
        """
        problems: list[str] = []
        for runtime in self._runtimes():
            if self._asked.transport is not Transport.TCP:
                way = Way(runtime)
                if (problem := await self._try_socket(way)) is None:
                    return self._chosen(way, problems)
                problems.append(f"{way} was tried, and {problem}")
            if self._asked.transport is not Transport.UNIX:
                way = Way(runtime, await self._have_network())
                problem, guarded = await self._try_network(way)
                if problem is None:
                    return self._chosen(Way(runtime, way.network, guarded), problems)
                problems.append(f"{way} was tried, and {problem}")
        raise BackendUnavailable(
            f"No sandbox can be had of the image {self._asked.image}: {'; '.join(problems)}. The engine "
            "must be on this machine, and see data_dir and run_dir under the same paths."
        )

    async def close(self) -> None:
        """Remove the network, if there is one. Never raises."""
        if self._network is not None:
            try:
                await self._network.remove()
            except EngineError as error:
                log.error("The network %s could not be removed: %s", self._network.name, error)

    def _runtimes(self) -> list[str]:
        """Those to try. Raises BackendUnavailable if the one asked for is not offered."""
        offered = self._info.get("Runtimes", {})
        asked = self._asked.runtime
        if asked == AUTO:
            default = self._info.get("DefaultRuntime", "runc")
            return list(dict.fromkeys((GVISOR, default) if GVISOR in offered else (default,)))
        if asked not in offered:
            raise BackendUnavailable(
                f"The engine does not offer the runtime {asked}, but {', '.join(sorted(offered))}. "
                f"Install {asked} and make it known to the engine, or set docker.runtime to auto."
            )
        return [asked]

    def _chosen(self, way: Way, problems: list[str]) -> Way:
        if self._asked.runtime == AUTO and way.runtime != GVISOR and not problems:
            problems = ["the engine does not offer gVisor (runsc)"]
        if problems:
            log.info("Sandboxes run under %s: %s", way, "; ".join(problems))
        if not way.host_guarded:
            log.warning(
                "User code reaches what listens on this host's addresses: see docs/docker.md"
            )
        return way

    async def _have_network(self) -> InternalNetwork:
        if self._network is None:
            ground = self._ground
            network = InternalNetwork(ground.engine, ground.directories.broker_id)
            self._network = network  # to be removed, however far its creation comes
            await network.create(ground.labels)
        return self._network

    async def _try_socket(self, way: Way) -> str | None:
        """Run a real sandbox; returns what went wrong."""
        try:
            trial = await self._launch("trial", SandboxSpec(), way, UNIX_TRIAL)
        except LaunchError as error:
            return str(error)
        try:
            await asyncio.wait([trial.ended], timeout=_TRIAL_TIMEOUT_S)
            if trial.exit_status == 0:
                return None
            return f"the trial failed: {await trial.output_tail()}"
        finally:
            await self._remove(trial)

    async def _try_network(self, way: Way) -> tuple[str | None, bool]:
        """Run two real sandboxes; returns what went wrong, and whether they do not reach the host."""
        assert way.network is not None, "this way has one"
        trials: list[DockerSandbox] = []
        try:
            async with asyncio.timeout(_TRIAL_TIMEOUT_S):
                for name in ("trial", "neighbour"):
                    trials.append(await self._launch(name, SandboxSpec(), way, TCP_TRIAL))
                for trial in trials:
                    if trial.ended.done():
                        return f"the trial failed: {await trial.output_tail()}", False
                one, neighbour = (_address(trial) for trial in trials)
                with listening_on(way.network.gateway) as host:
                    met, host_met = await reached_from(one, [neighbour, host])
        except LaunchError as error:
            return str(error), False
        except (OSError, ValueError) as error:  # also a TimeoutError
            return f"its sandbox could not be reached: {error!r}", False
        finally:
            for trial in trials:
                await self._remove(trial)
        if met:
            return "sandboxes reach each other there", False
        if host_met and self._asked.transport is Transport.AUTO:
            return (
                "user code would reach what listens on this host. Run the broker as root with iptables "
                "installed, so that it can close that way, or accept it by docker.transport = tcp"
            ), False
        return None, not host_met


def _address(trial: DockerSandbox) -> tuple[str, int]:
    assert isinstance(trial.endpoint, TcpEndpoint), "it was launched on a network"
    return trial.endpoint.host, trial.endpoint.port
