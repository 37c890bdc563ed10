"""The borrowers of a session's gateway: file transfers and others beside the executions. No I/O."""

from __future__ import annotations

from kernelbroker.protocol.errors import RequestError, TooManyRequests

from .effects import Effect, GrantBorrower, RefuseBorrower
from .states import BORROWER_TRANSITIONS, BorrowerState, StateTrack

MAX_BORROWERS = 16
"""Of one session at the same time; each may hold a connection and a chunk or two."""


class Borrowers:
    """The borrowers by number. A borrower leaves when it gives the gateway back or is refused."""

    def __init__(self) -> None:
        self._tracks: dict[int, StateTrack[BorrowerState]] = {}

    def __len__(self) -> int:
        return len(self._tracks)

    @property
    def waiting(self) -> list[int]:
        """The borrowers that wait for a living sandbox."""
        return [n for n, track in self._tracks.items() if track.current is BorrowerState.WAITING]

    def add(self, borrower: int) -> None:
        """Add a waiting borrower. Raises TooManyRequests."""
        if len(self._tracks) >= MAX_BORROWERS:
            raise TooManyRequests(
                f"the session has {len(self._tracks)} transfers under way; wait for one to end",
                retry_after=1,
            )
        subject = f"borrower {borrower}"
        self._tracks[borrower] = StateTrack(subject, BorrowerState.WAITING, BORROWER_TRANSITIONS)

    def grant_waiting(self) -> list[Effect]:
        """Grant the gateway to all waiting borrowers: there is a living sandbox."""
        if not self._tracks:
            return []
        granted = self.waiting
        for borrower in granted:
            self._tracks[borrower].move(BorrowerState.HOLDING)
        return [GrantBorrower(borrower) for borrower in granted]

    def refuse_waiting(self, error: RequestError) -> list[Effect]:
        """Refuse all waiting borrowers: there is no sandbox."""
        refused = self.waiting
        for borrower in refused:
            self.give_back(borrower)
        return [RefuseBorrower(borrower, error) for borrower in refused]

    def give_back(self, borrower: int) -> None:
        """Remove a borrower. A second call does nothing."""
        if (track := self._tracks.pop(borrower, None)) is not None:
            track.move(BorrowerState.DONE)

    def validate_state(self) -> None:
        """Raise AssertionError unless the invariants hold."""
        assert len(self._tracks) <= MAX_BORROWERS
        assert all(t.current is not BorrowerState.DONE for t in self._tracks.values())
