"""A process that assesses code: requests come in as lines of JSON, assessments go out. See `assessor`.

The process limits its own memory and processor time, in case a parser needs too much for some input.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import time
from typing import Any

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.findings import Assessment, RuleSet
from kernelbroker.risk import ParserMissing, assess

MEMORY_BYTES = 512 * 1024**2
"""Of address space; the longest code that sessions accept by default needs a quarter of it."""
_CPU_S = 2
"""For one piece of code, which takes about one second at most."""
_NICE = 5
"""The broker has priority."""


class Request(msgspec.Struct):
    code: str
    language: str
    params: dict[str, Any] = {}
    rules: RuleSet = "agent"
    dangerous_patterns: tuple[str, ...] = ()


class Answer(msgspec.Struct, omit_defaults=True):
    """Either an assessment, or in `missing` the package that is not installed."""

    assessment: Assessment | None = None
    missing: str | None = None


def main() -> None:
    os.nice(_NICE)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    gc.freeze()
    with socket.socket(fileno=0) as channel, channel.makefile("rwb") as lines:
        for line in lines:
            # Beyond this the system ends the process (SIGXCPU); C code cannot be interrupted otherwise.
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + _CPU_S)
            lines.write(msgspec.json.encode(answer(line)) + b"\n")
            lines.flush()


def _limit(what: int, value: int) -> None:
    """Set a limit, unless a lower one is in force."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        value = min(value, most)
    resource.setrlimit(what, (value, most))


def answer(line: bytes) -> Answer:
    asked = decode_json(line, Request)
    try:
        assessment = assess(
            asked.code,
            asked.language,
            asked.params,
            rules=asked.rules,
            dangerous_patterns=asked.dangerous_patterns,
        )
        return Answer(assessment=assessment)
    except ParserMissing as exc:
        return Answer(missing=str(exc))


if __name__ == "__main__":
    main()
