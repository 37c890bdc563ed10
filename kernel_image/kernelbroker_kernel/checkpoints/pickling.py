"""Pickles variables by value, also functions and classes that a session defined.

Upon cloudpickle this adds what a session needs: its functions keep the session's namespace as their
globals, closures that share a variable still share it afterwards, and large buffers are not copied. What
cannot be used in another process, such as an open file, is refused instead of replaced by something else.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Mapping, MutableMapping
from typing import IO, Any

import cloudpickle

_NAMESPACE = "namespace"
"""The persistent id of the session's namespace."""


class Pickler(cloudpickle.Pickler):
    """Pickles one value, or several as a dict.

    Args:
        names: the session's namespace.
        owners: the names of other values, by `id`, that should be noticed.

    Attributes:
        buffers: large buffers of the value, which are not in the pickle.
        links: the noticed values that this one refers to.
        has_code: whether it contains functions or classes by value, which only the same version of Python
            can load.
    """

    def __init__(
        self, file: IO[bytes], names: Mapping[str, Any], owners: Mapping[int, str]
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._keep)
        self.buffers: list[pickle.PickleBuffer] = []
        self.links: set[str] = set()
        self.has_code = False
        self._names = names
        self._owners = owners

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        self.buffers.append(buffer)

    def persistent_id(self, obj: Any) -> str | None:
        """Called for every object; also lets interrupts and the time limit in."""
        if (owner := self._owners.get(id(obj))) is not None:
            self.links.add(owner)
        return _NAMESPACE if obj is self._names else None

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.FunctionType and obj.__globals__ is self._names:
            return _reduce_function(obj)
        if kind is types.CodeType:
            self.has_code = True
        elif kind is types.CellType:
            return _reduce_cell(obj)
        elif issubclass(kind, io.IOBase) and not isinstance(obj, io.BytesIO | io.StringIO):
            raise pickle.PicklingError("it contains an open file")
        return super().reducer_override(obj)


class Unpickler(pickle.Unpickler):
    """Loads what a `Pickler` wrote.

    Args:
        names: the session's namespace.
    """

    def __init__(
        self, data: IO[bytes], names: MutableMapping[str, Any], buffers: list[bytearray]
    ) -> None:
        super().__init__(data, buffers=buffers)
        self._names = names

    def persistent_load(self, pid: Any) -> Any:
        if pid == _NAMESPACE:
            return self._names
        raise pickle.UnpicklingError("it refers to something that is not in the checkpoint")


def _reduce_function(function: types.FunctionType) -> tuple[Any, ...]:
    arguments = (
        function.__code__,
        function.__globals__,
        function.__name__,
        None,
        function.__closure__,
    )
    state = {
        "__defaults__": function.__defaults__,
        "__kwdefaults__": function.__kwdefaults__,
        "__qualname__": function.__qualname__,
        "__module__": function.__module__,
        "__doc__": function.__doc__,
        "__annotations__": function.__annotations__,
        "__dict__": dict(function.__dict__),
    }
    return types.FunctionType, arguments, state, None, None, _set_function_state


def _set_function_state(function: types.FunctionType, state: dict[str, Any]) -> None:
    function.__dict__.update(state.pop("__dict__"))
    for name, value in state.items():
        setattr(function, name, value)


def _reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    """The content is the state, since it may refer to the function that has the cell."""
    try:
        content = cell.cell_contents
    except ValueError:
        return types.CellType, ()
    return types.CellType, (), (content,), None, None, _set_cell_state


def _set_cell_state(cell: types.CellType, state: tuple[Any]) -> None:
    cell.cell_contents = state[0]
