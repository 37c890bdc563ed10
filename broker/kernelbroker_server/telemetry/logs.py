"""Log lines that tell which request, session and execution they belong to, as text or as JSON.

The ids travel with the task (`contextvars`), so that whoever logs need not know them.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextvars import Context, ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

_NONE: Mapping[str, str] = MappingProxyType({})
_IDS: ContextVar[Mapping[str, str]] = ContextVar("ids", default=_NONE)


def bind(**ids: str) -> None:
    """From here on, in this task and those that it makes, these ids are told as well."""
    _IDS.set({**_IDS.get(), **ids})


@contextlib.contextmanager
def bound(**ids: str) -> Iterator[None]:
    """As `bind`, within the block."""
    token = _IDS.set({**_IDS.get(), **ids})
    try:
        yield
    finally:
        _IDS.reset(token)


def bound_ids() -> Mapping[str, str]:
    """The ids of this task: `request_id`, `tenant`, `session_id`, `execution_id`, where it has them."""
    return _IDS.get()


def apart(*kept: str, **ids: str) -> Context:
    """A context for a task that outlives the request in which it is made: it tells these ids alone,
    and of the present ones those that are named in `kept`."""
    present, context = _IDS.get(), Context()
    context.run(bind, **{name: present[name] for name in kept if name in present}, **ids)
    return context


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Write all logs to standard error, in this form."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("websockets").setLevel(logging.WARNING)  # at DEBUG it logs all that passes


class TextFormatter(logging.Formatter):
    """For people: the ids stand at the end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        ids = " ".join(f"{name}={value}" for name, value in _IDS.get().items())
        return f"{super().formatMessage(record)} [{ids}]" if ids else super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """For machines: an object a line, with `time`, `level`, `logger`, `message` and the ids."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_IDS.get(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
