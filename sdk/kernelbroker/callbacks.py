"""Callbacks for output as it comes, and the result of it all when it has come."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TypeAlias, cast

from .options import Callback, RunOptions
from .protocol import events
from .results import Collector, ExecutionResult

Callbacks: TypeAlias = Mapping[type[events.Event], Callback | None]
"""Who gets what kind of event; of other kinds nobody does."""

_NAMES: dict[str, type[events.Event]] = {
    "on_stdout": events.Stdout,
    "on_stderr": events.Stderr,
    "on_image": events.Image,
    "on_display": events.Display,
    "on_input": events.Input,
}


def taken_from(options: RunOptions) -> Callbacks:
    """The callbacks among the options, which are options of the execution alone afterwards."""
    given = cast(dict[str, Callback | None], options)
    return {
        event: callback
        for name, event in _NAMES.items()
        if (callback := given.pop(name, None)) is not None
    }


async def gathered(
    stream: AsyncGenerator[events.Event, None],
    callbacks: Callbacks,
    reply: Callable[[str, str], Awaitable[None]] | None = None,
) -> ExecutionResult:
    """The result of the events of an execution, each told to its callback first, if it has one.

    Args:
        stream: ends with a `Result`, and is closed here in any case.
        reply: gets the id of an execution that asked for input, and what the callback answered.

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
