"""A process that judges code: requests in as lines of JSON, assessments out. See `judges`.

It bounds itself, since a parser does not: there are short texts for which tree-sitter takes gigabytes, or
minutes within one call, and ends its process where it gets no memory.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import time

import msgspec
from kernelbroker.protocol.findings import Assessment, Language
from kernelbroker.risk import ParserMissing, assess

MEMORY_BYTES = 512 * 1024**2
"""Of addresses; the longest code that sessions take by default needs a quarter of it."""
_CPU_S = 2
"""Of one piece of code; the judging itself stops at less than one."""
_NICE = 5
"""The broker comes first."""


class Request(msgspec.Struct):
    code: str
    language: Language


class Answer(msgspec.Struct, omit_defaults=True):
    """Either of the two. `missing` says what is not installed."""

    assessment: Assessment | None = None
    missing: str | None = None


def main() -> None:
    os.nice(_NICE)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    gc.freeze()
    with socket.socket(fileno=0) as channel, channel.makefile("rwb") as lines:
        for line in lines:
            # The system ends the process there (SIGXCPU): what is in C is not to be interrupted else.
            _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + _CPU_S)
            lines.write(msgspec.json.encode(answer(line)) + b"\n")
            lines.flush()


def _limit(what: int, value: int) -> None:
    """No more than so much, nor more than there was before."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        value = min(value, most)
    resource.setrlimit(what, (value, most))


def answer(line: bytes) -> Answer:
    asked = msgspec.json.decode(line, type=Request)
    try:
        return Answer(assessment=assess(asked.code, asked.language))
    except ParserMissing as exc:
        return Answer(missing=str(exc))


if __name__ == "__main__":
    main()
