"""Turns what coding agents print, one JSON object a line, into events of the session. No I/O.

The types of events are `plan` (`steps`), `step_start` (`step`, `text`), `code_operation` (`operation`,
`tool`, `id`, `parameters`), `observation` (`id`, `content`, `is_error`), and `agent_event` for all else.
The last event of a line has the agent's own as `raw`, cut. All of it is untrusted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_TEXT = 4_000
_MAX_ITEMS = 100
_MAX_DEPTH = 8
_MAX_MESSAGE = 16_000
_MAX_RAW = 64 * 1024
_OPERATIONS = {
    **dict.fromkeys(("read", "read_file", "read_many_files", "notebookread"), "read"),
    **dict.fromkeys(("edit", "multiedit", "write", "notebookedit"), "edit"),
    **dict.fromkeys(("replace", "write_file"), "edit"),
    **dict.fromkeys(("patch", "apply_patch"), "apply_patch"),
    **dict.fromkeys(("grep", "search_file_content", "grep_search"), "search"),
    **dict.fromkeys(("glob", "ls", "list", "list_directory"), "list"),
    **dict.fromkeys(("bash", "run_shell_command", "shell"), "run"),
}
"""Our operations by the agents' tools."""
_PLANS = frozenset({"todowrite", "write_todos", "taskcreate", "update_plan"})
Event = dict[str, Any]


@dataclass(slots=True)
class Progress:
    """What is known of a run so far.

    Attributes:
        text: the agent's last message.
        error: what it said about its failure.
        reached_model: whether a model has answered.
        cost_usd: None if it was not told.
        usage: tokens, as far as they were told.
    """

    text: str = ""
    error: str = ""
    reached_model: bool = False
    cost_usd: float | None = None
    usage: dict[str, int] = field(default_factory=dict)
    turns: int = 0
    model: str = ""
    steps: int = 0
    _pending: str = ""

    def step(self, text: str) -> Event:
        self.reached_model = True
        self.steps += 1
        self.text = text[:_MAX_MESSAGE]
        return {"type": "step_start", "step": self.steps, "text": clean(text)[:_MAX_MESSAGE]}

    def call(self, tool: object, call_id: object, parameters: object) -> Event:
        self.reached_model = True
        name = _text(tool)[:200]
        if name.lower() in _PLANS and (steps := _steps(parameters)):
            return {"type": "plan", "steps": steps}
        return {
            "type": "code_operation",
            "operation": _OPERATIONS.get(name.lower()),
            "tool": name,
            "id": _text(call_id)[:200],
            "parameters": shortened(parameters),
        }

    def count(self, **tokens: object) -> None:
        for name, value in tokens.items():
            if type(value) is int and 0 <= value < 2**53:
                self.usage[name] = self.usage.get(name, 0) + value

    def pay(self, cost: object) -> None:
        if type(cost) in (int, float) and math.isfinite(cost):  # type: ignore[arg-type]
            self.cost_usd = (self.cost_usd or 0.0) + float(cost)  # type: ignore[arg-type]

    def take_pending(self) -> Iterator[Event]:
        text, self._pending = self._pending, ""
        if text:
            yield self.step(text)

    def add_pending(self, text: str) -> None:
        self._pending = (self._pending + text)[:_MAX_MESSAGE]


Translate = Callable[[dict[str, Any], Progress], Iterator[Event]]


def events_of(line: bytes, translate: Translate, progress: Progress) -> list[Event] | None:
    """The events of a line; None if it is not a JSON object."""
    try:
        said = json.loads(line, parse_constant=lambda _: None)
        if not isinstance(said, dict):
            return None
        events = list(translate(said, progress))
    except (ValueError, RecursionError):
        return None
    except (TypeError, KeyError, AttributeError, IndexError):  # another form than expected
        events = []
    if not events:
        events = [{"type": "agent_event"}]
    if len(line) > _MAX_RAW:
        said = {"type": _text(said.get("type"))[:100], "truncated_bytes": len(line)}
    events[-1]["raw"] = shortened(said)
    return events


def claude_code(said: dict[str, Any], progress: Progress) -> Iterator[Event]:
    """`claude --output-format stream-json`."""
    kind = said.get("type")
    if kind == "assistant":
        message = said["message"]
        is_synthetic = message.get("model") == "<synthetic>"
        progress.model = progress.model if is_synthetic else _text(message.get("model"))[:200]
        for block in message["content"]:
            if is_synthetic:  # the program speaks, not a model
                progress.error = _text(block.get("text"))[:_MAX_MESSAGE]
            elif block["type"] == "text":
                yield progress.step(_text(block["text"]))
            elif block["type"] == "tool_use":
                yield progress.call(block["name"], block["id"], block["input"])
    elif kind == "user":
        content = said["message"]["content"]
        for block in content if isinstance(content, list) else []:
            if block["type"] == "tool_result":
                failed = block.get("is_error") is True
                yield observation(block["tool_use_id"], block.get("content"), failed)
    elif kind == "result":
        usage = said.get("usage") or {}
        progress.usage = {}
        progress.count(
            input_tokens=usage.get("input_tokens"),
            output_tokens=usage.get("output_tokens"),
            cache_read_tokens=usage.get("cache_read_input_tokens"),
            cache_write_tokens=usage.get("cache_creation_input_tokens"),
        )
        progress.cost_usd = None
        progress.pay(said.get("total_cost_usd"))
        if type(said.get("num_turns")) is int:
            progress.turns = said["num_turns"]
        text = _text(said.get("result") or said.get("subtype"))[:_MAX_MESSAGE]
        if said.get("is_error") or said.get("subtype") != "success":
            progress.error = text or "it failed"
        else:
            progress.text, progress.error = text, ""


def gemini_cli(said: dict[str, Any], progress: Progress) -> Iterator[Event]:
    """`gemini --output-format stream-json`. Its messages come in pieces."""
    kind = said.get("type")
    if kind == "message" and said.get("role") == "assistant":
        progress.add_pending(_text(said["content"]))
        return
    yield from progress.take_pending()
    if kind == "init":
        progress.model = _text(said.get("model"))[:200]
    elif kind == "tool_use":
        yield progress.call(said["tool_name"], said["tool_id"], said.get("parameters"))
    elif kind == "tool_result":
        failed = said.get("status") != "success"
        yield observation(said["tool_id"], said.get("output") or said.get("error"), failed)
    elif kind == "error":
        progress.error = _text(said.get("message"))[:_MAX_MESSAGE]
    elif kind == "result":
        stats = said.get("stats") or {}
        progress.usage = {}
        progress.count(
            input_tokens=stats.get("input_tokens"),
            output_tokens=stats.get("output_tokens"),
            cache_read_tokens=stats.get("cached"),
        )
        progress.turns = progress.turns or progress.steps
        if said.get("status") == "success":
            progress.error = ""
        else:
            told = said.get("error") or progress.error or "it failed"
            told = told.get("message", told) if isinstance(told, dict) else told
            progress.error = _text(told)[:_MAX_MESSAGE]


def opencode(said: dict[str, Any], progress: Progress) -> Iterator[Event]:
    """`opencode run --format json`."""
    kind, part = said.get("type"), said.get("part") or {}
    if kind == "text":
        yield progress.step(_text(part["text"]))
    elif kind == "tool_use":
        state = part["state"]
        yield progress.call(part["tool"], part["callID"], state.get("input"))
        failed = state.get("status") != "completed"
        yield observation(part["callID"], state.get("output") or state.get("error"), failed)
    elif kind == "step_finish":
        tokens = part.get("tokens") or {}
        cache = tokens.get("cache") or {}
        progress.count(
            input_tokens=tokens.get("input"),
            output_tokens=tokens.get("output"),
            cache_read_tokens=cache.get("read"),
            cache_write_tokens=cache.get("write"),
        )
        if part.get("cost"):  # 0 if it knows no price
            progress.pay(part["cost"])
        progress.turns += 1
    elif kind == "error":
        told = said.get("error") or {}
        data = told.get("data") or {}
        message = data.get("message") or told.get("message") or told.get("name") or "it failed"
        progress.error = _text(message)[:_MAX_MESSAGE]


def observation(call_id: object, content: object, is_error: bool) -> Event:
    """What a tool answered."""
    if isinstance(content, list):  # blocks; images are left out
        content = "\n".join(_text(b.get("text")) for b in content if isinstance(b, dict))
    elif isinstance(content, dict):
        content = content.get("message") or json.dumps(shortened(content))
    text = clean(_text(content))
    cut = {"truncated": len(text) - MAX_TEXT} if len(text) > MAX_TEXT else {}
    shown = {"content": text[:MAX_TEXT], "is_error": is_error}
    return {"type": "observation", "id": _text(call_id)[:200], **shown, **cut}


def clean(text: str) -> str:
    """The text without what no JSON in UTF-8 can hold."""
    return text.encode(errors="replace").decode()


def shortened(value: object, depth: int = 0) -> Any:
    """A JSON value with long texts, lists and depths cut."""
    if isinstance(value, str):
        text = clean(value[:MAX_TEXT])
        return text if len(value) <= MAX_TEXT else f"{text}… [{len(value) - MAX_TEXT:,} more]"
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)[:50]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, list):
        return [shortened(each, depth + 1) for each in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_ITEMS]
        return {clean(name[:200]): shortened(each, depth + 1) for name, each in items}
    return None


def _steps(parameters: object) -> list[dict[str, str]]:
    """The steps of a plan, from the agents' lists of things to do."""
    todos = parameters.get("todos") if isinstance(parameters, dict) else None
    steps = []
    for each in todos[:_MAX_ITEMS] if isinstance(todos, list) else []:
        if isinstance(each, dict):
            text = _text(each.get("content") or each.get("description"))
            status = _text(each.get("status"))[:40] or "pending"
            steps.append({"step": clean(text)[:1_000], "status": clean(status)})
    return steps


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:_MAX_MESSAGE]
