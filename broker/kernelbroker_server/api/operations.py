"""The calls for operators: sandboxes and pools of all tenants, draining, the audit log, the last hour."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.errors import BadRequest, Forbidden

from ..audit_reader import AuditFilter
from ..service.operations import Operations, SandboxState
from ..telemetry.history import INTERVAL_S
from .base import ApiHandler
from .descriptions import utc_time
from .openapi import operation

_MAX_RECORDS = 1000
AUDIT_EVENTS = (
    "confirmation",
    "execution",
    "execution.refused",
    "file",
    "network.request",
    "operation",
    "process",
    "request.refused",
    "session",
    "session.close",
    "session.lease",
    "session.open",
    "session.replace",
)
"""Offered as filters."""


class SandboxInfo(msgspec.Struct, kw_only=True):
    """A sandbox.

    Attributes:
        state: `starting`, `idle`, `checking`, `leased` or `removing`.
        uptime: seconds since it is warm; null while it starts.
        kernel_status: `starting`, `idle`, `busy` or `dead`.
        memory_usage, memory_limit: bytes; null if unknown.
        processor_time: seconds of all cores that it has used; null if unknown.
        session, tenant: that have it, or null.
    """

    worker_id: str
    template: str
    state: str
    uptime: float | None
    kernel_status: str
    memory_usage: int | None
    memory_limit: int | None
    processor_time: float | None
    session: str | None
    tenant: str | None


class SandboxList(msgspec.Struct, kw_only=True):
    sandboxes: list[SandboxInfo]


class PoolList(msgspec.Struct, kw_only=True):
    """The pools, each with its numbers, its `queue` in order of service, and what comes `next`."""

    pools: list[dict[str, Any]]


class Draining(msgspec.Struct, kw_only=True):
    template: str
    draining: bool


class AuditRecords(msgspec.Struct, kw_only=True):
    """Records of the audit log, the latest first; `events` are kinds to filter by."""

    records: list[dict[str, Any]]
    events: list[str]


class MetricsHistory(msgspec.Struct, kw_only=True):
    """The values of each series at each `time` (seconds since the epoch), `interval` seconds apart."""

    interval: float
    time: list[float]
    series: dict[str, list[float | None]]


class RiskyExecution(msgspec.Struct, kw_only=True):
    time: datetime
    tenant: str
    template: str
    session: str
    language: str
    mode: str
    level: str
    rules: list[str]


class RiskyList(msgspec.Struct, kw_only=True):
    """Code that policies found risky lately, the latest first, without the code itself."""

    risky: list[RiskyExecution]


class OperatorHandler(ApiHandler):
    """A call that needs the operators' right."""

    def authenticate(self) -> None:
        super().authenticate()
        if not self.caller.operator:
            raise Forbidden(
                "this call is for operators: send a token that was made with `kernelbroker-server "
                "token create --operator`, or set `operator = true` for the tenant"
            )

    @property
    def operations(self) -> Operations:
        assert self.service.operations is not None, "the broker has them"
        return self.service.operations


class Sandboxes(OperatorHandler):
    @operation({200: SandboxList})
    async def get(self) -> None:
        """List the sandboxes of all templates, with what they use and who has them."""
        found = await self.operations.sandboxes()
        self.reply(SandboxList(sandboxes=[_info(each) for each in found]))


class AllPools(OperatorHandler):
    @operation({200: PoolList})
    async def get(self) -> None:
        """List the pools of all templates, with their queues and what they serve next."""
        self.reply(
            PoolList(
                pools=[
                    {"template": name}
                    | asdict(pool.status())
                    | asdict(pool.details())
                    | asdict(pool.queue())
                    for name, pool in self.operations.pools.items()
                ]
            )
        )


class DrainTemplate(OperatorHandler):
    @operation({200: Draining})
    async def post(self, name: str) -> None:
        """Open no new sessions of a template, and remove its free sandboxes. Open sessions go on."""
        self.operations.drain(name)
        self.reply(Draining(template=name, draining=True))

    @operation({200: Draining})
    async def delete(self, name: str) -> None:
        """Let a template that was drained serve new sessions again."""
        self.operations.resume(name)
        self.reply(Draining(template=name, draining=False))


class AuditLog(OperatorHandler):
    @operation(
        {200: AuditRecords},
        query={
            **dict.fromkeys(("event", "tenant", "session", "text", "before", "since"), str),
            "limit": Annotated[int, msgspec.Meta(ge=1, le=_MAX_RECORDS)],
        },
    )
    async def get(self) -> None:
        """Read the audit log, the latest records first.

        `event` is a kind, or the beginning of several (`session`); `text` stands anywhere in a record;
        `before` and `since` are times in ISO 8601.
        """
        names = ("event", "tenant", "session", "text", "before", "since")
        wanted = AuditFilter(**{name: self.get_query_argument(name, "") for name in names})
        limit = self.get_query_argument("limit", "100")
        if not (limit.isascii() and limit.isdigit() and 0 < int(limit[:9]) <= _MAX_RECORDS):
            raise BadRequest(f"limit must be a whole number from 1 to {_MAX_RECORDS}")
        records = await self.operations.audit(wanted, int(limit))
        self.reply(AuditRecords(records=list(records), events=list(AUDIT_EVENTS)))


class LastHour(OperatorHandler):
    @operation({200: MetricsHistory})
    async def get(self) -> None:
        """Get the broker's own metrics of the last hour."""
        times, series = self.operations.history.series()
        self.reply(MetricsHistory(interval=INTERVAL_S, time=times, series=series))


class Risky(OperatorHandler):
    @operation({200: RiskyList})
    async def get(self) -> None:
        """List the code that policies found risky lately, without the code itself."""
        found = [
            RiskyExecution(
                time=utc_time(seen.at),
                tenant=seen.event.tenant,
                template=seen.event.template,
                session=seen.event.session_id,
                language=seen.event.language,
                mode=seen.event.mode,
                level=seen.event.level,
                rules=list(seen.event.rules),
            )
            for seen in reversed(self.operations.history.risky)
        ]
        self.reply(RiskyList(risky=found))


def _info(each: SandboxState) -> SandboxInfo:
    sandbox = each.sandbox
    return SandboxInfo(
        worker_id=sandbox.sandbox_id,
        template=sandbox.template,
        state=sandbox.state,
        uptime=None if sandbox.uptime is None else round(sandbox.uptime, 1),
        kernel_status=each.kernel_status,
        memory_usage=each.memory,
        memory_limit=sandbox.memory_limit,
        processor_time=None if each.processor_time is None else round(each.processor_time, 2),
        session=each.session,
        tenant=each.tenant,
    )
