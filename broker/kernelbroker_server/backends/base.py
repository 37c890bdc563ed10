"""The contract between the pool and the backends. No I/O.

A backend has four methods, in pairs: `start` and `stop` for itself, `launch` and `remove` for a sandbox. It
launches from a `SandboxSpec` and returns a `Sandbox`: the address of its gateway, the directory of its
workspace on the host, and a future that resolves when it ends. The pool and the sessions use only these, so
that they work with every backend.
"""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ..kernels.endpoint import Endpoint
from .host_project import HostProject
from .limits import CPU_PERIOD_US as CPU_PERIOD_US
from .limits import Limits as Limits
from .outcomes import BackendUnavailable as BackendUnavailable
from .outcomes import EndCause as EndCause
from .outcomes import LaunchError as LaunchError
from .outcomes import SandboxEnd as SandboxEnd
from .process_saver import ProcessSaver


class Isolation(enum.StrEnum):
    """The boundary between user code and the host, weakest first."""

    PROCESS = "process"
    """A plain process without any boundary. For experiments on loopback only."""

    BUBBLEWRAP = "bubblewrap"
    """A jail of Linux namespaces with seccomp."""

    CONTAINER = "container"
    """A container on the host's kernel, without capabilities and with the engine's seccomp filter."""

    GVISOR = "gvisor"
    """A container on gVisor, a kernel in user space."""


class Network(enum.StrEnum):
    """The network that a sandbox can reach."""

    NONE = "none"
    """No network."""

    ALLOWLIST = "allowlist"
    """The domains of the template's `allow`, over HTTP and HTTPS, through the broker's proxy."""

    OPEN = "open"
    """Everything that the host reaches. Never a default."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that a launch depends on. What depends on the session is sent after the lease."""

    template: str = "default"
    image: str | None = None
    """The image of a container; the backend's if None. A jail has no image."""
    limits: Limits = field(default_factory=Limits)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the template."""
    network: Network = Network.NONE
    allow: tuple[str, ...] = ()
    """The allowed domains of `Network.ALLOWLIST`; `*.example.org` allows all subdomains."""
    upstreams: tuple[str, ...] = ()
    """The ids of servers that it reaches at addresses of ours, through the broker's proxy."""
    imports: tuple[str, ...] = ()
    """Modules that the kernel imports before the sandbox counts as warm."""
    shared_data: Path | None = None
    """A host directory that is visible at /data/shared, read-only."""
    wheels: Path | None = None
    """A host directory of wheels that sessions may install, visible at /opt/wheels, read-only."""
    index_url: str | None = None
    """The index of packages, if the network allows it; PyPI if None."""
    orphan_grace: float = 0.0
    """Seconds that it lives without a broker, so that the next broker can adopt it."""
    browser: bool = field(default=False, repr=False)
    """Whether sessions may use a browser in it; no launch depends on it."""
    process_checkpoints: bool = False
    """Its living processes can be saved."""
    ports: bool | tuple[int, ...] = field(default=False, repr=False)
    """The ports of servers inside it that clients may reach; no launch depends on them."""
    project: HostProject | None = None
    """Of a sandbox that is launched for one session."""

    @property
    def uses_proxy(self) -> bool:
        """Whether it has a socket of the broker's egress proxy, which ends with the broker."""
        return self.network is Network.ALLOWLIST or bool(self.upstreams)


@dataclass(frozen=True, slots=True)
class Usage:
    """The size of a workspace.

    Attributes:
        size: bytes on the disk.
        files: inodes; hard links count once.
        complete: everything was counted; otherwise the numbers are lower bounds.
        known: it was measured. If not, the broker or the connection is to blame, not the sandbox.
    """

    size: int = 0
    files: int = 0
    complete: bool = True
    known: bool = True


UNKNOWN = Usage(complete=False, known=False)


Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Waits until it is certain that no other broker has taken over what this one owned."""


async def owns_all() -> None:
    """For a broker that is alone: what it has is its own."""


class Sandbox(ABC):
    """One launched sandbox.

    Attributes:
        id: unique during the life of the broker, and safe in a path.
        spec: the spec of its launch.
        limits: those of the spec, with the memory that `change_limits` has left.
        endpoint: the address of its gateway.
        workspace: the host directory that is `/data` in the sandbox, or that is copied to and from there.
            Only the backend and the store of workspaces use it. They rename it or its top-level entries,
            and never open a path below it, since user code may have created links there. It may be renamed
            while the sandbox runs, and `remove` accepts that it is missing.
        ended: resolves when the sandbox has ended for any reason; never cancelled.
    """

    id: str
    spec: SandboxSpec
    limits: Limits
    endpoint: Endpoint
    workspace: Path
    ended: asyncio.Future[SandboxEnd]
    epoch: int = 0
    """That of the broker that has taken it over; 0 if none has."""
    process_saver: ProcessSaver | None = None
    """Saves and restores its processes; None if the sandbox is not made for that."""

    @abstractmethod
    async def memory(self) -> int | None:
        """Return the bytes that its processes and its files in memory use; None if unknown.

        Memory that the kernel can free at once does not count. The call is cheap enough for several calls a
        minute, and never raises.
        """

    async def processor_time(self) -> float | None:
        """Return the seconds of processor time that its processes have used; None if unknown.

        As cheap as `memory`, and never raises.
        """
        return None

    def ran_out_of_memory(self) -> bool:
        """Whether a process of it was ended because memory ran out, as far as the backend knows."""
        return False

    @abstractmethod
    async def usage(self, max_files: int) -> Usage:
        """Return the size of its workspace; counts at most `max_files` inodes. Never raises OSError."""

    @abstractmethod
    async def change_limits(self, memory: int, cpus: float) -> None:
        """Limit its memory in bytes and its processors, at most to those of its spec. May be called again.

        Raises:
            LaunchError: a limit cannot be changed, or the sandbox uses more already.
        """

    @abstractmethod
    async def cut_network(self) -> None:
        """Take the network away, with its connections. Raises LaunchError if that cannot be done."""

    async def push_files(self) -> None:  # noqa: B027 - a workspace is in the sandbox already
        """Copy `workspace` into the sandbox, if that is another place. Call it before the sandbox is used.

        Raises:
            LaunchError: the files could not be copied.
        """

    async def pull_files(self) -> None:  # noqa: B027
        """Copy the files of a sandbox whose processes have ended to `workspace`, if that is another place.

        Raises:
            LaunchError: the sandbox is lost; `workspace` has the files of the last copy.
        """

    @abstractmethod
    async def kill(self) -> None:
        """End all its processes, and wait until none is left and `ended` is resolved.

        The files stay until `Backend.remove`. Never raises: if the processes do not end in time, an error
        is logged. Calling it twice does no harm.
        """

    def remember(  # noqa: B027 - a backend without adoption has nothing to do
        self, *, kernel_id: str | None = None, session: str | None = None, is_ready: bool = False
    ) -> None:
        """Record for the next broker what the sandbox is used for; see `Orphan`. Raises LaunchError.

        Call it before the sandbox is used so. What is not given stays as it is.
        """


@dataclass(frozen=True, slots=True)
class Orphan:
    """A living sandbox of an earlier broker.

    Attributes:
        session: the key of the session that has it; None if nobody had it.
    """

    sandbox: Sandbox
    kernel_id: str
    session: str | None


Rescue: TypeAlias = Callable[[Path], bool]


class Backend(ABC):
    """Launches and removes sandboxes of one kind.

    Attributes:
        data_dir: the directory that contains every `Sandbox.workspace`. A store of workspaces uses it as
            well, so that files can be moved by renaming. It outlives the broker, and several brokers
            may share it.
    """

    isolation: Isolation
    data_dir: Path
    browser_problem: str | None = None
    """Why no browser works in its sandboxes, after `start`; None if nothing is known to be missing."""
    networks: frozenset[Network] = frozenset({Network.NONE})
    """The supported network policies, after `start`."""

    def why_no_process_checkpoints(self, spec: SandboxSpec) -> str:  # noqa: ARG002
        """Return why the processes of sandboxes of this spec cannot be saved; empty if they can."""
        return "only jails of the backend local can be saved so"

    def require_network(self, spec: SandboxSpec) -> None:
        """Check that the backend supports the network of the spec. Raises LaunchError."""
        if spec.network not in self.networks:
            offered = ", ".join(sorted(self.networks))
            raise LaunchError(
                f"this backend with isolation {self.isolation} does not support the network "
                f'"{spec.network}" of the template {spec.template}, but {offered}; see docs/network.md'
            )
        if spec.upstreams and Network.ALLOWLIST not in self.networks:
            raise LaunchError(
                f"this backend with isolation {self.isolation} does not support the upstreams or forges of "
                f"the template {spec.template}; see docs/network.md"
            )

    @abstractmethod
    async def start(self, rescue: Rescue | None = None) -> None:
        """Prepare, and remove what dead brokers left behind.

        Args:
            rescue: called with the directory of a dead broker below `data_dir`, in a thread, when its
                sandboxes have ended and before its directories are removed. If it returns False, they are
                kept.

        Raises:
            BackendUnavailable: with what is missing and how to get it.
        """

    @abstractmethod
    async def launch(self, sandbox_id: str, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox; its gateway need not answer yet.

        If this fails or is cancelled, nothing is left behind.

        Raises:
            LaunchError: the sandbox could not be started.
        """

    @abstractmethod
    async def remove(self, sandbox: Sandbox) -> None:
        """End a sandbox and remove everything of it. Never raises; calling it twice does no harm."""

    def orphans(self, specs: Sequence[SandboxSpec]) -> Sequence[Orphan]:  # noqa: ARG002
        """Return the sandboxes of an earlier broker that can be adopted. Called once, after `start`.

        `end_orphans` follows.

        Args:
            specs: the present ones; a sandbox of another spec is no longer wanted.
        """
        return ()

    confirm: Confirm = staticmethod(owns_all)
    """Waited for before a sandbox is ended. Set before `start`."""

    async def take(self, broker_id: str, epoch: int) -> bool:  # noqa: ARG002
        """Take over the directories of a broker without a lease; `orphans` and `end_orphans` follow.

        Its gateways refuse lower epochs from now on. Returns whether the directories are there.
        """
        return False

    @property
    def broker_ids(self) -> Sequence[str]:
        """The ids of the directories where its sandboxes are, after `start`."""
        return ()

    async def end_orphans(  # noqa: B027
        self, unwanted: Sequence[Sandbox], rescue: Rescue | None = None
    ) -> None:
        """Remove what an earlier broker of this state has left, and was not adopted.

        Args:
            unwanted: those of `orphans` that are not used.
            rescue: as for `start`.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Remove all sandboxes, and release what `start` acquired."""

    async def leave(self) -> None:
        """As `stop`, but leave the sandboxes that outlive the broker to the next one."""
        await self.stop()

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return how isolation and each limit are enforced, as JSON values for `/health`."""
