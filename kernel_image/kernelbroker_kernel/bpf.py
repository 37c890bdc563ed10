"""Assembles seccomp filters in classic BPF: which system calls of a process are allowed. Does no I/O.

The formats are described in seccomp(2) and bpf(4): `struct sock_filter` and `struct seccomp_data`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h, by the machine's name: the architectures that filters can be made for."""
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
EQUAL, NOT_EQUAL, NO_BITS = "equal", "not equal", "no bits"
HIGH = 0.5
"""Added to the number of an argument: its high 32 bits."""
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_X32 = 0x40000000
"""The x32 calls of x86_64 have this bit set. No architecture has call numbers above it."""


def fails(number: int) -> int:
    """The verdict of a call that fails with an error of `errno`."""
    return 0x00050000 | number


class Rule(NamedTuple):
    """What becomes of calls.

    Attributes:
        first, last: their numbers.
        allowed_if: the call is allowed if all tests (argument, comparison, value) of one of these lines
            hold. A test compares the low 32 bits of an argument.
        verdict: in any other case.
    """

    first: int
    last: int
    verdict: int
    allowed_if: Sequence[Sequence[tuple[float, str, int]]] = ()


def assemble(machine: str, rules: Iterable[Rule], *, otherwise: int, foreign: int) -> bytes | None:
    """The filter; None for a machine that is not in `AUDIT`.

    Args:
        rules: the first that names a call decides.
        otherwise: the verdict of other calls.
        foreign: the verdict of calls of another architecture, whose numbers mean other calls.
    """
    if machine not in AUDIT:
        return None
    program = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_EQUAL, AUDIT[machine], then=1),
        _instruction(_RETURN, foreign),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_JUMP_AT_LEAST, _X32, otherwise=1),
        _instruction(_RETURN, fails(errno.EPERM)),
    ]
    for rule in rules:
        block = [each for line in rule.allowed_if for each in _allow_if_all(line)]
        block.append(_instruction(_RETURN, rule.verdict))
        if rule.first == rule.last:
            program.append(_instruction(_JUMP_EQUAL, rule.first, otherwise=len(block)))
        else:
            program.append(_instruction(_JUMP_AT_LEAST, rule.first, otherwise=len(block) + 1))
            program.append(_instruction(_JUMP_AT_LEAST, rule.last + 1, then=len(block)))
        program += block
    return b"".join([*program, _instruction(_RETURN, otherwise)])


def _allow_if_all(line: Sequence[tuple[float, str, int]]) -> list[bytes]:
    """Instructions that allow the call if all tests hold, and otherwise continue after the line."""
    block: list[bytes] = []
    for position, (argument, comparison, value) in enumerate(line):
        past_the_line = 2 * (len(line) - position - 1) + 1
        code = _JUMP_BITS if comparison == NO_BITS else _JUMP_EQUAL
        then, otherwise = (0, past_the_line) if comparison == EQUAL else (past_the_line, 0)
        block.append(_instruction(_LOAD, _ARGUMENTS_AT + int(8 * argument)))  # little-endian
        block.append(_instruction(code, value, then=then, otherwise=otherwise))
    return [*block, _instruction(_RETURN, ALLOW)]


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)
