"""Small messages that replace those that are too large to pass on."""

from __future__ import annotations

import json
import re
from typing import Any

from .contract import DROPPED_MIME, MAX_MESSAGE_BYTES
from .error_bounds import bounded_error

_OUTPUTS = frozenset({"display_data", "execute_result", "update_display_data"})
_MAX_PARSED_BYTES = 4 * MAX_MESSAGE_BYTES
_TEXT = re.compile(rb'"text/plain"\s*:\s*"')
_CHARACTERS = re.compile(rb'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')
"""The inside of a JSON string, without an escape that is cut."""
_COUNT = re.compile(rb'"execution_count"\s*:\s*(\d{1,9})\b')
_ENVELOPE_BYTES = 64 * 1024
"""Room for the rest of a message around its text."""
_MAX_ID_CHARS = 1000
MAX_METADATA_BYTES = 1024**2
"""A reply's metadata has the summary of its cell, which is kept up to this size."""


def replacement(parts: list[Any], size: int) -> list[bytes]:
    """The message to send instead: header, parent header, metadata, content.

    Of an output the plain text is kept, cut if necessary, and `DROPPED_MIME` says what was lost. A reply
    keeps its status, since it ends its cell; an error stays an error, cut to bounds.

    Args:
        parts: the message as Jupyter's wire protocol has it, from the header on.
        size: bytes of the whole message.
    """
    header = json.loads(bytes(parts[0]))
    kind = header.get("msg_type")
    data = bytes(parts[3])
    content = _text_alone(data, size) if kind in _OUTPUTS else _shortened(kind, data)
    metadata = bytes(parts[2])
    if len(metadata) > MAX_METADATA_BYTES:
        metadata = b"{}"
    return [json.dumps(header).encode(), bytes(parts[1]), metadata, _json(content)]


def _text_alone(data: bytes, size: int) -> dict[str, Any]:
    content, unread = (_object(data), 0) if size <= _MAX_PARSED_BYTES else _beginning(data)
    bundle = content.get("data")
    bundle = bundle if isinstance(bundle, dict) else {}
    dropped: dict[str, Any] = {
        "bytes": size,
        "text_bytes": 0,
        "rich": bundle.keys() != {"text/plain"},
    }
    kept: dict[str, Any] = {"data": {DROPPED_MIME: dropped}, "metadata": {}}
    text = bundle.get("text/plain")
    if isinstance(text, str):
        shown = _fitting(text, MAX_MESSAGE_BYTES - _ENVELOPE_BYTES)
        kept["data"]["text/plain"] = shown
        lost = len(text[len(shown) :].encode("utf-8", "surrogatepass"))
        dropped["text_bytes"] = lost + unread
    if isinstance(count := content.get("execution_count"), int):
        kept["execution_count"] = count
    transient = content.get("transient")
    display_id = transient.get("display_id") if isinstance(transient, dict) else None
    if isinstance(display_id, str):
        kept["transient"] = {"display_id": display_id[:_MAX_ID_CHARS]}
    return kept


def _beginning(data: bytes) -> tuple[dict[str, Any], int]:
    """What is kept of an output that is too large to be parsed, and the bytes that follow its text.

    Its plain text ends where a message is full. Then all that follows is counted as text: to tell them
    apart, all would have to be read.
    """
    found = _TEXT.search(data, 0, _ENVELOPE_BYTES)
    inside = found and _CHARACTERS.match(data, found.end(), found.end() + MAX_MESSAGE_BYTES)
    if found is None or inside is None:
        return {}, 0
    bundle = _object(f'{{"text/plain": "{inside[0].decode("utf-8", "ignore")}"}}')
    unread = 0
    if data[inside.end() : inside.end() + 1] == b'"':  # the text is whole: another form is large
        bundle["others"] = None
    else:
        unread = len(data) - inside.end()
        text = bundle.get("text/plain", "")
        if "\ud800" <= text[-1:] <= "\udbff":  # the first half of a character
            bundle["text/plain"] = text[:-1]
    content: dict[str, Any] = {"data": bundle}
    if counts := _COUNT.findall(data[: found.start()] + data[-_ENVELOPE_BYTES:]):
        content["execution_count"] = int(counts[-1])
    return content, unread


def _fitting(text: str, room: int) -> str:
    """The beginning of a text that takes at most `room` bytes as JSON."""
    while (size := len(_json(text))) > room:
        text = text[: int(len(text) * room / size * 0.99)]
    return text


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # lone surrogates
        return json.dumps(value).encode()


def _object(data: bytes | str) -> dict[str, Any]:
    """A JSON object; empty if it is none, since user code can send anything."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _shortened(kind: str, data: bytes) -> dict[str, Any]:
    content = _object(data)
    if not content:
        content = {"status": "error", "ename": "Error", "evalue": "the reply was too large"}
    count = content.get("execution_count")
    short: dict[str, Any] = {
        "status": content.get("status") if content.get("status") == "ok" else "error",
        "execution_count": count if isinstance(count, int) else None,
        "payload": [],
        "user_expressions": {},
    }
    if kind == "error" or short["status"] != "ok":
        fields = (content.get("ename", "Error"), content.get("evalue"), content.get("traceback"))
        short |= bounded_error(*fields)
    return short
