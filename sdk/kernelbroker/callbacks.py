"""Callbacks for output as it comes, and the result when all of it has come."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from .collector import Collector
from .protocol import events
from .results import ExecutionResult
from .rich_outputs import Display, Image

TextCallback: TypeAlias = Callable[[str], Any]
ImageCallback: TypeAlias = Callable[[Image], Any]
DisplayCallback: TypeAlias = Callable[[Display], Any]
Callbacks: TypeAlias = Mapping[type[events.Event], Callable[[Any], Any] | None]
"""The callback for each type of event, if there is one. It may be a coroutine function."""


async def collect(
    stream: AsyncGenerator[events.Event, None],
    callbacks: Callbacks,
    reply: Callable[[str, str], Awaitable[None]] | None = None,
) -> ExecutionResult:
    """Call the callback of each event, and return the result of the execution.

    Args:
        stream: ends with a `Result`; it is closed here in any case.
        reply: sends the answer of the `Input` callback, given the execution's id and the answer.

    Raises: what `stream` and the callbacks raise.
    """
    collector = Collector()
    async with aclosing(stream):
        async for event in stream:
            output = collector.add(event)
            if callback := callbacks.get(type(event)):
                answer = callback(output)
                if inspect.isawaitable(answer):
                    answer = await answer
                if isinstance(event, events.Input) and reply is not None:
                    await reply(event.execution_id, str(answer))
    return collector.result()
