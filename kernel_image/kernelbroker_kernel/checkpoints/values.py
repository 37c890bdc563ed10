"""How the variables of a session are saved and loaded: as parts, each for one variable or for a few.

A module is saved by its name, a plain array as npy, a plain table as Arrow, everything else as a pickle.
Variables that refer to each other's values are one part, so that they still do afterwards. A variable that
cannot be pickled is saved by its source if it is a function or a class, and is otherwise listed as missing.
Each part is loaded by itself: one that fails does not lose the others.
"""

from __future__ import annotations

import inspect
import io
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pickle import PickleBuffer
from types import FunctionType, ModuleType
from typing import IO, Any, TypedDict

from ..introspection import type_name
from ..rollback import OWN_NAME
from ..safe_repr import safe_text
from ..time_limit import TimeIsUp, time_limit
from . import plain

VALUE_S = 30.0
"""The time for saving or loading one part, which may run the user's code."""
MAX_VARIABLES = 10_000
MAX_SUBMODULES = 2_000
_REASON_CHARS = 300
_NAME_CHARS = 200
_SOURCE_CHARS = 100_000
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, ModuleType, type(...))
"""Types whose values need not stay one object."""
_ABSENT = object()


class Missing(TypedDict):
    name: str
    reason: str


class Part(TypedDict, total=False):
    """A part in the manifest. `kind` is `module`, `npy`, `arrow`, `pickle` or `source`.

    Attributes:
        sizes: the pickle and its buffers, or the one body of another kind, in bytes.
        has_code: only the same version of Python can load it.
        sources: source code, by name, that can be run in its place.
    """

    names: list[str]
    types: list[str]
    kind: str
    sizes: list[int]
    has_code: bool
    sources: dict[str, str]


@dataclass(slots=True)
class Body:
    """The data of a part: pieces of memory, or a range of the spool."""

    pieces: list[Any] = field(default_factory=list)
    spooled: tuple[int, int] | None = None


@dataclass(slots=True)
class _Pickled:
    body: Body
    sizes: list[int]
    links: set[str]
    has_code: bool


class Values:
    """The variables of a namespace, ready to be written.

    Args:
        hidden: names that IPython defined; see `variables.summarize`.
        spool: a file for the pickles, which may be larger than the free memory.

    Attributes:
        parts, bodies: the parts, and their data.
        missing: the variables that are not saved.
    """

    def __init__(
        self, names: Mapping[str, Any], hidden: Mapping[str, Any], spool: IO[bytes]
    ) -> None:
        self.parts: list[Part] = []
        self.bodies: list[Body] = []
        self.missing: list[Missing] = []
        self._names = names
        self._spool = spool
        held = _variables(names, hidden)
        for name in list(held)[MAX_VARIABLES:]:
            self._miss(name, f"more than {MAX_VARIABLES:,} variables")
            del held[name]
        self._owners = {
            id(value): name for name, value in held.items() if type(value) not in _ATOMS
        }
        self._held = held
        self._collect()

    @property
    def size(self) -> int:
        """Bytes of all data."""
        return sum(sum(part["sizes"]) for part in self.parts)

    def write(self, body: Body, sink: Any) -> None:
        if body.spooled is not None:
            start, size = body.spooled
            self._spool.seek(start)
            while size:
                data = self._spool.read(min(size, 1024 * 1024))
                if not data:
                    raise OSError("the spool is too short")
                sink.write(data)
                size -= len(data)
        for piece in body.pieces:
            if isinstance(piece, plain.Table):
                piece.write(sink)
            else:
                sink.write(piece)

    def _collect(self) -> None:
        pickled: dict[str, _Pickled] = {}
        plainly: dict[str, plain.Plain] = {}
        for name, value in self._held.items():
            if issubclass(type(value), ModuleType):
                self._add_module(name, value)
                continue
            try:
                with time_limit(VALUE_S):
                    if (found := plain.of(value)) is not None:
                        plainly[name] = found
                    else:
                        pickled[name] = self._pickle(value, {name})
            except BaseException as error:
                self._failed(name, value, error)
        for group in self._groups(pickled, plainly):
            self._add_group(group, pickled, plainly)

    def _groups(
        self, pickled: Mapping[str, _Pickled], plainly: Mapping[str, plain.Plain]
    ) -> list[list[str]]:
        """The names that belong together, in the order of the namespace."""
        leader: dict[str, str] = {name: name for name in [*pickled, *plainly]}

        def find(name: str) -> str:
            while leader[name] != name:
                name = leader[name]
            return name

        for name in leader:
            links = set(pickled[name].links) if name in pickled else set()
            if (owner := self._owners.get(id(self._held[name]))) is not None:
                links.add(owner)  # two names of one value
            for link in links & leader.keys():
                leader[find(name)] = find(link)
        groups: dict[str, list[str]] = {}
        for name in self._held:
            if name in leader:
                groups.setdefault(find(name), []).append(name)
        return list(groups.values())

    def _add_group(
        self,
        group: list[str],
        pickled: Mapping[str, _Pickled],
        plainly: Mapping[str, plain.Plain],
    ) -> None:
        if len(group) > 1:
            try:
                with time_limit(VALUE_S):
                    values = {name: self._held[name] for name in group}
                    self._add_pickle(group, self._pickle(values, set(group)))
                return
            except KeyboardInterrupt as error:
                if not isinstance(error, TimeIsUp):
                    raise
            except BaseException:  # each can be saved by itself
                pass
        for name in group:
            if (found := plainly.get(name)) is not None:
                part: Part = {"names": [name], "kind": found.kind, "sizes": [found.size]}
                self._add(part, Body([*found.pieces]))
            else:
                self._add_pickle([name], pickled[name])

    def _pickle(self, value: Any, own: set[str]) -> _Pickled:
        from .pickling import Pickler

        start = self._spool.seek(0, 2)
        pickler = Pickler(self._spool, self._names, self._owners)
        try:
            pickler.dump(value)
            buffers = [PickleBuffer(each).raw() for each in pickler.buffers]
        except BaseException:
            self._spool.seek(start)
            self._spool.truncate()
            raise
        size = self._spool.tell() - start
        body = Body(list(buffers), (start, size))
        sizes = [size, *(buffer.nbytes for buffer in buffers)]
        return _Pickled(body, sizes, pickler.links - own, pickler.has_code)

    def _add_pickle(self, group: list[str], done: _Pickled) -> None:
        part: Part = {"names": group, "kind": "pickle", "sizes": done.sizes}
        if done.has_code:
            part["has_code"] = True
            sources = {name: _source(name, self._held[name]) for name in group}
            part["sources"] = {name: text for name, text in sources.items() if text is not None}
        self._add(part, done.body)

    def _add_module(self, name: str, module: ModuleType) -> None:
        known = getattr(module, "__name__", None)
        if type(known) is str and sys.modules.get(known) is module:
            text = "\n".join([known, *_submodules(known)]).encode()
            self._add({"names": [name], "kind": "module", "sizes": [len(text)]}, Body([text]))
        else:
            self._miss(name, "a module that cannot be imported by its name")

    def _failed(self, name: str, value: object, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, TimeIsUp):
            raise error
        if (source := _source(name, value)) is not None:
            data = source.encode()
            self._add({"names": [name], "kind": "source", "sizes": [len(data)]}, Body([data]))
        else:
            self._miss(name, _reason(error))

    def _add(self, part: Part, body: Body) -> None:
        part["types"] = [type_name(self._held[name])[:_NAME_CHARS] for name in part["names"]]
        self.parts.append(part)
        self.bodies.append(body)

    def _miss(self, name: str, reason: str) -> None:
        self.missing.append({"name": name[:_NAME_CHARS], "reason": reason})


def load(
    part: Part, data: list[bytearray], names: MutableMapping[str, Any], *, same_python: bool
) -> Iterator[Missing]:
    """Load a part into a namespace. Yields the names that could not be loaded.

    Args:
        data: its pieces, of `part["sizes"]`.
        same_python: the checkpoint was saved with the present version of Python.
    """
    sources = part.get("sources", {})
    reason = "it has code that only the version of Python that saved it can load"
    if same_python or not part.get("has_code"):
        try:
            with time_limit(VALUE_S):
                names.update(_loaded(part, data, names))
            return
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and not isinstance(error, TimeIsUp):
                raise
            reason = _reason(error)
    for name in part["names"]:
        if name in sources:
            yield from _run_source(name, sources[name], names)
        else:
            yield {"name": name, "reason": reason}


def _loaded(part: Part, data: list[bytearray], names: MutableMapping[str, Any]) -> dict[str, Any]:
    own = part["names"]
    match part["kind"]:
        case "module":
            module, *submodules = data[0].decode().split("\n")
            found = import_module(module)
            for submodule in submodules:
                with suppress(Exception):
                    import_module(submodule)
            return {own[0]: found}
        case "source":
            exec(compile(data[0].decode(), "<checkpoint>", "exec"), names)  # type: ignore[arg-type]
            return {}
        case "pickle":
            from .pickling import Unpickler

            value = Unpickler(io.BytesIO(data[0]), names, data[1:]).load()
            return {own[0]: value} if len(own) == 1 else value
        case kind:
            return {own[0]: plain.load(kind, data[0])}


def _run_source(name: str, text: str, names: MutableMapping[str, Any]) -> Iterator[Missing]:
    part: Part = {"names": [name], "kind": "source", "sizes": []}
    yield from load(part, [bytearray(text.encode())], names, same_python=True)


def _variables(names: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of the user, without what IPython defined."""
    return {
        name: value
        for name, value in dict(names).items()  # a copy: a user's thread may add names
        if type(name) is str
        and not OWN_NAME.fullmatch(name)
        and hidden.get(name, _ABSENT) is not value
    }


def _submodules(module: str) -> list[str]:
    """The loaded submodules, which are attributes of the module that its import alone need not set."""
    inside = f"{module}."
    names = [name for name in list(sys.modules) if name.startswith(inside) and "._" not in name]
    return names[:MAX_SUBMODULES]


def _source(name: str, value: object) -> str | None:
    """The source of a function without a closure or of a class that a cell defined under this name."""
    if not isinstance(value, type | FunctionType) or value.__module__ != "__main__":
        return None
    if value.__qualname__ != name or getattr(value, "__closure__", None):
        return None
    try:
        text = inspect.getsource(value)
    except (OSError, TypeError, SyntaxError):
        return None
    return text if len(text) <= _SOURCE_CHARS else None


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeIsUp):
        return f"it took longer than {VALUE_S:g} s"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    if isinstance(error, ModuleNotFoundError):
        return f"the module {safe_text(error.name, 100)} is not installed here"
    return (safe_text(error, _REASON_CHARS) or type_name(error)).strip()
