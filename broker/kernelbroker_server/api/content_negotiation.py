"""Chooses, by the Accept header, how an execution is written as an HTTP response body."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelbroker.protocol.tags import encode_tags

from ..sessions.store import StoredEvent


@dataclass(frozen=True, slots=True)
class Representation:
    """One media type of an execution.

    Attributes:
        content_type: the value of the Content-Type header.
        write: encodes one event.
        streamed: each event is sent as it comes. False means one JSON object at the end.
    """

    content_type: str
    write: Callable[[StoredEvent], bytes]
    streamed: bool = True


def _tags(stored: StoredEvent) -> bytes:
    return encode_tags(stored.event).encode()


def _sse(stored: StoredEvent) -> bytes:
    """A server-sent event (WHATWG HTML, section 9.2). Its `id` is the event's `seq`."""
    kind = type(stored.event).__struct_config__.tag
    return f"event: {kind}\nid: {stored.event.seq}\ndata: ".encode() + stored.json + b"\n\n"


def _ndjson(stored: StoredEvent) -> bytes:
    return stored.json + b"\n"


TAGS = Representation("text/plain; charset=utf-8", _tags)
SSE = Representation("text/event-stream", _sse)
NDJSON = Representation("application/x-ndjson", _ndjson)
JSON = Representation("application/json", _ndjson, streamed=False)

_BY_TYPE = {
    "text/plain": TAGS,
    "text/event-stream": SSE,
    "application/x-ndjson": NDJSON,
    "application/json": JSON,
}


def negotiate(accept: str, default: Representation = TAGS) -> Representation:
    """Return the first known type in an Accept header.

    Weights are ignored. A header that names no known type gives the default.
    """
    for item in accept.split(","):
        known = _BY_TYPE.get(item.partition(";")[0].strip().lower())
        if known is not None:
            return known
    return default
