"""The waits of borrowers for a gateway. Who gets it is decided in `borrowers.py`."""

from __future__ import annotations

import asyncio
import itertools

from kernelbroker.protocol.errors import RequestError

from ..pool.warm_sandbox import WarmSandbox


class Grants:
    """The borrowers that have not given the gateway back, each with a number of its own."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waits: dict[int, asyncio.Future[WarmSandbox]] = {}

    def add(self) -> tuple[int, asyncio.Future[WarmSandbox]]:
        """Return a new borrower's number, and the future of its grant."""
        borrower = next(self._numbers)
        self._waits[borrower] = granted = asyncio.get_running_loop().create_future()
        return borrower, granted

    def remove(self, borrower: int) -> None:
        del self._waits[borrower]

    def grant(self, borrower: int, warm: WarmSandbox | None) -> None:
        """Does nothing if it does not wait, or there is no sandbox."""
        if warm is not None and not self._waits[borrower].done():
            self._waits[borrower].set_result(warm)

    def refuse(self, borrower: int, error: RequestError) -> None:
        """Does nothing if it does not wait."""
        if not self._waits[borrower].done():
            self._waits[borrower].set_exception(error)
