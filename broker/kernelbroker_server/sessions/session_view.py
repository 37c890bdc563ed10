"""What can be read of a session."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence

from kernelbroker.protocol.errors import NotFound
from kernelbroker.protocol.messages import MissingVariable, SessionOptions
from kernelbroker.protocol.messages import SessionState as PublicState

from ..backends.base import Isolation, SandboxSpec, Usage
from ..kernels.outputs import OutputLimits
from ..telemetry.origin import Origin
from .admission import TenantQueue
from .lease import Lease
from .limits import SessionLimits
from .machine import SessionMachine
from .routes import Routes
from .runner import SessionRunner
from .session_log import SessionLog
from .sleeping import Sleeping
from .states import SessionState
from .store import EventStore, ExecutionLog, Watcher
from .streams import Streams


class SessionView:
    """The base of `Session`, which sets the attributes.

    Attributes:
        session: the session that this one is a context of; None if it is none.
        contexts: its open contexts, by id.
        sleeping: when it falls asleep.
        streams: its long connections.
        key: its key in the event store.
        origin: who opened it, through which client.
    """

    id: str
    key: str
    session: SessionView | None
    contexts: Mapping[str, SessionView]
    options: SessionOptions
    idle_timeout: float
    max_lifetime: float
    origin: Origin
    sleeping: Sleeping
    streams: Streams
    _created: float
    _lease: Lease
    _limits: SessionLimits
    _machine: SessionMachine
    _queue: TenantQueue
    _runner: SessionRunner
    _store: EventStore

    @property
    def state(self) -> PublicState:
        """The state for clients: `busy` while an execution runs or waits."""
        if self.closed_reason is not None:
            return "closed"
        machine = self._machine
        if self.sleeping.is_asleep and not machine.queued:
            return "asleep"
        return "idle" if machine.running is None and not machine.queued else "busy"

    @property
    def closed_reason(self) -> str | None:
        """The reason why the session is closed; None while it is open."""
        return self._machine.closed_reason

    @property
    def is_left(self) -> bool:
        """Whether it accepts nothing more, and is left to the next broker."""
        return self._machine.state is SessionState.LEAVING

    @property
    def queued(self) -> int:
        """The number of waiting executions, except the one that waits for its turn."""
        queue_length = self._machine.queued
        return queue_length - 1 if queue_length and self._machine.running is None else queue_length

    @property
    def secrets(self) -> frozenset[str]:
        """The values that are masked in all output: of the session, and of its executions."""
        executions = self._runner.executions.values()
        own = (value for each in executions for value in each.request.secrets.values())
        return frozenset([*self.options.secrets.values(), *own])

    @property
    def is_running(self) -> bool:
        """Whether an execution runs, which an interrupt would end."""
        return self._machine.running is not None

    @property
    def spec(self) -> SandboxSpec:
        """The specification of its sandboxes."""
        return self._lease.spec

    @property
    def sandbox_id(self) -> str | None:
        """The id of its sandbox; None while it has none."""
        warm = self._lease.current
        return None if warm is None else warm.sandbox.id

    async def memory(self) -> int | None:
        """Return the bytes of memory that its sandbox uses; None if it has none, or it is not known."""
        warm = self._lease.alive
        return None if warm is None else await warm.sandbox.memory()

    @property
    def routes(self) -> Routes | None:
        """Where its cells can run, if its template is `auto`."""
        return self._lease.routes

    @property
    def limits(self) -> SessionLimits:
        """The limits of its present template, as far as it has no lower ones."""
        return self.limits_in(self.spec)

    def limits_in(self, spec: SandboxSpec) -> SessionLimits:
        """Its limits in a sandbox. A context has those of its session."""
        own = (self.session or self).options.limits
        return self._limits.of_template(spec.limits).lowered_to(own)

    @property
    def isolation(self) -> Isolation:
        """The isolation of its sandboxes."""
        return self._lease.isolation

    @property
    def output_limits(self) -> OutputLimits:
        """Those of its executions. A context has the limits of its session."""
        own = (self.session or self).options.limits
        return self.limits.output.lowered_to(own.output)

    @property
    def sandbox_type(self) -> str:
        """The kind of its sandboxes, as the routing of code names it."""
        is_container = self.isolation in (Isolation.CONTAINER, Isolation.GVISOR)
        return "docker_simple" if is_container else "subprocess"

    @property
    def workspace(self) -> str:
        """The name of its workspace."""
        return self._lease.workspace.name

    @property
    def acquire_timeout(self) -> float:
        """Seconds that a request may wait for its turn in this session."""
        return self._lease.timeout

    @property
    def active_at(self) -> float:
        """When it was last used, in seconds since the epoch."""
        return max(each._runner.active_at for each in (self, *self.contexts.values()))

    @property
    def restarts(self) -> int:
        """How often its kernel was replaced."""
        return self._lease.replaced

    @property
    def outlives_the_broker(self) -> bool:
        """Whether another broker can wake it: its files are kept, and it has no secrets, which are not."""
        return self._lease.workspace.is_kept and not self.options.secrets

    @property
    def workspace_warning(self) -> str | None:
        """What its user should know about the files; see `Workspace.warning`."""
        return self._lease.workspace.warning

    @property
    def not_restored(self) -> Sequence[MissingVariable]:
        """What could not be loaded of the checkpoint that it began with."""
        return self._lease.not_restored

    @property
    def expires_at(self) -> tuple[float, str]:
        """Return the time, by the admission's clock, at which the session expires, and the reason.

        A context lives as long as its session, which does not expire by idleness while a context is used.
        """
        if self.session is not None:
            return math.inf, ""
        if (asleep_end := self.sleeping.expires_at) is not None:
            return asleep_end
        end = self._created + self.max_lifetime + self.sleeping.slept
        kernels = (self, *self.contexts.values())
        idle_end = max(each._runner.active for each in kernels) + self.idle_timeout
        is_idle = all(each._machine.idle and not each.streams for each in kernels)
        if is_idle and idle_end < end:
            return idle_end, f"it was idle for {self.idle_timeout:g} s"
        return end, f"it reached its lifetime of {self.max_lifetime:g} s"

    @property
    def age(self) -> float:
        """Seconds that it was awake since it was opened, which count for `max_lifetime`."""
        return self._queue.clock() - self._created - self.sleeping.slept

    @property
    def expires_in(self) -> float:
        """Seconds until it expires, if nobody uses it."""
        return self.expires_at[0] - self._queue.clock()

    async def usage(self) -> tuple[int | None, Usage | None]:
        """Return the bytes of memory that its sandbox uses, and the size of its files, as far as known."""
        warm = self._lease.alive
        memory = None if warm is None else await warm.sandbox.memory()
        return memory, await self._lease.usage(self.spec.limits.workspace_files)

    @property
    def events(self) -> SessionLog:
        """Its events for a front end. A context has its own."""
        return self._store.session_log(self.key)

    @property
    def executions(self) -> Mapping[str, ExecutionLog]:
        """Return the remembered executions by id, oldest first."""
        return self._store.executions(self.key)

    def watch(self) -> contextlib.AbstractContextManager[Watcher]:
        """Return a queue of the executions that are accepted from now on; see `EventStore.watch`."""
        return self._store.watch(self.key)

    def execution(self, execution_id: str) -> ExecutionLog:
        """Return an execution. Raises NotFound if it is unknown or forgotten."""
        try:
            return self.executions[execution_id]
        except KeyError:
            raise NotFound(f"session {self.id} has no execution {execution_id}") from None

    def expect_open(self) -> None:
        """Check that the session is open. Raises SessionGone."""
        self._machine.expect_open()
