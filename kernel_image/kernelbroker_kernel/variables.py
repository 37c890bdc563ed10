"""The names, types and sizes of a session's variables. No values.

Names, types and lengths are read without running user code. The shape of a table may run code of a derived
class, so it is read last, within a time limit, and its errors are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from .introspection import Shapes, length, type_name
from .time_limit import time_limit

NAME_CHARS = 200
SHAPES_S = 1.0
"""The time for the shapes of all variables."""
_ABSENT = object()


def summarize(
    user_ns: Mapping[str, Any], hidden: Mapping[str, Any], limit: int
) -> tuple[list[dict[str, Any]], int]:
    """The `limit` newest variables, oldest first, and the number of older ones.

    Modules, names that start with an underscore, and names that IPython defined before any user code ran
    (`hidden`) are left out; of the latter, those that have been rebound are listed.
    """
    held = dict(user_ns)  # a copy: a user's thread may add names meanwhile
    names = [
        name
        for name, value in held.items()
        if type(name) is str
        and name[:1] != "_"  # first, since IPython adds two such names for each cell
        and not issubclass(type(value), ModuleType)
        and hidden.get(name, _ABSENT) is not value
    ]
    dropped = max(0, len(names) - limit)
    variables = {name: _variable(name, held[name]) for name in names[dropped:]}
    shapes = Shapes()
    with suppress(BaseException), time_limit(SHAPES_S):
        for name, variable in variables.items():
            if (shape := shapes.shape(held[name])) is not None:
                variable["shape"] = shape
    return list(variables.values()), dropped


def _variable(name: str, value: object) -> dict[str, Any]:
    variable: dict[str, Any] = {"name": name[:NAME_CHARS], "type": type_name(value)}
    if (size := length(value)) is not None:
        variable["length"] = size
    return variable
