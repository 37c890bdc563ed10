"""Python's own parser, one thread at a time."""

from __future__ import annotations

import ast
import threading
import warnings

_ONE_AT_A_TIME = threading.Lock()
# CPython counts the depth of the trees that it builds for the whole interpreter, so that two threads that
# parse can make each other fail with SystemError (python/cpython#106905); nor are filters of warnings a
# thread's own.


def parse(code: str) -> ast.Module:
    """Its syntax tree. Raises SyntaxError, RecursionError, MemoryError."""
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes, say, which are not ours
        try:
            return ast.parse(code)
        except ValueError as exc:  # null bytes, lone surrogates
            raise SyntaxError(str(exc)) from exc
