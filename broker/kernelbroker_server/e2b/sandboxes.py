"""The control plane: creates, describes, pauses and ends sandboxes."""

from __future__ import annotations

import math
import secrets
import time
from typing import Any

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, RequestError, SessionGone
from kernelbroker.protocol.messages import ForkOptions, SessionOptions
from kernelbroker_kernel.contract import HOME_OF_E2B

from ..api.base import Service, status_of
from ..api.descriptions import utc_time
from ..api.disconnect import Disconnectable
from ..backends.base import Isolation, Network
from ..sessions.session import Session
from . import network
from .address import ENVD_VERSION, USER
from .handlers import E2bCall
from .messages import (
    DEFAULT_TIMEOUT_S,
    Fork,
    NetworkUpdate,
    NewSandbox,
    Refresh,
    Timeout,
)
from .surface_options import SurfaceOptions

_CLIENT_ID = "kernelbroker"
_ID_BYTES = 10


def new_sandbox_id() -> str:
    """Return an id as E2B's have them: short, in lower case, so that it can be part of a host name."""
    return secrets.token_hex(_ID_BYTES)


class SandboxesHandler(Disconnectable, E2bCall):
    """A call of the control plane."""

    def initialize(self, service: Service, surface: SurfaceOptions) -> None:  # type: ignore[override]
        super().initialize(service)
        self.surface = surface

    async def session(self, sandbox_id: str) -> Session:
        """Return a sandbox's session. Raises NotFound, also if it has ended."""
        try:
            session = await self.tenant.sessions.resolve(sandbox_id)
        except (NotFound, SessionGone) as exc:
            raise NotFound(f"sandbox {sandbox_id} was not found: {exc.message}") from exc
        if session.session is not None:
            raise NotFound(f"sandbox {sandbox_id} was not found: it is a context of another one")
        return session

    def created(self, session: Session) -> dict[str, Any]:
        """Return what a client needs to reach a sandbox."""
        token = self.surface.access.of(self.tenant.name, session.id)
        return {
            **self._names(session),
            "envdAccessToken": token,
            "trafficAccessToken": token,
            "domain": self.surface.domain_for(self.request),
        }

    def listed(self, session: Session) -> dict[str, Any]:
        """Return the description of a sandbox in a list."""
        limits = session.spec.limits
        return {
            **self._names(session),
            "startedAt": utc_time(session.created_at),
            "endAt": utc_time(time.time() + session.expires_in),
            "cpuCount": math.ceil(limits.cpus),
            "memoryMB": limits.memory // 1024**2,
            "diskSizeMB": limits.workspace_size // 1024**2,
            "state": state_of(session),
            "metadata": metadata_of(session),
        }

    def detail(self, session: Session) -> dict[str, Any]:
        """Return the description of one sandbox."""
        sleeps = session.options.on_expiry == "sleep"
        return {
            **self.listed(session),
            "domain": self.surface.domain_for(self.request),
            "envdAccessToken": self.surface.access.of(self.tenant.name, session.id),
            "allowInternetAccess": session.spec.network is Network.OPEN,
            "lifecycle": {"autoResume": True, "onTimeout": "pause" if sleeps else "kill"},
        }

    def _names(self, session: Session) -> dict[str, Any]:
        template = session.options.template
        return {
            "sandboxID": session.id,
            "clientID": _CLIENT_ID,
            "templateID": template,
            "alias": self.surface.alias_of(template),
            "envdVersion": ENVD_VERSION,
        }

    async def connect(self, session: Session, timeout: int | None) -> bool:
        """Wake a sandbox, and let it live for some seconds at least. Returns whether it slept."""
        slept = session.sleeping.is_asleep
        wanted = self.timeout_of(timeout)
        self.tenant.sessions.set_lifetime(session, wanted, only_longer=not slept)
        if slept:
            await self.tenant.sessions.wake(session)
        return slept

    def timeout_of(self, asked: int | None) -> float:
        """Return the timeout of a sandbox; without one that of E2B, as far as the limit allows."""
        limit = self.tenant.registry.limits.max_lifetime
        return min(DEFAULT_TIMEOUT_S, limit) if asked is None else asked


class Sandboxes(SandboxesHandler):
    """`POST /sandboxes`."""

    async def post(self) -> None:
        body = self.body_as(NewSandbox)
        options = await self._options(body)
        async with self.until_disconnected():  # no client would know the sandbox
            session, _ = await self.tenant.sessions.open(options, self.idempotency_key())
            self.reply(self.created(session), 201)

    async def _options(self, body: NewSandbox) -> SessionOptions:
        """Return the options of the session. Raises BadRequest, NotFound."""
        limit = self.tenant.registry.limits.max_lifetime
        timeout = self.timeout_of(body.timeout)
        if not 0 < timeout <= limit:
            raise BadRequest(
                f"timeout: a sandbox lives at most {limit:g} s (the setting sessions.max_lifetime), and at "
                "least 1 s"
            )
        for name in ("mcp", "iam", "volume_mounts"):
            if getattr(body, name):
                raise BadRequest(f"{name}: sandboxes of this broker do not have this; leave it out")
        template, checkpoint = await self._template(body.template_id)
        network.check(self.tenant.pools[template].spec, body.allow_internet_access, body.network)
        home = self._home(template)
        sandbox_id = new_sandbox_id()
        known = {
            "E2B_SANDBOX": "true",
            "E2B_SANDBOX_ID": sandbox_id,
            "E2B_TEMPLATE_ID": body.template_id,
        }
        return SessionOptions(
            session_id=sandbox_id,
            template=template,
            env={**home, **known, **body.env_vars},
            cwd=home.get("HOME"),
            metadata=dict(body.metadata),
            idle_timeout=limit,
            max_lifetime=timeout,
            on_error="keep",
            on_expiry="sleep" if body.auto_pause else "close",
            from_checkpoint=checkpoint,
        )

    async def _template(self, name: str) -> tuple[str, str | None]:
        """Return the template of a name, and the checkpoint if it is a snapshot. Raises NotFound."""
        try:
            return self.surface.template_of(name, self.tenant.pools), None
        except NotFound:
            try:
                snapshot = await self.tenant.checkpoints.get(name)
            except NotFound:
                pass
            else:
                return self.surface.template_of(snapshot.template, self.tenant.pools), snapshot.name
            raise

    def _home(self, template: str) -> dict[str, str]:
        """The variables that make the workspace the home directory; a plain process has no such path."""
        if self.tenant.pools[template].backend.isolation is Isolation.PROCESS:
            return {}
        # Shells take their first directory's name from PWD.
        return {"HOME": HOME_OF_E2B, "PWD": HOME_OF_E2B, "USER": USER, "LOGNAME": USER}


class OneSandbox(SandboxesHandler):
    """`GET` and `DELETE /sandboxes/ID`."""

    async def get(self, sandbox_id: str) -> None:
        self.reply(self.detail(await self.session(sandbox_id)))

    async def delete(self, sandbox_id: str) -> None:
        session = await self.session(sandbox_id)
        await session.close("its client killed it")
        self.set_status(204)


class Connect(SandboxesHandler):
    """`POST /sandboxes/ID/connect`. Its status is 201 if the sandbox was paused."""

    async def post(self, sandbox_id: str) -> None:
        body = self.body_as(Timeout)
        session = await self.session(sandbox_id)
        slept = await self.connect(session, body.timeout)
        self.reply(self.created(session), 201 if slept else 200)


class Resume(SandboxesHandler):
    """`POST /sandboxes/ID/resume`, of older clients."""

    async def post(self, sandbox_id: str) -> None:
        body = self.body_as(Timeout)
        session = await self.session(sandbox_id)
        if not await self.connect(session, body.timeout):
            raise Conflict(f"sandbox {sandbox_id} is running already")
        self.reply(self.created(session), 201)


class Pause(SandboxesHandler):
    """`POST /sandboxes/ID/pause`. 409 means that the sandbox is paused already."""

    async def post(self, sandbox_id: str) -> None:
        session = await self.session(sandbox_id)
        if session.sleeping.is_asleep:
            raise Conflict(f"sandbox {sandbox_id} is paused already")
        try:
            await self.tenant.sleeper.sleep(session)
        except Conflict as exc:
            raise BadRequest(exc.message) from exc
        self.set_status(204)


class SetTimeout(SandboxesHandler):
    """`POST /sandboxes/ID/timeout`."""

    async def post(self, sandbox_id: str) -> None:
        asked = self.body_as(Timeout).timeout
        session = await self.session(sandbox_id)
        self.tenant.sessions.set_lifetime(session, self.timeout_of(asked))
        self.set_status(204)


class Refreshes(SandboxesHandler):
    """`POST /sandboxes/ID/refreshes`: lets it live longer, never shorter."""

    async def post(self, sandbox_id: str) -> None:
        asked = self.body_as(Refresh).duration
        session = await self.session(sandbox_id)
        self.tenant.sessions.set_lifetime(session, self.timeout_of(asked), only_longer=True)
        self.set_status(204)


class UpdateNetwork(SandboxesHandler):
    """`PUT /sandboxes/ID/network`."""

    async def put(self, sandbox_id: str) -> None:
        body = self.body_as(NetworkUpdate)
        session = await self.session(sandbox_id)
        asked = {"allowOut": body.allow_out, "denyOut": body.deny_out, "rules": body.rules}
        network.check(session.spec, body.allow_internet_access, asked)
        self.set_status(204)


class Forks(SandboxesHandler):
    """`POST /sandboxes/ID/fork`: new sandboxes with the variables and the files of this one."""

    async def post(self, sandbox_id: str) -> None:
        body = self.body_as(Fork)
        session = await self.session(sandbox_id)
        async with self.until_disconnected():
            forks = [await self._fork(session, body.timeout) for _ in range(body.count)]
        self.reply(forks, 201)

    async def _fork(self, session: Session, timeout: int | None) -> dict[str, Any]:
        options = ForkOptions(
            session_id=new_sandbox_id(),
            metadata=session.options.metadata,
            max_lifetime=self.timeout_of(timeout),
        )
        try:
            return {"sandbox": self.created(await self.tenant.checkpoints.fork(session, options))}
        except RequestError as exc:
            return {"error": {"code": status_of(exc, 500), "message": exc.message}}


def state_of(session: Session) -> str:
    return "paused" if session.state == "asleep" else "running"


def metadata_of(session: Session) -> dict[str, str]:
    """Return the metadata as E2B has it: texts. Other values of the native API are JSON."""
    return {
        name: value if isinstance(value, str) else encode(value).decode()
        for name, value in session.options.metadata.items()
    }
