"""What the broker's layers tell of: one fact for each thing that happened, to whoever listens.

An observer is called with every fact and picks what it cares about. It must be quick and must not
raise: what one does wrong is logged, and the broker goes on. Times in seconds. No fact holds code,
output or secrets.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeAlias

logger = logging.getLogger(__name__)

_More = ParamSpec("_More")


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """An HTTP request was answered.

    Attributes:
        tenant: None where nobody was let in.
        route: the pattern, without ids.
    """

    tenant: str | None
    method: str
    route: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A sandbox became warm, or did not: `failure` says why."""

    template: str
    seconds: float
    failure: str | None


@dataclass(frozen=True, slots=True)
class OfSession:
    """What is told of a session begins with whose it is."""

    tenant: str
    template: str
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionOpened(OfSession):
    """It has its first sandbox, and takes executions."""


@dataclass(frozen=True, slots=True)
class SessionClosed(OfSession):
    """Told once of each that was opened."""

    reason: str


@dataclass(frozen=True, slots=True)
class SandboxLeased(OfSession):
    """A session got a sandbox, after so long; nothing of the session has run in it yet."""

    sandbox_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SandboxReplaced(OfSession):
    """A session's sandbox is given up for a fresh one."""

    cause: str


@dataclass(frozen=True, slots=True)
class ExecutionEnded(OfSession):
    """
    Attributes:
        outcome: `success`, or the cause of its failure.
        code_sha256: as `code_hash` makes it.
        started_at: the time of its acceptance, in seconds since the epoch.
        output_bytes: of its events as JSON.
        packages: what it was to install; empty for a cell.
    """

    execution_id: str
    language: str
    code_sha256: str
    outcome: str
    started_at: float
    queued_s: float
    total_s: float
    output_bytes: int
    packages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ExecutionRefused(OfSession):
    """A policy did not let code run, or not yet; `session_id` is empty where it had no session."""

    language: str
    code_sha256: str
    mode: str


Fact: TypeAlias = (
    RequestEnded
    | LaunchEnded
    | SessionOpened
    | SessionClosed
    | SandboxLeased
    | SandboxReplaced
    | ExecutionEnded
    | ExecutionRefused
)
Observer: TypeAlias = Callable[[Fact], None]


def nobody(_: Fact) -> None:
    """Listens to nothing."""


def all_of(observers: Sequence[Observer]) -> Observer:
    """Passes on everything to each of them, whatever the others make of it."""

    def tell(fact: Fact) -> None:
        for observer in observers:
            try:
                observer(fact)
            except Exception:
                logger.exception("an observer failed")

    return tell


class Teller:
    """Tells what happens in one session: called with the kind of a fact, and all but whose it is."""

    def __init__(self, observer: Observer, tenant: str, template: str, session_id: str) -> None:
        self._observer = observer
        self._whose = (tenant, template, session_id)

    def __call__(
        self,
        kind: Callable[Concatenate[str, str, str, _More], Fact],
        *more: _More.args,
        **named: _More.kwargs,
    ) -> None:
        self._observer(kind(*self._whose, *more, **named))


def code_hash(code: str) -> str:
    """How code is told of: its SHA-256, in UTF-8."""
    return hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()
