"""Models that write code: any function from a prompt to an answer, or a vendor's client."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

Model: TypeAlias = Callable[[str], str | Awaitable[str]]
"""Gets a prompt and returns the answer; may be a coroutine function."""

DEFAULT_MODELS = {"anthropic": "claude-sonnet-5-5", "openai": "gpt-6-sol"}
"""Used if neither `chat_model` nor ANTHROPIC_MODEL or OPENAI_MODEL names one."""
MAX_TOKENS = 8192

_BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def chat_model(client: Any, model: str | None = None) -> Model:
    """Return a function from a prompt to a model's answer.

    Args:
        client: a client of `anthropic` or `openai` (or of a server that speaks their protocols), sync or
            async; a LangChain model; or any function, which is returned as it is.
        model: the model's name; by default ANTHROPIC_MODEL or OPENAI_MODEL of the environment.

    Raises:
        TypeError: this is none of these.
    """
    if hasattr(client, "messages") and hasattr(client.messages, "create"):
        name = model or _default("anthropic")

        async def ask_anthropic(prompt: str) -> str:
            answer = await _awaited(
                client.messages.create,
                model=name,
                max_tokens=MAX_TOKENS,
                messages=[{"role": "user", "content": prompt}],
            )
            return "".join(block.text for block in answer.content if block.type == "text")

        return ask_anthropic
    if hasattr(client, "chat") and hasattr(client.chat, "completions"):
        name = model or _default("openai")

        async def ask_openai(prompt: str) -> str:
            answer = await _awaited(
                client.chat.completions.create,
                model=name,
                messages=[{"role": "user", "content": prompt}],
            )
            return answer.choices[0].message.content or ""

        return ask_openai
    if hasattr(client, "ainvoke"):

        async def ask_langchain(prompt: str) -> str:
            return str((await client.ainvoke(prompt)).text)

        return ask_langchain
    if callable(client):
        return client  # type: ignore[no-any-return]
    raise TypeError(
        "a model is a function of a prompt, or a client of anthropic, openai, LangChain"
    )


async def ask(model: Any, prompt: str) -> str:
    """Return the code in a model's answer: that of its last code block, or the whole answer."""
    answer = await _awaited(chat_model(model), prompt)
    blocks = _BLOCK.findall(str(answer))
    return str(blocks[-1] if blocks else answer).strip("\n") + "\n"


async def _awaited(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function or a coroutine function. A blocking one runs in a thread."""
    import asyncio

    if inspect.iscoroutinefunction(function):
        return await function(*args, **named)
    answer = await asyncio.to_thread(function, *args, **named)
    return await answer if inspect.isawaitable(answer) else answer


def _default(vendor: str) -> str:
    return os.environ.get(f"{vendor.upper()}_MODEL") or DEFAULT_MODELS[vendor]
