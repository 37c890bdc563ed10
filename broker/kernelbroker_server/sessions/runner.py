"""Carries out the effects of a session's machine.

Every decision is made in `machine.py`, and all I/O in the runner's own tasks: callers may be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from kernelbroker.protocol.errors import RequestError
from kernelbroker.protocol.session_events import SandboxCreated, SandboxReady

from ..pool.warm_sandbox import WarmSandbox
from ..supervisor import SupervisedTask, Supervisor
from ..telemetry.events import ExecutionEnded, SessionClosed, SessionEmitter, SessionOpened
from ..telemetry.logs import bound, detached_context
from ..workspaces.quota import QuotaAction
from ..workspaces.quota_watch import QuotaWatch
from . import effects
from .acquisition import Acquisition
from .admission import TenantQueue
from .execution import QUOTA_EXCEEDED, Execution
from .grants import Grants
from .lease import Lease
from .machine import SessionMachine
from .saved_state import SavedState
from .states import SessionState
from .store import EventStore, SessionRecord
from .tasks import SessionTasks
from .waiters import Waiters

logger = logging.getLogger(__name__)

_NOT_BEGUN = effects.Failure(
    "rejected", "InternalError", "the broker failed before the cell ran: send it again"
)


class SessionRunner:
    """Runs one session.

    Args:
        grace: seconds that an interrupted cell has to end.
        on_ended: called once, when an open session ends, with the reason.
        watch: of the workspace. A context has that of its session.

    Attributes:
        opened: resolved when there is a first sandbox, or with the error.
        closed: resolved when everything is given back.
        drained: resolved when the session is closed, or left to the next broker.
        executions: the executions that have not ended, by id.
        uses: how often executions and borrowers have come.
        active, active_at: when the session was last used: by the queue's clock, and in seconds since
            the epoch.
    """

    def __init__(
        self,
        record: SessionRecord,
        lease: Lease,
        queue: TenantQueue,
        store: EventStore,
        emit: SessionEmitter,
        grace: float,
        on_ended: Callable[[str], None],
        supervisor: Supervisor,
        watch: QuotaWatch,
        first: SessionState = SessionState.OPENING,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.machine = SessionMachine(record.session_id, first)
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.drained: asyncio.Future[None] = loop.create_future()
        self.executions: dict[str, Execution] = {}
        self.uses = 0
        self.active, self.active_at = queue.clock(), record.opened_at
        self.watch = watch
        self._id = record.session_id
        self._context = detached_context(tenant=record.tenant, session_id=self._id)
        self._record = record
        self._lease = lease
        self._queue = queue
        self._store = store
        self._emit = emit
        self._grace = grace
        self._on_ended = on_ended
        self._supervisor = supervisor
        self._turns: dict[str, asyncio.Future[effects.Run]] = {}
        """For executions that have asked for their turn: resolved when they are to run."""
        self._carriers: dict[str, asyncio.Task[None]] = {}
        self._acquisition = Acquisition(self._id, self._context, self._acquired)
        self._grants = Grants()
        self._restarts, self._settled = Waiters(), Waiters()
        self._tasks = SessionTasks(self._id, self._context)
        self._watching: SupervisedTask | None = None
        self._changes: int | None = None
        """`QuotaWatch.changes` after the last cell, if this kernel knows all of them."""

    def open(self, *, adopted: bool = False) -> None:
        if not adopted:  # otherwise the store has it
            self._store.record_session(self._record)
            self._tell(SandboxCreated)
        self.apply(self.machine.open())

    def resume(self, saved: SavedState) -> None:
        """Begin asleep, as an earlier broker has left it."""
        self._store.record_session(self._record)
        self._lease.keep_saved(saved)
        self._opened_now()

    def submit(self, execution: Execution) -> None:
        """Queue an execution that the tenant's queue has admitted."""
        self.executions[execution.id] = execution
        self.uses += 1
        self.touch()
        self.apply(self.machine.submit(execution.id, silent=execution.is_silent))

    async def restart(self) -> None:
        """Replace the kernel. Raises SessionGone, Unavailable."""
        answered = self._restarts.add()
        self.touch()
        self.apply(self.machine.restart())
        await answered

    def borrow(self) -> tuple[int, asyncio.Future[WarmSandbox]]:
        """Ask for the gateway of the living sandbox. The caller must call `give_back` later.

        Raises:
            SessionGone, TooManyRequests
        """
        self.notice_death()
        self.uses += 1
        borrower, granted = self._grants.add()
        try:
            self.apply(self.machine.borrow(borrower, alive=self._lease.alive is not None))
        except RequestError:
            self._grants.remove(borrower)
            raise
        return borrower, granted

    def give_back(self, borrower: int, *, changes: bool) -> None:
        """Remove a borrower that has ended. With `changes` it may have changed files."""
        self._grants.remove(borrower)
        self.touch()
        if changes:
            self.watch.visited()
        self.apply(self.machine.give_back(borrower))

    def suspend(self, saved: SavedState) -> bool:
        """Give the sandbox back if the session is idle. Returns whether it is."""
        is_saving = self.machine.state is SessionState.SAVING
        if decided := self.machine.saved(sleeps=True) if is_saving else self.machine.sleep():
            self._lease.keep_saved(saved)
            self.apply(decided)
        return bool(decided)

    def saved(self) -> None:
        """Report that the processes go on, after `machine.save`."""
        self.apply(self.machine.saved())
        self.notice_death()

    async def settled(self) -> None:
        """Wait until nothing runs, waits or uses the gateway."""
        while not self.machine.idle:
            await self._settled.add()

    def _on_quota_exceeded(self, action: QuotaAction, message: str) -> None:
        running = self.machine.running
        if action is QuotaAction.REPLACE:
            self.apply(self.machine.condemn("quota_exceeded"))
        elif running is not None and action is QuotaAction.INTERRUPT:
            self.executions[running].interrupt("quota_exceeded", message)
        elif running is not None:
            failure = effects.Failure("quota_exceeded", QUOTA_EXCEEDED, message)
            self.apply(self.machine.abort(running, failure))

    def apply(self, decided: list[effects.Effect]) -> None:
        for effect in decided:
            match effect:
                case effects.Run(execution_id=name):
                    self._turns[name].set_result(effect)
                case effects.AwaitTurn(execution_id=name):
                    self._turns[name] = asyncio.get_running_loop().create_future()
                    self._carriers[name] = self._tasks.spawn(
                        self._carry(self.executions[name]), name
                    )
                case effects.Interrupt(execution_id=name):
                    self.executions[name].interrupt()
                case effects.Abort(execution_id=name, failure=failure):
                    self.executions[name].abort(failure)
                case effects.Detach():
                    self._detach()
                case effects.Reject():
                    self._reject(effect)
                case effects.Acquire():
                    self._acquisition.start(self._lease.acquire())
                case effects.Replace(cause=cause):
                    self._acquisition.start(self._lease.replace(cause))
                case effects.Suspend():
                    self._tasks.spawn(self._suspend(self._lease.suspend), "suspend")
                case effects.Move(execution_id=name):
                    place = self.executions[name].place
                    assert place is not None, "there is somewhere to go"
                    move_out = partial(self._lease.move_out, place)
                    self._tasks.spawn(self._suspend(move_out), "move")
                case effects.Wake():
                    self._acquisition.start(self._lease.wake())
                case effects.CancelAcquisition():
                    self._acquisition.cancel()
                case effects.GrantBorrower(borrower=borrower):
                    self._grants.grant(borrower, self._lease.current)
                case effects.RefuseBorrower(borrower=borrower, error=error):
                    self._grants.refuse(borrower, error)
                case effects.AnswerRestarts(error=failed):
                    self._restarts.answer(failed)
                case effects.Release():
                    self._lease.leave()
                    self._tasks.spawn(self._release(), "release")
                case effects.Opened():
                    self._opened_now()
                case effects.OpeningFailed(error=failure_to_open):
                    self.opened.set_exception(failure_to_open)
                case effects.Left():
                    self.drained.set_result(None)
                case effects.SessionEnded(reason=reason):
                    self._on_ended(reason)
                    self._emit(SessionClosed, reason)
        if self.machine.idle:
            self._settled.answer()

    def _opened_now(self) -> None:
        self.watch.listeners.add(self._on_quota_exceeded)
        if not self._lease.is_shared:
            self._watching = self._supervisor.start(
                "quota watch", self.watch.run, context=self._context.copy()
            )
        self.opened.set_result(None)
        self._emit(SessionOpened)

    def _tell(self, event: type[SandboxCreated] | type[SandboxReady]) -> None:
        """Append to the session's events."""
        if not self._lease.is_shared:
            log = self._store.session_log(self._record.key)
            log.append(event(sandbox_id=self._id, template=self._lease.spec.template))

    def _acquired(self, error: RequestError | None) -> None:
        """Report the outcome of an acquisition."""
        if error is not None:
            self.apply(self.machine.sandbox_failed(error))
            return
        self._tell(SandboxReady)
        self._watch_for_death()
        self.watch.change(self._lease.quota)
        self.apply(self.machine.sandbox_ready(incomplete=bool(self._lease.not_restored)))
        self.notice_death()

    def _watch_for_death(self) -> None:
        warm = self._lease.current
        assert warm is not None, "it was acquired"
        for died in (warm.sandbox.ended, warm.channel.closed):
            died.add_done_callback(lambda _: self.notice_death())

    def notice_death(self) -> None:
        """Report a sandbox that has died, even if its callback has not run yet.

        A channel that is held still has what an execution waits for, which an earlier broker has begun.
        """
        warm = self._lease.current
        is_held = warm is not None and warm.channel.is_held
        if self.machine.state is SessionState.READY and self._lease.alive is None and not is_held:
            self.apply(self.machine.sandbox_died())

    async def _carry(self, execution: Execution) -> None:
        """Run an execution in its turn. Cancelled before it runs, or when the next broker gets it."""
        try:
            async with self._queue.slot(at_once=execution.was_left):
                if execution.done.done():  # rejected in the same turn of the event loop
                    return
                if not execution.was_left and (refusal := self.watch.refusal) is not None:
                    failure = effects.Failure("quota_exceeded", QUOTA_EXCEEDED, refusal)
                    self.apply(self.machine.reject(execution.id, failure))
                    return
                try:
                    self.notice_death()
                    is_empty = self.machine.state in (SessionState.EMPTY, SessionState.ASLEEP)
                    moves = self._lease.prepare(execution.place, is_empty=is_empty)
                    self.apply(self.machine.turn_granted(execution.id, moves=moves))
                except Exception:
                    logger.exception("execution %s could not begin", execution.id)
                    self.apply(self.machine.reject(execution.id, _NOT_BEGUN))
                run = await self._turns[execution.id]
                warm = self._lease.current
                assert warm is not None, "the session has a sandbox"
                lost: str | None = "sandbox_lost"
                changes = self.watch.changes
                try:
                    self.watch.begin()
                    with bound(**execution.ids):
                        lost = await execution.run(
                            warm,
                            grace=self._grace,
                            state_lost=run.state_lost,
                            tell=self._lease.tell,
                            remark=self.watch.before_result,
                            workspace_known=changes == self._changes,
                        )
                except Exception:
                    logger.exception("execution %s failed unexpectedly", execution.id)
                    execution.give_up()
                finally:
                    self.watch.end()
                    self._count_changes(execution, changes)
                    if not execution.is_detached:
                        self._ended(execution)
                        self.apply(self.machine.execution_ended(execution.id, lost=lost))
        finally:
            del self._turns[execution.id], self._carriers[execution.id]

    def _count_changes(self, execution: Execution, before: int) -> None:
        """Let the other kernels of the session know that a cell has changed files."""
        result = execution.log.result
        if execution.is_silent and result is not None:  # the kernel has not looked at the files
            return
        is_alone = self.watch.changes == before
        if result is None or result.files:
            self.watch.changes += 1
        self._changes = self.watch.changes if is_alone and result is not None else None

    def _detach(self) -> None:
        for name, execution in self.executions.items():
            execution.is_detached = True
            if name in self._carriers:
                self._carriers[name].cancel()

    def _reject(self, rejected: effects.Reject) -> None:
        execution = self.executions[rejected.execution_id]
        execution.reject(rejected.failure)
        self._ended(execution)
        if rejected.awaited_turn:
            # Not at once: a task that is cancelled before its first step would keep its place.
            carrier = self._carriers[execution.id]
            asyncio.get_running_loop().call_soon(carrier.cancel)
        else:
            self._queue.withdraw()

    def _ended(self, execution: Execution) -> None:
        del self.executions[execution.id]
        self.touch()
        if not execution.is_silent:
            self._emit(ExecutionEnded, **execution.summary())

    async def _suspend(self, work: Callable[[], Awaitable[None]]) -> None:
        """Give the sandbox back."""
        try:
            await work()
        finally:
            self.apply(self.machine.suspended())

    async def _release(self) -> None:
        try:
            if self._watching is not None:
                await self._watching.stop()
            self.watch.listeners.discard(self._on_quota_exceeded)
            self._store.end_session(self._record.key, self.machine.closed_reason or "")
            await self._lease.release()
        finally:
            self.apply(self.machine.released())
            self.closed.set_result(None)
            if not self.drained.done():
                self.drained.set_result(None)

    def touch(self) -> None:
        """Record activity in the session."""
        self.active, self.active_at = self._queue.clock(), time.time()
