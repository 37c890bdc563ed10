"""Logging as text or JSON. Each line carries the ids of the request, session and execution it belongs to.

The ids are context variables of the task, so code that logs does not pass them along.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

_FILE_BYTES, _FILES = 100 * 1000**2, 5
"""The size of a log file, and how many there are, with the present one."""
_NONE: Mapping[str, str] = MappingProxyType({})
_IDS: ContextVar[Mapping[str, str]] = ContextVar("ids", default=_NONE)


def bind(**ids: str) -> None:
    """Add these ids to log lines of this task, and of tasks that it creates from now on."""
    _IDS.set({**_IDS.get(), **ids})


@contextlib.contextmanager
def bound(**ids: str) -> Iterator[None]:
    """Add these ids to log lines within the block."""
    token = _IDS.set({**_IDS.get(), **ids})
    try:
        yield
    finally:
        _IDS.reset(token)


def bound_ids() -> Mapping[str, str]:
    """The ids of this task: any of `request_id`, `traceparent`, `tenant`, `session_id`, `execution_id`."""
    return _IDS.get()


def detached_context(*kept: str, **ids: str) -> Context:
    """A context for a task that outlives the request in which it is created.

    Args:
        kept: which of the current ids the task keeps; all other context is left behind.
        ids: further ids for the task.
    """
    present, context = _IDS.get(), Context()
    context.run(bind, **{name: present[name] for name in kept if name in present}, **ids)
    return context


def configure(level: str, form: Literal["text", "json"], file: Path | None = None) -> None:
    """Write all logs of `level` and above to standard error.

    Args:
        file: where to write them, too. Full files are renamed, and the oldest is removed.

    Raises:
        OSError: the file cannot be written.
    """
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if file is not None:
        rotating = RotatingFileHandler(file, maxBytes=_FILE_BYTES, backupCount=_FILES - 1)
        handlers.append(rotating)
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=handlers, force=True)
    # `websockets` logs every frame at DEBUG, `mcp` each start of a server at INFO.
    for name in ("websockets", "mcp"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """The further fields of a line, from `extra={"fields": {...}}`."""
    return getattr(record, "fields", _NONE)


class TextFormatter(logging.Formatter):
    """One line for people, with the ids at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        told = {**_IDS.get(), **_fields(record)}
        ids = " ".join(f"{name}={value}" for name, value in told.items())
        return f"{super().formatMessage(record)} [{ids}]" if ids else super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object for each line: `time`, `level`, `logger`, `message` and the ids."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_IDS.get(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
