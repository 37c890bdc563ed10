"""The history of one session, in memory.

IPython keeps it in a SQLite file that a thread writes. A sandbox has one session only, whose inputs are in
memory in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from IPython.core.history import HistoryManager

_DEFAULT_TAIL = 10
_SESSION = 1
"""The number that IPython gives to the first session of a new file."""


class SessionHistory(HistoryManager):
    """Answers as the stock class with a new file."""

    def __init__(self, **traits: Any) -> None:
        super().__init__(enabled=False, **traits)
        self.session_number = _SESSION

    def get_tail(
        self,
        n: int | None = _DEFAULT_TAIL,
        raw: bool = True,
        output: bool = False,
        include_latest: bool = False,
    ) -> list[Any]:
        """Return the last `n` inputs, the latest one last."""
        entries = list(self._entries(raw, output))
        if not include_latest:
            entries = entries[:-1]
        return entries[-n:] if n else entries[-_DEFAULT_TAIL:] if n is None else []

    def search(
        self,
        pattern: str | None = "*",
        raw: bool = True,
        search_raw: bool = True,
        output: bool = False,
        n: int | None = None,
        unique: bool = False,
    ) -> list[Any]:
        """Return the inputs that match a pattern with the wildcards * and ?."""
        searched = self.input_hist_raw if search_raw else self.input_hist_parsed
        found = [
            entry
            for entry in self._entries(raw, output)
            if fnmatchcase(searched[entry[1]], "*" if pattern is None else pattern)
        ]
        if unique:
            latest = {searched[entry[1]]: entry for entry in found}
            found = sorted(latest.values(), key=lambda entry: entry[1])
        return found if n is None else found[-n:] if n else []

    def _entries(self, raw: bool, output: bool) -> Iterator[tuple[int, int, Any]]:
        inputs = self.input_hist_raw if raw else self.input_hist_parsed
        for line, text in enumerate(inputs[1:], 1):
            # Like a file, which has no outputs.
            yield _SESSION, line, (text, None) if output else text
