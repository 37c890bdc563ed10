"""Reads the audit log's file for people, the latest records first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 32 * 1024**2
"""That are read from the end of the file, for one answer."""
_BLOCK_BYTES = 256 * 1024
_LINE_BYTES = 1024**2
"""A longer line is not a record of ours."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What a record must have; None and empty texts stand for anything.

    Attributes:
        event: its kind, or the beginning of kinds with a dot, such as `session`.
        text: stands somewhere in the record, whatever the case.
        before, since: bounds of its time, in ISO 8601; `before` is not included.
    """

    event: str = ""
    tenant: str = ""
    session: str = ""
    text: str = ""
    before: str = ""
    since: str = ""

    def accepts(self, record: Mapping[str, Any], line: bytes) -> bool:
        kind, at = str(record.get("event", "")), str(record.get("time", ""))
        return (
            (not self.event or kind == self.event or kind.startswith(f"{self.event}."))
            and (not self.tenant or record.get("tenant") == self.tenant)
            and (not self.session or record.get("session") == self.session)
            and (not self.text or self.text.lower() in line.decode("utf-8", "replace").lower())
            and (not self.before or at < self.before)
        )


def read(path: Path, wanted: AuditFilter, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` records, the latest first. Lines that are no records are left out.

    Raises:
        OSError: the file cannot be read.
    """
    found: list[dict[str, Any]] = []
    for line in _lines_backwards(path):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or "event" not in record:
            continue
        if wanted.since and str(record.get("time", "")) < wanted.since:
            break
        if wanted.accepts(record, line):
            found.append(record)
            if len(found) >= limit:
                break
    return found


def _lines_backwards(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        least, rest = max(0, end - MAX_BYTES), b""
        while end > least:
            begin = max(least, end - _BLOCK_BYTES)
            file.seek(begin)
            lines = (file.read(end - begin) + rest).split(b"\n")
            rest, end = lines[0], begin
            if len(rest) > _LINE_BYTES:
                rest = b""
            yield from (line for line in reversed(lines[1:]) if line)
        if least == 0 and rest:
            yield rest
