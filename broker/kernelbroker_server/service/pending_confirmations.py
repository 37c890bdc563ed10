"""Code that a policy holds back until somebody confirms it, for people who decide in place of the client.

A client that gets `confirmation_required` may send the code again with the token. Until then a person of
the tenant can see the code here, and let it run or decline it. What a person has decided holds for the
client, too: with the token it gets the execution that the person started, or a refusal.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kernelbroker.protocol.errors import Conflict, NotFound, PolicyRefused
from kernelbroker.protocol.findings import Assessment, Finding, Level
from kernelbroker.protocol.messages import ExecutionRequest

from ..kernels.requests import InternalCell
from ..sessions.ids import new_id
from ..sessions.store import ExecutionLog
from ..telemetry.origin import Origin, current_origin

Decision: TypeAlias = Literal["approve", "decline"]

_MAX_TOKENS = 200
"""Of one tenant; the oldest is forgotten first."""


@dataclass(slots=True, eq=False)
class PendingConfirmation:
    """Code that was not run yet.

    Attributes:
        session_id: where it shall run; empty for a separate sandbox.
        token: the latest that confirms it.
        expires_at: when the token expires, in seconds since the epoch.
        origin: who asked to run it.
        decision, decided_by: of a person; None and empty before.
        execution: that a person started, and its session.
        assessment: of the code.
        internal_cell: what runs in place of the code, if it stands for an operation.
    """

    session_id: str
    template: str
    request: ExecutionRequest
    level: Level
    findings: Sequence[Finding]
    token: str
    expires_at: float
    id: str = field(default_factory=new_id)
    asked_at: float = field(default_factory=time.time)
    origin: Origin = field(default_factory=current_origin)
    decision: Decision | None = None
    decided_by: str = ""
    execution: tuple[str, ExecutionLog] | None = None
    assessment: Assessment | None = None
    internal_cell: InternalCell | None = None


class PendingConfirmations:
    """Those of one tenant. Code that is sent again before somebody has decided waits once.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._by_token: OrderedDict[str, PendingConfirmation] = OrderedDict()
        """The token that was issued last is the last one."""

    def add(self, asked: PendingConfirmation) -> None:
        """Add a confirmation, or a further token of one for the same code in the same session."""
        self._forget_expired()
        for each in self._by_token.values():
            if each.decision is None and _same(each, asked):
                each.token, each.expires_at = asked.token, asked.expires_at
                asked = each
                break
        while len(self._by_token) >= _MAX_TOKENS:
            self._by_token.popitem(last=False)
        self._by_token[asked.token] = asked

    def waiting(self) -> list[PendingConfirmation]:
        """Return those that nobody has decided, oldest first."""
        self._forget_expired()
        found = {each.id: each for each in self._by_token.values() if each.decision is None}
        return sorted(found.values(), key=lambda each: each.asked_at)

    def get(self, confirmation_id: str) -> PendingConfirmation:
        """Return one that nobody has decided.

        Raises:
            NotFound: it is unknown, or expired, or its client has confirmed it.
            Conflict: somebody has decided it.
        """
        self._forget_expired()
        for each in self._by_token.values():
            if each.id == confirmation_id:
                if each.decision is not None:
                    raise Conflict(f"{each.decided_by or 'somebody'} has answered: {each.decision}")
                return each
        raise NotFound(
            f"no confirmation {confirmation_id} waits: it has expired, or its client has confirmed it"
        )

    def confirmed(self, token: str) -> None:
        """The client has confirmed it with the token."""
        if (each := self._by_token.get(token)) is not None and each.decision is None:
            self._forget(lambda other: other is each)

    def expect_not_declined(self, token: str) -> None:
        """Raise PolicyRefused if a person has declined what the token confirms."""
        each = self._by_token.get(token)
        if each is not None and each.decision == "decline":
            raise PolicyRefused(
                "a person declined to run this code; rewrite it", findings=list(each.findings)
            )

    def started(
        self, token: str | None, request: ExecutionRequest
    ) -> tuple[str, ExecutionLog] | None:
        """Return the execution that a person started for this request, and its session."""
        each = None if token is None else self._by_token.get(token)
        if each is None or each.execution is None:
            return None
        same = (each.request.code, each.request.language) == (request.code, request.language)
        return each.execution if same else None

    def _forget_expired(self) -> None:
        now = self._clock()
        self._forget(lambda each: each.expires_at <= now)

    def _forget(self, unwanted: Callable[[PendingConfirmation], bool]) -> None:
        for token in [token for token, each in self._by_token.items() if unwanted(each)]:
            del self._by_token[token]


def _same(one: PendingConfirmation, other: PendingConfirmation) -> bool:
    return _identity(one) == _identity(other)


def _identity(asked: PendingConfirmation) -> tuple[object, ...]:
    request, cell = asked.request, asked.internal_cell
    options = None if cell is None else cell.options
    return asked.session_id, asked.template, request.code, request.language, options
