"""The forms in which an execution is answered over HTTP, chosen by the Accept header."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelbroker.protocol.tags import encode_tags

from ..sessions.journal import Entry


@dataclass(frozen=True, slots=True)
class Form:
    """How one event is written. `streamed` forms send each as it comes; the other has no events."""

    content_type: str
    write: Callable[[Entry], bytes]
    streamed: bool = True


def _tags(entry: Entry) -> bytes:
    return encode_tags(entry.event).encode()


def _sse(entry: Entry) -> bytes:
    """Server-sent events (WHATWG HTML, section 9.2): `id` lets a reader say what it saw last."""
    kind = type(entry.event).__struct_config__.tag
    return f"event: {kind}\nid: {entry.event.seq}\ndata: ".encode() + entry.json + b"\n\n"


def _ndjson(entry: Entry) -> bytes:
    return entry.json + b"\n"


TAGS = Form("text/plain; charset=utf-8", _tags)
SSE = Form("text/event-stream", _sse)
NDJSON = Form("application/x-ndjson", _ndjson)
JSON = Form("application/json", _ndjson, streamed=False)

_BY_TYPE = {
    "text/plain": TAGS,
    "text/event-stream": SSE,
    "application/x-ndjson": NDJSON,
    "application/json": JSON,
}


def choose(accept: str, default: Form = TAGS) -> Form:
    """The first form that the header names, whatever its weights; the default for none or `*/*`."""
    for item in accept.split(","):
        form = _BY_TYPE.get(item.partition(";")[0].strip().lower())
        if form is not None:
            return form
    return default
