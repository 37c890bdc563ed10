"""The model that writes code for analyses, from the operator's setting."""

from __future__ import annotations

import importlib
from typing import Any

from kernelbroker.analysis import chat_model


def load_model(setting: str | None) -> Any:
    """Return the model of `mcp.model`, or None without one.

    Args:
        setting: `anthropic:MODEL` or `openai:MODEL`, whose libraries take key and address from their own
            environment variables; or `module:function`.

    Raises:
        ValueError: there is no such module or function, or the library cannot make a client.
    """
    if setting is None:
        return None
    vendor, _, name = setting.partition(":")
    try:
        match vendor:
            case "anthropic":
                return chat_model(importlib.import_module("anthropic").AsyncAnthropic(), name)
            case "openai":
                return chat_model(importlib.import_module("openai").AsyncOpenAI(), name)
        return chat_model(getattr(importlib.import_module(vendor), name))
    except Exception as exc:  # of any library that the operator names
        raise ValueError(f"{setting!r} gives no model: {type(exc).__name__}: {exc}") from exc
