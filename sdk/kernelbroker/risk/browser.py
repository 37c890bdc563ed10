"""Assesses an action of a browser by its words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..protocol.findings import Finding

_WORDS = ("password", "credit", "pay")


def find(action: str, params: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each word of the action or its parameters that speaks of secrets or money."""
    text = f"{action} {json.dumps(params, default=str, ensure_ascii=False)}".lower()
    for word in _WORDS:
        if word in text:
            reason = f"the action or its parameters have the word {word}"
            yield Finding(rule="browser", level="high", line=1, column=1, reason=reason)
