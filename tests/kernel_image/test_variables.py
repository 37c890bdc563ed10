"""The summary of a session's variables: correct, bounded, and without running user code."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, UserList, deque
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from kernelbroker.protocol import events
from kernelbroker_kernel.variables import summarize


class Trap(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit


class Hostile(metaclass=Trap):
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit

    def __len__(self) -> int:
        raise SystemExit

    __repr__ = __str__ = __hash__ = __len__  # type: ignore[assignment]


class MyList(list[int]):
    def __len__(self) -> int:
        raise SystemExit


class MyFrame(pd.DataFrame):
    @property
    def shape(self) -> Any:
        raise SystemExit


class LazyModule(ModuleType):
    pass


CASES: list[tuple[Any, dict[str, Any]]] = [
    (1, {"type": "int"}),
    (None, {"type": "NoneType"}),
    ("abc", {"type": "str", "length": 3}),
    (b"ab", {"type": "bytes", "length": 2}),
    ([1, 2], {"type": "list", "length": 2}),
    ({}, {"type": "dict", "length": 0}),
    (range(10**30), {"type": "range"}),
    (deque([1]), {"type": "deque", "length": 1}),
    (Counter("ab"), {"type": "Counter", "length": 2}),
    (OrderedDict(a=1), {"type": "OrderedDict", "length": 1}),
    (UserList([1]), {"type": "UserList"}),
    (MyList([1]), {"type": "MyList"}),
    (Hostile(), {"type": "Hostile"}),
    (Hostile, {"type": "type"}),
    (int, {"type": "type"}),
    (type("x" * 500, (), {})(), {"type": "x" * 100}),
    (lambda: None, {"type": "function"}),
    (len, {"type": "builtin_function_or_method"}),
    (np.zeros((2, 3)), {"type": "ndarray", "shape": [2, 3]}),
    (np.float64(1), {"type": "float64"}),
    (pd.DataFrame({"a": [1]}), {"type": "DataFrame", "shape": [1, 1]}),
    (MyFrame({"a": [1]}), {"type": "MyFrame", "shape": [1, 1]}),
    (pd.Series([1, 2]), {"type": "Series", "shape": [2]}),
    (pl.DataFrame({"a": [1]}), {"type": "DataFrame", "shape": [1, 1]}),
    (pl.Series([1]), {"type": "Series", "shape": [1]}),
    (pa.table({"a": [1]}), {"type": "Table", "shape": [1, 1]}),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=[case[1]["type"][:30] for case in CASES])
def test_summary_of_a_variable(value: object, expected: dict[str, Any]) -> None:
    """A variable has its type, and its shape or length if these are known without running user code."""
    found, dropped = summarize({"name": value}, {}, 100)
    assert found == [{"name": "name", **expected}]
    assert dropped == 0
    json.dumps(found, allow_nan=False)
    msgspec.convert(found, list[events.Variable])


@pytest.mark.parametrize("name", ["_", "_i1", "__x", "_private", 5, ("a",)])
def test_private_names_are_left_out(name: Any) -> None:
    """Names that start with an underscore, or are no texts, are left out."""
    assert summarize({name: 1}, {}, 100) == ([], 0)


@pytest.mark.parametrize("module", [json, LazyModule("lazy")])
def test_modules_are_left_out(module: ModuleType) -> None:
    """Modules are left out."""
    assert summarize({"module": module}, {}, 100) == ([], 0)


def test_predefined_names_are_left_out_until_rebound() -> None:
    """IPython's own names are left out until the user rebinds them."""
    found, _ = summarize({"In": [], "exit": 5}, {"In": [], "exit": exit}, 100)
    assert [variable["name"] for variable in found] == ["In", "exit"]
    own: list[str] = []
    assert summarize({"In": own}, {"In": own}, 100) == ([], 0)


@pytest.mark.parametrize(
    ("limit", "names", "dropped"), [(3, ["a", "b", "c"], 0), (2, ["b", "c"], 1), (0, [], 3)]
)
def test_newest_variables_within_the_limit(limit: int, names: list[str], dropped: int) -> None:
    """The newest names are kept within the limit, and the others counted."""
    found, more = summarize({"a": 1, "_x": 1, "b": 1, "c": 1}, {}, limit)
    assert [variable["name"] for variable in found] == names
    assert more == dropped
