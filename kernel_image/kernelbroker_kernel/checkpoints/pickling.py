"""Pickles variables by value, also functions and classes that a session defined.

Upon cloudpickle this adds what a session needs: its functions keep the session's namespace as their
globals, closures that share a variable still share it afterwards, and large buffers are not copied. What
cannot be used in another process, such as an open file, is refused instead of replaced by something else.
"""

from __future__ import annotations

import functools
import io
import pickle
import types
import typing
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
        elif kind is _CACHED:
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        elif kind is functools.cached_property:  # Python 3.11 has a lock in it
            return functools.cached_property, (obj.func,), (None, {"attrname": obj.attrname})
        elif kind is typing.NewType:
            return typing.NewType, (obj.__name__, obj.__supertype__)
        elif _is_dispatching(obj):
            return _dispatching, (obj.registry[object], dict(obj.registry))
        reduced = super().reducer_override(obj)
        if reduced is NotImplemented and _pickles_itself(kind) and _module_of(obj) == "__main__":
            reduced = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if isinstance(reduced, str):
                raise pickle.PicklingError("it can only be found by its name, in this session")
        return reduced


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


_CACHED = type(functools.lru_cache(len))


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    """What `functools.lru_cache` makes, which pickles itself by its name. The cache begins empty."""
    return functools.lru_cache(**parameters)(function)


def _is_dispatching(obj: Any) -> bool:
    """Whether it is made by `functools.singledispatch`, with weak references to types that it has seen."""
    return (
        type(obj) is types.FunctionType
        and obj.__code__.co_filename == functools.__file__
        and {"registry", "dispatch", "register"} <= obj.__dict__.keys()
    )


def _dispatching(function: Any, registry: Mapping[type, Any]) -> Any:
    made: Any = functools.singledispatch(function)
    for kind, implementation in registry.items():
        made.register(kind, implementation)
    return made


def _pickles_itself(kind: type) -> bool:
    methods: list[tuple[Any, Any]] = [
        (kind.__reduce__, object.__reduce__),
        (kind.__reduce_ex__, object.__reduce_ex__),
    ]
    return kind not in Pickler.dispatch_table and any(own is not base for own, base in methods)


def _module_of(obj: Any) -> Any:
    try:
        return obj.__module__
    except Exception:  # of the user's code
        return None


def _reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    """The content is the state, since it may refer to the function that has the cell."""
    try:
        content = cell.cell_contents
    except ValueError:
        return types.CellType, ()
    return types.CellType, (), (content,), None, None, _set_cell_state


def _set_cell_state(cell: types.CellType, state: tuple[Any]) -> None:
    cell.cell_contents = state[0]
