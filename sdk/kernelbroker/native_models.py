"""The models that drive the native coding agent: clients of Anthropic and OpenAI, or any callable."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import uuid4

_MAX_TOKENS = 8_192


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        system: its instructions.
        messages: the conversation in the form of Anthropic's Messages API: `role` and `content`, whose
            blocks have the types `text`, `tool_use` and `tool_result`.
        tools: each with `name`, `description` and `input_schema`.
    """

    system: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model wants: the tool, and its arguments as the model gave them."""

    name: str
    arguments: Any
    id: str = field(default_factory=lambda: f"call_{uuid4().hex}")


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model answered. Without calls the task is done.

    Attributes:
        content: the blocks to repeat in the next request; made from text and calls if None.
        usage: tokens: `input_tokens`, `output_tokens`.
        cost_usd: if the model tells it.
    """

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Mapping[str, int] = field(default_factory=dict)
    cost_usd: float | None = None
    content: list[Any] | None = None

    def blocks(self) -> list[Any]:
        if self.content is not None:
            return self.content
        blocks: list[Any] = [{"type": "text", "text": self.text}] if self.text else []
        for call in self.calls:
            used = {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            blocks.append(used)
        return blocks or [{"type": "text", "text": "done"}]


Reply: TypeAlias = ModelReply | Mapping[str, Any] | str
"""A text, or a mapping with `text` and `calls`, each with `name` and `arguments`, does as well."""
Driver: TypeAlias = Callable[[ModelRequest], Reply | Awaitable[Reply]] | Any
Ask: TypeAlias = Callable[[ModelRequest], Awaitable[ModelReply]]


def driver_of(client: Driver, model: str | None) -> Ask:
    """A function that asks a client's model, or calls the callable.

    Raises:
        TypeError: it is neither.
        ValueError: the client needs the name of the model.
    """
    if hasattr(client, "messages") and hasattr(client.messages, "create"):
        return _Anthropic(client, _named(model))
    if hasattr(client, "chat") and hasattr(client.chat, "completions"):
        return _OpenAI(client, _named(model))
    if callable(client):
        return _Callable(client)
    raise TypeError(
        "client is an Anthropic or OpenAI client, or a function from ModelRequest to ModelReply, "
        f"not {type(client).__name__}"
    )


def _named(model: str | None) -> str:
    if not model:
        raise ValueError("a client needs model=..., the name of its model")
    return model


async def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that may be asynchronous, or may block."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    answer = await asyncio.to_thread(function, *args, **kwargs)
    return await answer if inspect.isawaitable(answer) else answer


class _Callable:
    def __init__(self, function: Callable[[ModelRequest], Any]) -> None:
        self._function = function

    async def __call__(self, request: ModelRequest) -> ModelReply:
        reply = await _called(self._function, request)
        if isinstance(reply, ModelReply):
            return reply
        if isinstance(reply, str):
            return ModelReply(reply)
        if not isinstance(reply, Mapping):
            kind = type(reply).__name__
            raise TypeError(f"the callable returns a ModelReply, a dict or a text, not {kind}")
        calls = tuple(
            each
            if isinstance(each, ToolCall)
            else ToolCall(each["name"], each.get("arguments", {}))
            for each in reply.get("calls", ())
        )
        return ModelReply(str(reply.get("text", "")), calls)


class _Anthropic:
    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self._model = model

    async def __call__(self, request: ModelRequest) -> ModelReply:
        message = await _called(
            self._client.messages.create,
            model=self._model,
            max_tokens=_MAX_TOKENS,
            system=request.system,
            messages=request.messages,
            tools=request.tools,
        )
        text = "".join(block.text for block in message.content if block.type == "text")
        calls = tuple(
            ToolCall(block.name, block.input, block.id)
            for block in message.content
            if block.type == "tool_use"
        )
        return ModelReply(text, calls, _usage(message), content=list(message.content))


class _OpenAI:
    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self._model = model

    async def __call__(self, request: ModelRequest) -> ModelReply:
        tools = [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool["description"],
                    "parameters": tool["input_schema"],
                },
            }
            for tool in request.tools
        ]
        completion = await _called(
            self._client.chat.completions.create,
            model=self._model,
            messages=_for_openai(request),
            tools=tools,
        )
        message = completion.choices[0].message
        calls = tuple(
            ToolCall(call.function.name, _arguments(call.function.arguments), call.id)
            for call in message.tool_calls or ()
        )
        return ModelReply(message.content or "", calls, _usage(completion))


def _for_openai(request: ModelRequest) -> list[dict[str, Any]]:
    """The conversation as OpenAI's chat completions take it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": request.system}]
    for message in request.messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        texts = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        calls = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
            }
            for block in blocks
            if block["type"] == "tool_use"
        ]
        for block in blocks:
            if block["type"] == "tool_result":
                answer = {"role": "tool", "tool_call_id": block["tool_use_id"]}
                messages.append(answer | {"content": block["content"]})
        if calls:
            said = {"role": "assistant", "content": texts or None, "tool_calls": calls}
            messages.append(said)
        elif texts:
            messages.append({"role": message["role"], "content": texts})
    return messages


def _arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text  # the model is told that this is no object


def _usage(answer: Any) -> dict[str, int]:
    usage = getattr(answer, "usage", None)
    names = {
        "input_tokens": ("input_tokens", "prompt_tokens"),
        "output_tokens": ("output_tokens", "completion_tokens"),
        "cache_read_tokens": ("cache_read_input_tokens",),
        "cache_write_tokens": ("cache_creation_input_tokens",),
    }
    found = {}
    for name, theirs in names.items():
        for each in theirs:
            if type(value := getattr(usage, each, None)) is int:
                found[name] = value
    return found
