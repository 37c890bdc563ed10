"""What the broker's layers tell of, in the order of a cell's way; who listens, they do not know.

`Observer` listens to nothing; `Observers` passes everything on to several. A listener must be quick
and must not raise: what one does wrong is logged, and the broker goes on.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExecutionFacts:
    """An execution that has ended. Times in seconds; bytes of its events as JSON.

    Attributes:
        outcome: `success`, or the cause of its failure.
        code_sha256: of the code, in UTF-8.
        started_at: the time of its acceptance, in seconds since the epoch.
        execution_s: measured in the kernel; None where it did not tell.
        packages: what it was to install; empty for a cell.
    """

    tenant: str
    template: str
    session_id: str
    execution_id: str
    language: str
    code_sha256: str
    outcome: str
    started_at: float
    queued_s: float
    total_s: float
    execution_s: float | None
    output_bytes: int
    packages: Sequence[str] = ()


class Observer:
    """Each method is one thing that happened."""

    def request_ended(
        self, tenant: str | None, method: str, route: str, status: int, seconds: float
    ) -> None:
        """An HTTP request was answered; `route` is the pattern, without ids."""

    def session_opened(self, tenant: str, template: str, session_id: str) -> None:
        pass

    def session_closed(self, tenant: str, template: str, session_id: str, reason: str) -> None:
        pass

    def execution_ended(self, facts: ExecutionFacts) -> None:
        pass

    def execution_refused(
        self,
        tenant: str,
        template: str,
        session_id: str,
        language: str,
        code_sha256: str,
        mode: str,
    ) -> None:
        """A policy did not let code run, or not yet; `session_id` is empty where it had no session."""

    def sandbox_leased(
        self, tenant: str, template: str, session_id: str, sandbox_id: str, seconds: float
    ) -> None:
        """A session got a sandbox, after so long."""

    def sandbox_replaced(self, tenant: str, template: str, session_id: str, cause: str) -> None:
        """A session's sandbox was given up for a fresh one."""

    def launch_ended(self, template: str, seconds: float, failure: str | None) -> None:
        """A sandbox became warm, or did not."""


class Observers(Observer):
    """Passes on everything to each of them."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def request_ended(
        self, tenant: str | None, method: str, route: str, status: int, seconds: float
    ) -> None:
        self._tell("request_ended", tenant, method, route, status, seconds)

    def session_opened(self, tenant: str, template: str, session_id: str) -> None:
        self._tell("session_opened", tenant, template, session_id)

    def session_closed(self, tenant: str, template: str, session_id: str, reason: str) -> None:
        self._tell("session_closed", tenant, template, session_id, reason)

    def execution_ended(self, facts: ExecutionFacts) -> None:
        self._tell("execution_ended", facts)

    def execution_refused(
        self,
        tenant: str,
        template: str,
        session_id: str,
        language: str,
        code_sha256: str,
        mode: str,
    ) -> None:
        self._tell("execution_refused", tenant, template, session_id, language, code_sha256, mode)

    def sandbox_leased(
        self, tenant: str, template: str, session_id: str, sandbox_id: str, seconds: float
    ) -> None:
        self._tell("sandbox_leased", tenant, template, session_id, sandbox_id, seconds)

    def sandbox_replaced(self, tenant: str, template: str, session_id: str, cause: str) -> None:
        self._tell("sandbox_replaced", tenant, template, session_id, cause)

    def launch_ended(self, template: str, seconds: float, failure: str | None) -> None:
        self._tell("launch_ended", template, seconds, failure)

    def _tell(self, what: str, *facts: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*facts)
            except Exception:
                logger.exception("an observer failed")


def code_hash(code: str) -> str:
    """How code is told of: its SHA-256, in UTF-8."""
    return hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()
