"""Use cases of executions: assess, submit to a session, run with or without a session."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import RequestError, SessionGone, Unavailable
from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import ExecutionRequest

from ..kernels.requests import InternalCell, NotebookCell
from ..sessions.admission import TenantQueue
from ..sessions.contexts import resolved
from ..sessions.execution import Execution
from ..sessions.ids import new_id
from ..sessions.limits import SessionLimits
from ..sessions.lost_results import lost_result
from ..sessions.memory_log import MemoryLog
from ..sessions.registry import Registry
from ..sessions.routes import AUTO, Rejected
from ..sessions.session import Session
from ..sessions.store import EventStore, ExecutionLog
from .idempotency import IdempotencyCache, IdempotencyKey, StoredKeys
from .policy import Policies
from .routing import place_of, rejection, store_rejected
from .stored_executions import StoredExecutions, known, without_confirmation
from .target import Target, session_options
from .webhooks import Webhooks

_EPHEMERAL_OVER = "its one execution is over"
_NO_SESSION = ""
"""The scope of confirmations for executions without a session."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """An execution that was accepted.

    Attributes:
        session: None if the execution was found again by its idempotency key, or was rejected.
        session_id: "" if nothing is known of the session.
        replayed: an earlier request with the same idempotency key submitted it.
        options_bytes: the size of the session's options when it was submitted.
    """

    session: Session | None
    log: ExecutionLog
    session_id: str = ""
    replayed: bool = False
    options_bytes: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if self.session is not None:
            object.__setattr__(self, "options_bytes", len(encode(self.session.options)))

    def interrupt(self) -> None:
        """Interrupt the execution, or take it out of the queue. Does nothing if it has ended."""
        if self.session is None:
            return
        with contextlib.suppress(SessionGone):
            self.session.interrupt(self.log.id)


async def expect_stored(submitted: Submitted) -> None:
    """Wait until an accepted execution is stored. Raises Unavailable; then it was taken back."""
    if not await submitted.log.stored():
        submitted.interrupt()
        raise Unavailable(
            "the cell could not be stored in time, and is not run; /health says why", retry_after=2
        )


class Executions(StoredExecutions):
    """The executions of one tenant."""

    def __init__(
        self,
        registry: Registry,
        limits: SessionLimits,
        queue: TenantQueue,
        policies: Policies,
        store: EventStore,
        webhooks: Webhooks,
    ) -> None:
        super().__init__(registry, store)
        self._limits = limits
        self._queue = queue
        self._policies = policies
        self._webhooks = webhooks
        dump, load = lambda it: [it.session_id, it.log.id], self._submitted_before
        stored = StoredKeys[Submitted](store, "execute", self._tenant, dump, load)
        self._submitted: IdempotencyCache[Submitted] = IdempotencyCache(_weight, stored=stored)

    async def assess(
        self, code: str, language: str, params: Mapping[str, Any] | None = None
    ) -> Assessment:
        """Assess code, or an action with parameters. This counts against the tenant's rate.

        Raises:
            BadRequest, TooManyRequests, Unavailable
        """
        self._limits.check_code(code)
        self._queue.take_rate()
        return await self._policies.assess(code, language, params)

    def are_assessed(self, template: str) -> bool:
        """Whether code is assessed before it runs in sandboxes of this template."""
        return template == AUTO or self._policies.effective(template).mode != "off"

    def may_be_refused(self, template: str) -> bool:
        """Whether the code decides if it runs in a sandbox of this template, or where."""
        return template == AUTO or self._policies.effective(template).mode in ("confirm", "block")

    async def assess_for(self, session: Session, request: ExecutionRequest) -> Assessment | None:
        """Return the assessment that `submit` needs; None if it needs none.

        Raises:
            SessionGone, BadRequest, Unavailable
        """
        session.expect_open()
        request = resolved(session, request)
        if known(session, request) is not None:
            return None
        template = session.options.template
        if template != AUTO:
            self._check(request, session.limits)
            return await self._policies.assess_request(request, template)
        return await self._assess_routed(request)

    async def assess_action(
        self, session: Session, action: str, params: Mapping[str, Any]
    ) -> Assessment | None:
        """Return the assessment of a browser's action that `submit` needs; None if it needs none.

        Raises:
            SessionGone, Unavailable
        """
        session.expect_open()
        if not self.are_assessed(session.options.template):
            return None
        return await self._policies.assess(action, "browser", params)

    async def _assess_routed(self, request: ExecutionRequest) -> Assessment:
        self._limits.check_code(request.code)
        return await self._policies.assess(request.code, request.language or "python")

    def submit(
        self,
        session: Session,
        request: ExecutionRequest,
        *,
        allow_stdin: bool = False,
        assessment: Assessment | None = None,
        internal_cell: InternalCell | None = None,
        notebook_cell: NotebookCell | None = None,
        scope: str | None = None,
        may_shorten: bool = False,
    ) -> ExecutionLog:
        """Queue a cell in a session, or another one in its place.

        A repeated request with the same id returns the same execution, and needs no second confirmation.

        Args:
            assessment: what `assess_for` returned.
            scope: the scope of a confirmation; the session if None.
            may_shorten: the timeout is not the client's own: it is at most that of the sandbox where the
                cell runs, which a session of the template `auto` finds out only now.

        Raises:
            BadRequest, TooManyRequests, Conflict, SessionGone
            PolicyRefused, ConfirmationRequired: the policy refuses it, or asks for a confirmation.
        """
        session.expect_open()
        request = resolved(session, request)
        if (earlier := known(session, request)) is not None:
            return earlier
        if (started := self._policies.pending.started(request.confirm, request)) is not None:
            return started[1]
        scope = session.id if scope is None else scope
        try:
            place = place_of(session.options, session.routes, request, assessment)
        except Rejected as exc:
            return self._reject(session, request, exc)
        spec = session.spec if place is None else place.pool.spec
        limits = session.limits_in(spec)
        if may_shorten and request.timeout is not None:
            shorter = min(request.timeout, limits.max_timeout)
            request = msgspec.structs.replace(request, timeout=shorter)
        timeout = self._check(request, limits)
        self._queue.admit()
        try:
            findings = self._policies.check(
                request, spec.template, scope, assessment, internal_cell
            )
        except RequestError:
            self._queue.withdraw()
            raise
        execution_id, url = request.execution_id or new_id(), request.callback_url
        message = url and self._webhooks.expect(self._tenant, session.id, execution_id, url)
        execution = session.enqueue(
            execution_id,
            without_confirmation(request),
            timeout,
            allow_stdin=allow_stdin,
            findings=findings,
            internal_cell=internal_cell,
            place=place,
            notebook_cell=notebook_cell,
            listed=notebook_cell is None or not notebook_cell.silent,
        )
        if message:
            self._webhooks.accepted(self._tenant, message, execution.log)
        return execution.log

    def _reject(
        self, session: Session, request: ExecutionRequest, rejected: Rejected
    ) -> ExecutionLog:
        """Store a cell that must not run, with its result."""
        self._check(request, session.limits)
        self._queue.take_rate()
        execution_id, url = request.execution_id or new_id(), request.callback_url
        message = url and self._webhooks.expect(self._tenant, session.id, execution_id, url)
        log = session.reject(execution_id, without_confirmation(request), rejection(rejected))
        if message:
            self._webhooks.accepted(self._tenant, message, log)
        return log

    def _check(self, request: ExecutionRequest, limits: SessionLimits) -> float:
        """Check a request by the limits. Returns its timeout. Raises BadRequest, TooManyRequests."""
        if request.callback_url is not None:
            self._webhooks.check(self._tenant, request.callback_url)
        return limits.timeout_of(request)

    def run_internal_cell(self, session: Session, cell: InternalCell) -> Execution:
        """Queue an internal cell, which no history lists. See `Session.withdraw`.

        Raises:
            TooManyRequests, Unavailable, SessionGone
        """
        session.expect_open()
        self._queue.admit()
        return session.enqueue(
            new_id(),
            ExecutionRequest(code=""),
            self._limits.max_timeout,
            internal_cell=cell,
            listed=False,
        )

    @contextlib.asynccontextmanager
    async def execute(
        self,
        request: ExecutionRequest,
        target: Target,
        key: IdempotencyKey | None = None,
        *,
        allow_stdin: bool = False,
        may_shorten: bool = False,
    ) -> AsyncIterator[Submitted]:
        """Submit a cell to an open session, to a new session, or without a session.

        Without a session the cell has a separate sandbox, which is removed when the cell has ended or
        the block is left. With an idempotency key the cell runs on when the block is left.

        Raises:
            as `submit` and `Sessions.open`.
        """
        submitted = await self._once(
            key,
            lambda: self._submit_to(request, target, allow_stdin, may_shorten=may_shorten),
        )
        try:
            yield submitted
        finally:
            if key is None and target.session_id is None and submitted.session is not None:
                self._registry.close_soon(submitted.session, _EPHEMERAL_OVER)

    async def accept(
        self,
        request: ExecutionRequest,
        target: Target,
        key: IdempotencyKey | None = None,
        *,
        allow_stdin: bool = False,
    ) -> Submitted:
        """Submit a cell as `execute` does, and store it. It runs to its end, with or without its client.

        Raises:
            Unavailable: it was not stored in time, and is taken back.
            as `submit` and `Sessions.open`.
        """

        async def submit() -> Submitted:
            submitted = await self._submit_to(request, target, allow_stdin)
            await expect_stored(submitted)
            return submitted

        return await self._once(key, submit)

    async def _once(
        self, key: IdempotencyKey | None, submit: Callable[[], Coroutine[Any, Any, Submitted]]
    ) -> Submitted:
        if key is None:
            return await submit()
        submitted, replayed = await self._submitted.once(key, submit)
        return replace(submitted, replayed=replayed)

    async def _submit_to(
        self,
        request: ExecutionRequest,
        target: Target,
        allow_stdin: bool,
        *,
        may_shorten: bool = False,
    ) -> Submitted:
        if (started := self._policies.pending.started(request.confirm, request)) is not None:
            return Submitted(None, started[1], started[0])  # by a person
        if target.session_id is None:
            return await self._submit_alone(request, target, allow_stdin)
        if target.must_exist:
            session = await self._registry.resolve(target.session_id)
        else:
            options = session_options(target, self._registry)
            session, _ = await self._registry.open(options)
        assessment = await self.assess_for(session, request)
        log = self.submit(
            session,
            request,
            allow_stdin=allow_stdin,
            assessment=assessment,
            may_shorten=may_shorten,
        )
        return Submitted(session, log, session.id)

    async def _submit_alone(
        self, request: ExecutionRequest, target: Target, allow_stdin: bool
    ) -> Submitted:
        """Submit a cell without a session. Invalid requests are refused before a sandbox is leased."""
        options, place, assessment = session_options(target, self._registry), None, None
        template = options.template
        if template == AUTO:
            request = msgspec.structs.replace(request, template=None)
            assessment = await self._assess_routed(request)
            try:
                place = self._registry.routes.decide(request.code, assessment)
            except Rejected as exc:
                self._queue.take_rate()
                session_id, log = store_rejected(self._store, self._tenant, options, request, exc)
                return Submitted(None, log, session_id)
            template = place.pool.spec.template
        self._check(request, self._registry.limits_of(template))
        self._queue.require_capacity()
        if place is None:
            assessment = await self._policies.assess_request(request, template)
        if request.confirm is None:  # `submit` uses up a confirmation that is given
            self._policies.check(request, template, _NO_SESSION, assessment)
        session, _ = await self._registry.open(options, template if place else None)
        try:
            log = self.submit(
                session,
                request,
                allow_stdin=allow_stdin,
                assessment=assessment,
                scope=_NO_SESSION,
            )
        except BaseException:
            self._registry.close_soon(session, "its one execution was refused")
            raise
        self._store.close_when_idle(session.key, _EPHEMERAL_OVER)
        session.close_when_idle(_EPHEMERAL_OVER)
        return Submitted(session, log, session.id)

    async def _submitted_before(self, outcome: Sequence[str] | None) -> Submitted:
        """Return an execution that was submitted under a key, for example before a restart."""
        if outcome is not None:
            return Submitted(None, await self.find(*outcome), outcome[0])
        # The cell may have run: it has a result that says so, and is never run again.
        log = MemoryLog(new_id(), ExecutionRequest(code=""))
        message = "the broker ended while it took this request; choose a new key to run it again"
        log.append(lost_result(message, begun=True))
        return Submitted(None, log)

    def stop(self) -> None:
        """Cancel submissions under idempotency keys."""
        self._submitted.cancel()


def _weight(submitted: Submitted) -> int:
    """The bytes that it holds."""
    return submitted.options_bytes + submitted.log.weight
