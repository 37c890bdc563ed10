"""Why sessions have ended, for clients that ask for them later."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kernelbroker.protocol.errors import SessionGone

_REMEMBERED_S = 3600.0
"""How long a closed session answers why it is gone."""
_REMEMBERED_MAX = 10_000


class GoneSessions:
    """Remembers the reasons for a while, as many as fit.

    Args:
        clock: seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reasons: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def add(self, session_id: str, reason: str) -> None:
        self._reasons[session_id] = (self._clock(), reason)
        self._forget()

    def check(self, session_id: str) -> None:
        """Raises SessionGone if the session has ended."""
        self._forget()
        if session_id in self._reasons:
            raise gone(session_id, self._reasons[session_id][1])

    def forget(self, session_id: str) -> None:
        """A new session has this id."""
        self._reasons.pop(session_id, None)

    def _forget(self) -> None:
        horizon = self._clock() - _REMEMBERED_S
        while self._reasons:
            oldest = next(iter(self._reasons))
            if self._reasons[oldest][0] > horizon and len(self._reasons) <= _REMEMBERED_MAX:
                break
            del self._reasons[oldest]


def gone(session_id: str, reason: str) -> SessionGone:
    """Return the error that tells why a session is gone."""
    return SessionGone(f"session {session_id} is closed: {reason}; open a new one")
