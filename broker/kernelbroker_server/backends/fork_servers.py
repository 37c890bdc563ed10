"""The fork servers of a local backend: one for each template, replaced when it has forked often, or died.

Sandboxes of one server share the addresses of what it had loaded and the secret of `hash`, so a server is
replaced after some forks. The next one is started first. A launch waits for the first server of its
template, since a start without it would do the same work. If the server fails, sandboxes are started
without it, and it is started again after a pause.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from kernelbroker_kernel.contract import WORKSPACE

from ..supervisor import BACKOFF_S, SupervisedTask, Supervisor
from .base import SandboxSpec
from .fork_server import ForkServer, ForkServerError
from .host import Host
from .sandbox_layout import HOME, TMP, environment, gateway_argv

log = logging.getLogger(__name__)

MAX_FORKS = 50
_MAX_TEMPLATES = 32
"""Sandboxes of further templates are started without a server."""
_FIRST_START_S = 20.0
"""How long a launch waits for a server that is being started and has not failed yet."""
_LISTENER = 3
"""The descriptor of a gateway's listening socket."""


class ServerState(enum.StrEnum):
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"
    """The last one failed, and the next one is started after a pause."""


class ForkServers:
    """The servers of one backend.

    Args:
        etc: a directory with the files of `jail.ETC`.
        max_forks: the number of forks after which a server is replaced.
    """

    def __init__(
        self, host: Host, etc: Path, supervisor: Supervisor, max_forks: int = MAX_FORKS
    ) -> None:
        self._host = host
        self._etc = etc
        self._supervisor = supervisor
        self._max_forks = max_forks
        self._templates: dict[object, TemplateServer] = {}

    async def get(self, spec: SandboxSpec, command: Sequence[str]) -> ForkServer | None:
        """The server for sandboxes of the spec; None if they have to be started without one.

        The first call for a template starts its server and waits for it.

        Args:
            command: the arguments of the kernels' Python, before `--fd N`.
        """
        if not self._host.root and self._host.nsenter is None:
            return None
        argv = gateway_argv("", command, ("--fd", str(_LISTENER)), spec)[1:]
        variables = environment(spec, home=HOME, tmp=TMP, workspace=Path(WORKSPACE))
        key = (tuple(argv), tuple(sorted(variables.items())), spec.shared_data, spec.wheels)
        template = self._templates.get(key)
        if template is None:
            if len(self._templates) == _MAX_TEMPLATES:
                return None
            template = TemplateServer(self._host, spec, argv, self._etc, self._max_forks)
            self._templates[key] = template
            template.start(self._supervisor)
        return await template.get()

    @property
    def pids(self) -> list[int]:
        """The pids of the servers in use; see `ForkServer.pid`."""
        servers = [template.server for template in self._templates.values()]
        return [server.pid for server in servers if server is not None]

    def describe(self) -> dict[str, object]:
        """How sandboxes are made, by template, as JSON values for `/health`."""
        return {
            template.name: {
                "by": "fork" if template.usable else "start",
                "fork_server": template.state.value,
                "forks": template.forks,
                "failures": template.failures,
            }
            for template in self._templates.values()
        }

    async def stop(self) -> None:
        """End all servers. Their gateways go on."""
        templates, self._templates = list(self._templates.values()), {}
        await asyncio.gather(*(template.stop() for template in templates))


class TemplateServer:
    """Keeps one server of a template ready.

    Attributes:
        state: of the server that sandboxes are forked from, or of the next one if there is none.
        failures: how often it failed in a row.
        forks: gateways that all servers of this template have forked.
    """

    def __init__(
        self, host: Host, spec: SandboxSpec, argv: Sequence[str], etc: Path, max_forks: int
    ) -> None:
        self.name = spec.template
        self.state = ServerState.STARTING
        self.failures = 0
        self._start_server = partial(ForkServer.start, host, spec, argv, etc)
        self._max_forks = max_forks
        self._forks_before = 0
        self.server: ForkServer | None = None
        """The one to fork from, if it is `usable`."""
        self._retired: list[ForkServer] = []
        self._decided = asyncio.Event()
        """Set when the first start has succeeded or failed."""
        self._task: SupervisedTask | None = None

    @property
    def usable(self) -> bool:
        """Whether there is a server to fork from. A worn one is used while the next is being started."""
        server = self.server
        return (
            server is not None and not server.closed.done() and server.forks < 2 * self._max_forks
        )

    @property
    def forks(self) -> int:
        servers = [*self._retired, *([] if self.server is None else [self.server])]
        return self._forks_before + sum(server.forks for server in servers)

    def start(self, supervisor: Supervisor) -> None:
        self._task = supervisor.start(f"fork server of {self.name}", self._keep)

    async def get(self) -> ForkServer | None:
        if not self._decided.is_set():
            try:
                await asyncio.wait_for(self._decided.wait(), _FIRST_START_S)
            except TimeoutError:
                log.warning(
                    "The fork server of %s is slow to start; sandboxes do not wait", self.name
                )
                self._decided.set()
        return self.server if self.usable else None

    async def stop(self) -> None:
        if self._task is not None:
            await self._task.stop()
        servers = [*self._retired, *([] if self.server is None else [self.server])]
        await asyncio.gather(*(server.close() for server in servers))

    async def _keep(self) -> None:
        """Start servers, one after the other, until cancelled."""
        while True:
            if not self.usable:
                self.state = ServerState.STARTING
            try:
                server = await self._start_server()
            except ForkServerError as error:
                await self._back_off(str(error))
                continue
            self._replace(server)
            while server.forks < self._max_forks and not server.closed.done():
                server.changed.clear()
                await server.changed.wait()
            if server.closed.done():
                if server.worked:
                    self.failures = 0
                await self._back_off(f"it has ended: {_last_line(server.output_tail())}")
            else:
                self.failures = 0

    def _replace(self, server: ForkServer) -> None:
        if (old := self.server) is not None:
            old.retire()
            self._retired.append(old)
        self._forks_before += sum(old.forks for old in self._retired if old.closed.done())
        self._retired = [old for old in self._retired if not old.closed.done()]
        self.server = server
        self.state = ServerState.READY
        self._decided.set()

    async def _back_off(self, why: str) -> None:
        if not self.usable:
            self.state = ServerState.BACKING_OFF
        self._decided.set()
        delay = BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)]
        self.failures += 1
        log.warning(
            "The fork server of the template %s failed, so sandboxes take longer to start: %s. It is "
            "started again in %g s.",
            self.name,
            why,
            delay,
        )
        await asyncio.sleep(delay)


def _last_line(output: str) -> str:
    return output.rpartition("\n")[2] or "without a word"
