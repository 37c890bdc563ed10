"""The contract between the pool and whatever launches sandboxes. Nothing here does I/O.

A backend has four verbs, in pairs: `start`/`stop` for itself, `launch`/`remove` for a sandbox. It
launches from a `SandboxSpec` and gives back a `Sandbox`: where its gateway listens, where its
workspace lies on the host, and a future that tells of its end. The pool and the sessions know no
more than that, so that all backends look alike from above.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..kernels.endpoint import Endpoint


class Isolation(enum.StrEnum):
    """What stands between user code and the host, weakest first."""

    PROCESS = "process"
    """A plain process: no boundary at all. For trying things out on loopback only."""

    BUBBLEWRAP = "bubblewrap"
    """A jail of Linux namespaces with seccomp."""

    CONTAINER = "container"
    """A container on the host's own kernel, without capabilities and with the engine's seccomp filter."""

    GVISOR = "gvisor"
    """A container on a kernel of its own in user space."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. Sizes in bytes, `cpus` in cores."""

    cpus: float = 1.0
    memory: int = 2 * 1024**3
    processes: int = 100
    tmp_size: int = 100 * 1024**2
    open_files: int = 1024
    workspace_size: int = 1024**3
    """Of all files together, which the sessions watch; no single file grows beyond it."""
    workspace_files: int = 100_000
    """Files and directories in the workspace."""


class Network(enum.StrEnum):
    """What a sandbox may reach."""

    NONE = "none"
    """Nothing at all."""

    ALLOWLIST = "allowlist"
    """The domains that its template names, over HTTP and HTTPS, through the broker's own proxy."""

    OPEN = "open"
    """Whatever the host reaches. Never a default."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """All that a launch may depend on. What belongs to one session alone is delivered after the lease."""

    template: str = "default"
    image: str | None = None
    """What a container is made of; the backend's own if None. A jail has none."""
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the template."""
    network: Network = Network.NONE
    allow: tuple[str, ...] = ()
    """The domains that `Network.ALLOWLIST` lets through; `*.example.org` for all below one."""
    imports: tuple[str, ...] = ()
    """Modules that the kernel has loaded when the sandbox counts as warm."""
    shared_data: Path | None = None
    """A host directory, seen read-only at /data/shared."""
    wheels: Path | None = None
    """A host directory of wheels that sessions may install, seen read-only at /opt/wheels."""
    index_url: str | None = None
    """Where packages are installed from, as far as the network allows; PyPI if None."""


class EndCause(enum.StrEnum):
    OUT_OF_MEMORY = "out_of_memory"
    KERNEL_DIED = "kernel_died"
    SANDBOX_LOST = "sandbox_lost"


@dataclass(frozen=True, slots=True)
class SandboxEnd:
    """How a sandbox ended by itself.

    Attributes:
        detail: one line for a person.
        last_line: what it wrote last, where `detail` does not have that, for messages to whoever runs the
            broker. User code may have written it, if any has run.
    """

    cause: EndCause
    detail: str
    last_line: str = ""


class LaunchError(Exception):
    """A sandbox could not be launched; the message says what to look at."""


class BackendUnavailable(Exception):
    """This backend cannot work on this machine; the message says what is missing."""


class Sandbox(ABC):
    """One launched sandbox.

    Attributes:
        id: unique for the life of the broker, safe in a path.
        endpoint: where the broker reaches the gateway.
        workspace: the host directory that is `/data` inside. The broker renames it or its top-level
            entries, measures it (`usage.py`), and removes it; it never opens a path below it, since
            user code may have planted links there. To rename it while the sandbox runs harms
            nobody, and `remove` copes with its absence.
        ended: resolved, never cancelled, when the sandbox is gone, for whatever reason.
    """

    id: str
    endpoint: Endpoint
    workspace: Path
    ended: asyncio.Future[SandboxEnd]

    @abstractmethod
    async def memory(self) -> int | None:
        """Bytes that its processes and its files in memory take up; None where that cannot be told.

        What the kernel would give back at once does not count. Cheap enough to be asked several
        times a minute, and never raises.
        """


class Backend(ABC):
    """Launches and removes sandboxes of one kind.

    Attributes:
        kept: the directory for workspaces that no sandbox has, made by whoever needs it first
            (`kept.py`). On the same file system as all `Sandbox.workspace`, and in a directory
            whose path below it they have in common, `kept.parent`. It outlives the broker, and
            other brokers may share it. Before `start` removes what a dead broker left behind, it
            moves that broker's files here (`rescue`).
    """

    isolation: Isolation
    kept: Path
    networks: frozenset[Network] = frozenset({Network.NONE})
    """What it can give a sandbox, once it is started."""

    def require_network(self, spec: SandboxSpec) -> None:
        """Raises LaunchError where it cannot give what the spec asks for."""
        if spec.network not in self.networks:
            offered = ", ".join(sorted(self.networks))
            raise LaunchError(
                f'network = "{spec.network}" of the template {spec.template} cannot be had from this '
                f"backend with isolation {self.isolation}, but: {offered}; see docs/network.md"
            )

    @abstractmethod
    async def start(self) -> None:
        """Prepare, and reap what an earlier broker left behind.

        Raises:
            BackendUnavailable: with what is missing and how to get it.
        """

    @abstractmethod
    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox; its gateway need not answer yet. If cancelled, nothing is left behind.

        Raises:
            LaunchError: nothing was left behind.
        """

    @abstractmethod
    async def remove(self, sandbox: Sandbox) -> None:
        """End it and remove every trace of it. Never raises; calling it twice does no harm."""

    @abstractmethod
    async def stop(self) -> None:
        """Remove whatever is left and let go of what `start` took."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """For `/health`: how isolation and each limit are enforced here, in JSON values."""
