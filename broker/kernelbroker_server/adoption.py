"""Goes on with what an earlier broker of the same state has left: its sandboxes, and their sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelbroker.protocol.errors import ProtocolError, RequestError

from .backends.backend_set import BackendSet
from .backends.base import Backend, Orphan, Rescue, SandboxSpec
from .kernels.channel import ChannelClosed
from .pool.runner import Pool
from .pool.warm_sandbox import WarmSandbox, join
from .service.tenant_service import TenantServices
from .sessions.context_lease import ContextSandbox, kernel_id_of
from .sessions.progress import LeftExecution, Progress, decode_progress
from .sessions.registry import Registry
from .sessions.routes import AUTO
from .sessions.store import EventStore, LeftSession
from .tenants.tenant import Tenants
from .workspaces.store import Workspace

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT_S = 10.0
_JOIN_SESSION_S = 20.0
"""For a sandbox that a session would lose: its cell may keep the machine busy."""


@dataclass(frozen=True, slots=True)
class _Adopted:
    """A session that goes on, its execution that ran, and its contexts."""

    registry: Registry
    session: LeftSession
    workspace: Workspace
    warm: WarmSandbox
    running: LeftExecution | None
    contexts: Sequence[_AdoptedContext] = ()


@dataclass(frozen=True, slots=True)
class _AdoptedContext:
    session: LeftSession
    warm: WarmSandbox
    running: LeftExecution | None


class Adoption:
    """Runs when store and backends are started, before pools are and clients are served.

    With brokers that share a store, it runs again whenever this one has taken over what another one had.
    """

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
        self._has_run = False

    async def run(self, rescue: Rescue) -> None:
        """Adopt what can be adopted. The rest is ended, with results that say so."""
        backends = self._backends.by_name.values()
        sessions = {each.record.key: each for each in await self._store.adoptable()}
        own = [
            spec
            for each in sessions.values()
            if (spec := await self._registry_of(each).own_spec(each.record)) is not None
        ]
        found = [backend.orphans(self._specs_of(backend, own)) for backend in backends]
        orphans = [orphan for each in found for orphan in each]
        results = await asyncio.gather(*(self._adopt(each, sessions) for each in orphans))
        adopted = [each for each in results if isinstance(each, _Adopted)]
        unwanted = [
            orphan.sandbox for orphan, each in zip(orphans, results, strict=True) if each is None
        ]
        adopted = await asyncio.gather(*(self._with_contexts(each, sessions) for each in adopted))
        all_left: list[_Adopted | _AdoptedContext] = []
        for each in adopted:
            all_left += [each, *each.contexts]
        await self._store.end_lost({left.session.record.key for left in all_left})
        for each in adopted:
            await each.registry.adopt(each.session, each.workspace, each.warm, each.running)
            for context in each.contexts:
                await each.registry.adopt_context(context.session, context.warm, context.running)
        await asyncio.gather(
            *(
                backend.end_orphans([o.sandbox for o in each if o.sandbox in unwanted], rescue)
                for backend, each in zip(backends, found, strict=True)
            )
        )
        self._has_run = True
        if orphans:
            logger.info(
                "adopted %d sandboxes of an earlier broker, %d of them with a session; ended %d",
                len(orphans) - len(unwanted),
                len(adopted),
                len(unwanted),
            )

    def _specs_of(self, backend: Backend, own: Sequence[SandboxSpec]) -> list[SandboxSpec]:
        pools = [pool for pool in self._pools.values() if pool.backend is backend]
        names = {pool.spec.template for pool in pools}
        return [pool.spec for pool in pools] + [s for s in own if s.template in names]

    def _registry_of(self, session: LeftSession) -> Registry:
        return self._tenants.of(self._names[session.record.tenant]).registry

    async def _adopt(
        self, orphan: Orphan, sessions: dict[str, LeftSession]
    ) -> _Adopted | WarmSandbox | None:
        """Adopt one sandbox. Returns None if it is not wanted."""
        pool = self._pools[orphan.sandbox.spec.template]
        session = None if orphan.session is None else sessions.pop(orphan.session, None)
        if orphan.session is not None and session is None:
            return None
        try:
            progress, received = _progress(session)
            timeout = _JOIN_TIMEOUT_S if session is None else _JOIN_SESSION_S
            warm = await join(orphan, timeout, received)
        except (ChannelClosed, ProtocolError) as exc:
            logger.warning("sandbox %s cannot be adopted: %s", orphan.sandbox.id, exc)
            return None
        adopted: _Adopted | WarmSandbox | None = warm
        if session is not None:
            running = None if progress is None else LeftExecution(progress, warm.channel)
            adopted = await self._claim(session, warm, running)
        is_room = adopted is not None and pool.adopt(
            warm, leased=session is not None, beyond_limit=session is not None and self._has_run
        )
        if not is_room:
            if isinstance(adopted, _Adopted):
                adopted.workspace.release()
            await warm.gateway.close()
            return None
        return adopted

    async def _with_contexts(self, adopted: _Adopted, sessions: dict[str, LeftSession]) -> _Adopted:
        """Join the kernels of the session's contexts. Those that cannot be joined are ended."""
        record, gateway = adopted.session.record, adopted.warm.gateway
        contexts = []
        for key, left in sessions.items():
            options = left.record.options
            if (left.record.tenant, options.context_of) != (record.tenant, record.session_id):
                continue
            kernel_id = kernel_id_of(key)
            try:
                progress, received = _progress(left)
                channel = await gateway.join_kernel(kernel_id, _JOIN_TIMEOUT_S, received)
            except (ChannelClosed, ProtocolError) as exc:
                logger.warning("context %s cannot be adopted: %s", left.record.session_id, exc)
                await gateway.end_kernel(kernel_id)
                continue
            warm = ContextSandbox(adopted.warm.sandbox, gateway, channel)
            running = None if progress is None else LeftExecution(progress, channel)
            contexts.append(_AdoptedContext(left, warm, running))
        return replace(adopted, contexts=contexts)

    async def _claim(
        self, session: LeftSession, warm: WarmSandbox, running: LeftExecution | None
    ) -> _Adopted | None:
        record = session.record
        registry = self._registry_of(session)
        template = warm.sandbox.spec.template
        if record.options.template not in (AUTO, template) or template not in registry.pools:
            return None
        try:
            workspace = await registry.claim(record, warm.sandbox)
        except RequestError as exc:
            logger.warning("session %s cannot go on: %s", record.session_id, exc.message)
            return None
        return _Adopted(registry, session, workspace, warm, running)


def _progress(session: LeftSession | None) -> tuple[Progress | None, int | None]:
    """How far the execution that ran had come, and the last message that was received of its kernel.

    Raises ProtocolError.
    """
    if session is None or session.progress is None:
        return None, None
    progress = decode_progress(session.progress)
    return progress, progress.received
