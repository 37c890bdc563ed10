"""The control plane: creates, lists and ends sandboxes."""

from __future__ import annotations

import math
import secrets
import time
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest, NotFound, SessionGone
from kernelbroker.protocol.messages import SessionOptions

from ..api.base import Service, utc_time
from ..api.disconnect import Disconnectable
from ..sessions.session import Session
from .address import ENVD_VERSION
from .handlers import E2bCall
from .surface_options import SurfaceOptions

_DEFAULT_TIMEOUT_S = 300
_CLIENT_ID = "kernelbroker"

Seconds = Annotated[int, msgspec.Meta(ge=0)]


class NewSandbox(msgspec.Struct, kw_only=True, rename="camel"):
    """The fields that E2B's clients send. Unknown ones are ignored, since later clients may send more."""

    template_id: str = msgspec.field(name="templateID")
    timeout: Seconds = _DEFAULT_TIMEOUT_S
    metadata: dict[str, str] = {}
    env_vars: dict[str, str] = {}


class SandboxesHandler(E2bCall):
    """A call of the control plane."""

    def initialize(self, service: Service, surface: SurfaceOptions) -> None:  # type: ignore[override]
        super().initialize(service)
        self.surface = surface

    async def session(self, sandbox_id: str) -> Session:
        """Return a sandbox's session. Raises NotFound, also if it has ended."""
        try:
            return await self.tenant.sessions.resolve(sandbox_id)
        except (NotFound, SessionGone) as exc:
            raise NotFound(f"sandbox {sandbox_id} was not found: {exc.message}") from exc

    def created(self, session: Session) -> dict[str, Any]:
        """Return what a client needs to reach a sandbox."""
        token = self.surface.access.of(self.tenant.name, session.id)
        return {
            **self._names(session),
            "envdAccessToken": token,
            "trafficAccessToken": token,
            "domain": self.surface.domain_for(self.request),
        }

    def detail(self, session: Session) -> dict[str, Any]:
        """Return the description of a sandbox."""
        limits = session.spec.limits
        return {
            **self._names(session),
            "startedAt": utc_time(session.created_at),
            "endAt": utc_time(time.time() + session.expires_in),
            "cpuCount": math.ceil(limits.cpus),
            "memoryMB": limits.memory // 1024**2,
            "diskSizeMB": limits.workspace_size // 1024**2,
            "state": "paused" if session.state == "asleep" else "running",
            "metadata": session.options.metadata,
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


class Sandboxes(Disconnectable, SandboxesHandler):
    """`POST /sandboxes`."""

    async def post(self) -> None:
        body = self.body_as(NewSandbox)
        limits = self.tenant.registry.limits
        if body.timeout > limits.max_lifetime:
            raise BadRequest(
                f"a sandbox lives at most {limits.max_lifetime:g} s (the setting sessions.max_lifetime)"
            )
        options = SessionOptions(
            session_id=secrets.token_hex(10),
            template=self.surface.template_of(body.template_id, self.tenant.pools),
            env=body.env_vars,
            metadata=dict(body.metadata),
            idle_timeout=limits.max_lifetime,
            max_lifetime=body.timeout or 1,
        )
        async with self.until_disconnected():  # no client would know the sandbox
            session, _ = await self.tenant.sessions.open(options, self.idempotency_key())
            self.reply(self.created(session), 201)


class OneSandbox(SandboxesHandler):
    """`GET` and `DELETE /sandboxes/ID`."""

    async def get(self, sandbox_id: str) -> None:
        self.reply(self.detail(await self.session(sandbox_id)))

    async def delete(self, sandbox_id: str) -> None:
        session = await self.session(sandbox_id)
        await session.close("its client killed it")
        self.set_status(204)
