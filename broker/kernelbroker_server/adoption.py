"""Goes on with what an earlier broker of the same state has left: its sandboxes, and their sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from kernelbroker.protocol.errors import ProtocolError, RequestError

from .backends.backend_set import BackendSet
from .backends.base import Backend, Orphan, Rescue, SandboxSpec
from .kernels.channel import ChannelClosed
from .pool.runner import Pool
from .pool.warm_sandbox import WarmSandbox, join
from .service.tenant_service import TenantServices
from .sessions.progress import LeftExecution, decode_progress
from .sessions.registry import Registry
from .sessions.store import EventStore, LeftSession
from .tenants.tenant import Tenants
from .workspaces.store import Workspace

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A session that goes on, and its execution that ran."""

    registry: Registry
    session: LeftSession
    workspace: Workspace
    warm: WarmSandbox
    running: LeftExecution | None


class Adoption:
    """Runs once, when store and backends are started, and before pools are and clients are served."""

    def __init__(
        self,
        backends: BackendSet,
        pools: Mapping[str, Pool],
        store: EventStore,
        tenants: TenantServices,
        names: Tenants,
    ) -> None:
        self._backends = backends
        self._pools = pools
        self._store = store
        self._tenants = tenants
        self._names = names

    async def run(self, rescue: Rescue) -> None:
        """Adopt what can be adopted. The rest is ended, with results that say so."""
        backends = self._backends.by_name.values()
        found = [backend.orphans(self._specs_of(backend)) for backend in backends]
        orphans = [orphan for each in found for orphan in each]
        sessions = {each.record.key: each for each in await self._store.adoptable()}
        results = await asyncio.gather(*(self._adopt(each, sessions) for each in orphans))
        adopted = [each for each in results if isinstance(each, _Adopted)]
        unwanted = [
            orphan.sandbox for orphan, each in zip(orphans, results, strict=True) if each is None
        ]
        await self._store.end_lost({each.session.record.key for each in adopted})
        for each in adopted:
            await each.registry.adopt(each.session, each.workspace, each.warm, each.running)
        await asyncio.gather(
            *(
                backend.end_orphans([o.sandbox for o in each if o.sandbox in unwanted], rescue)
                for backend, each in zip(backends, found, strict=True)
            )
        )
        if orphans:
            logger.info(
                "adopted %d sandboxes of an earlier broker, %d of them with a session; ended %d",
                len(orphans) - len(unwanted),
                len(adopted),
                len(unwanted),
            )

    def _specs_of(self, backend: Backend) -> list[SandboxSpec]:
        return [pool.spec for pool in self._pools.values() if pool.backend is backend]

    async def _adopt(
        self, orphan: Orphan, sessions: dict[str, LeftSession]
    ) -> _Adopted | WarmSandbox | None:
        """Adopt one sandbox. Returns None if it is not wanted."""
        pool = self._pools[orphan.sandbox.spec.template]
        session = None if orphan.session is None else sessions.pop(orphan.session, None)
        if orphan.session is not None and session is None:
            return None
        try:
            progress = None
            if session is not None and session.progress is not None:
                progress = decode_progress(session.progress)
            received = None if progress is None else progress.received
            warm = await join(orphan, _JOIN_TIMEOUT_S, received)
        except (ChannelClosed, ProtocolError) as exc:
            logger.warning("sandbox %s cannot be adopted: %s", orphan.sandbox.id, exc)
            return None
        adopted: _Adopted | WarmSandbox | None = warm
        if session is not None:
            running = None if progress is None else LeftExecution(progress, warm.channel)
            adopted = await self._claim(session, warm, running)
        if adopted is None or not pool.adopt(warm, leased=session is not None):
            if isinstance(adopted, _Adopted):
                adopted.workspace.release()
            await warm.gateway.close()
            return None
        return adopted

    async def _claim(
        self, session: LeftSession, warm: WarmSandbox, running: LeftExecution | None
    ) -> _Adopted | None:
        record = session.record
        registry = self._tenants.of(self._names[record.tenant]).registry
        if (
            registry.pools.get(record.options.template)
            is not self._pools[warm.sandbox.spec.template]
        ):
            return None
        try:
            workspace = await registry.claim(record, warm.sandbox)
        except RequestError as exc:
            logger.warning("session %s cannot go on: %s", record.session_id, exc.message)
            return None
        return _Adopted(registry, session, workspace, warm, running)
