"""The summary of what a session holds: names, types, sizes. Never values, never a user's code."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from .objects import Shapes, length, type_name

NAME_CHARS = 200


def summarize(
    user_ns: Mapping[str, Any], hidden: Mapping[str, Any], limit: int
) -> tuple[list[dict[str, Any]], int]:
    """The `limit` latest variables in the order of their making, and how many more there are.

    Left out are modules, names that start with an underscore, and what stood in the namespace before
    any user code ran (`hidden`, IPython's own record of it), unless the name is now something else.
    """
    held = dict(user_ns)  # a copy: a user's thread may add names meanwhile
    known = {name for name, value in hidden.items() if held.get(name) is value}
    names = [
        name
        for name, value in held.items()
        if type(name) is str
        and name[:1] != "_"
        and not issubclass(type(value), ModuleType)
        and name not in known
    ]
    dropped = max(0, len(names) - limit)
    shapes = Shapes()
    return [_variable(name, held[name], shapes) for name in names[dropped:]], dropped


def _variable(name: str, value: object, shapes: Shapes) -> dict[str, Any]:
    variable: dict[str, Any] = {"name": name[:NAME_CHARS], "type": type_name(value)}
    if (size := length(value)) is not None:
        variable["length"] = size
    elif (shape := shapes.shape(value)) is not None:
        variable["shape"] = shape
    return variable
