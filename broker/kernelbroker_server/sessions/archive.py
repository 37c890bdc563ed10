"""The stored history: what lies in the state directory, as the store's thread sees it.

It copies the journal into the database, ends what a dead broker has left open, and reads what is past.
Everything here blocks, and raises sqlite3.Error and OSError.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ..kept_aside import kept_aside
from .database import Database
from .history import History
from .journal import Damaged, Journal, Segment, SegmentReader, left_segments
from .schema import NewerVersion
from .state_directory import StateDirectory

logger = logging.getLogger(__name__)


class Archive(History):
    """The database of a state directory.

    Args:
        retention, max_history: see `DurableStore`.
        clock: seconds since the epoch.

    Attributes:
        serial: that of the last record of the journal when it was opened.
    """

    def __init__(
        self,
        directory: StateDirectory,
        retention: float,
        max_history: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the database, and copy what a dead broker has left in its journal.

        A file that is damaged, or of a newer broker, is kept aside.
        """
        self._directory = directory
        self._max_history = max_history
        self._reader: SegmentReader | None = None
        self._has_gap = False
        """Records of the journal are lost."""
        segments = left_segments(directory.path)
        try:
            database = Database(directory.database)
        except NewerVersion as exc:
            for path in (directory.database, *(segment.path for segment in segments)):
                directory.set_aside(path, "newer", exc)
            database, segments = Database(directory.database), []
        except sqlite3.OperationalError:  # a full disk, missing permissions
            raise
        except sqlite3.DatabaseError as exc:
            directory.set_aside(directory.database, "damaged", exc)
            database = Database(directory.database)
        super().__init__(database, retention, clock)
        self._database: Database = database
        try:
            self.serial = self._replay(segments)
            if self._has_gap or kept_aside(directory.path):
                self._database.repair()
        except BaseException:
            self._database.abandon()
            raise

    def _replay(self, segments: Sequence[Segment]) -> int:
        """Copy the segments and remove them. Returns the serial number of the last record."""
        serial = self._database.applied
        for index, segment in enumerate(segments):
            if segment.first > serial + 1:
                logger.error(
                    "%s: records before it are missing, as after a power cut", segment.path
                )
                self._has_gap = True
            reader = SegmentReader(segment)
            try:
                while self._apply_batch(reader):
                    pass
            except Damaged as exc:
                for each in segments[index:]:
                    self._directory.set_aside(each.path, "damaged", exc)
                # A record has more than one byte, so no record that is lost had a higher number.
                last = segments[-1]
                return max(serial, last.first + last.size)
            finally:
                reader.close()
            if not reader.at_end:
                logger.info("%s: its last record was not completely written", segment.path)
            serial = max(serial, reader.serial)
        for segment in segments:
            segment.path.unlink()
        return serial

    def close(self, journal: Journal, *, complete: bool) -> None:
        """Close the files.

        Args:
            complete: the database has everything, so that the journal can be removed.
        """
        if self._reader is not None:
            self._reader.close()
        if complete:
            self._database.close()
            for segment in journal.segments:
                segment.path.unlink(missing_ok=True)
        else:
            self._database.abandon()

    @property
    def last_number(self) -> int:
        """The highest number of an execution."""
        return self._database.last_number

    def copy_to(self, path: Path) -> None:
        self._database.copy_to(path)

    # Changes.

    def copy(self, journal: Journal) -> None:
        """Copy everything that the journal has, and remove its complete segments."""
        segments = journal.segments
        while segments:
            is_closed = len(segments) > 1
            if self._reader is None:
                self._reader = SegmentReader(segments[0])
            try:
                if self._apply_batch(self._reader):
                    continue
            except BaseException:
                self._reader.close()
                self._reader = None  # the next one begins again
                raise
            if not is_closed:
                return
            self._reader.close()
            self._reader = None
            journal.remove_first()

    def _apply_batch(self, reader: SegmentReader) -> bool:
        """Copy the next records that the database does not have. Returns whether there were any records."""
        records = reader.batch()
        new = reader.serial - self._database.applied
        if records and new > 0:
            self._database.apply(records[-new:], reader.serial)
        return bool(records)

    def tidy(self) -> bool:
        """Remove some of what is too old or too much. Returns whether there may be more."""
        return self._database.expire(self._horizon, self._max_history, self._clock())

    def end_lost(self, adopted: Collection[str] = ()) -> None:
        """End what a dead broker has left open, except adopted sessions and what goes on in them.

        Each execution that ends gets a result.
        """
        results = self.lost_results(adopted)
        self._database.end_lost(results, "the broker ended", self._clock(), adopted)
