"""Any single value becomes strict JSON."""

from __future__ import annotations

import enum
import json
import sys
import uuid
from collections import deque
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kernelbroker_kernel.safe_repr import safe_repr
from kernelbroker_kernel.values import CELL, Converter, json_size, unique


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


class Pair(NamedTuple):
    left: int
    right: int


class MisleadingObject(list[int]):
    def __iter__(self) -> Any:
        raise SystemExit

    def __len__(self) -> int:
        raise SystemExit


class Broken:
    def __repr__(self) -> str:
        sys.exit(1)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise OSError

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError


CASES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (1.5, 1.5),
    (2**70, 2**70),
    (float("nan"), None),
    (float("inf"), "Infinity"),
    (-np.inf, "-Infinity"),
    (1 + 2j, "(1+2j)"),
    ("täxt\ud800", "täxt\ud800"),
    (b"ab", "YWI="),
    (bytearray(b"ab"), "YWI="),
    (memoryview(b"ab"), "YWI="),
    (Decimal("1.50"), "1.50"),
    (Decimal("NaN"), None),
    (Color.RED, "Color.RED"),
    (Level.HIGH, "Level.HIGH"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (PurePosixPath("/a/b"), "/a/b"),
    (date(2024, 2, 29), "2024-02-29"),
    (time(1, 2, 3), "01:02:03"),
    (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
    (timedelta(days=1, hours=2, microseconds=5), "P1DT2H0M0.000005S"),
    (timedelta(seconds=-1), "-P0DT0H0M1S"),
    (pd.Timestamp("2024-01-01 00:00:00.123456789"), "2024-01-01T00:00:00.123456789"),
    (pd.Timestamp("2024-07-01", tz="Europe/Berlin"), "2024-07-01T00:00:00+02:00"),
    (pd.Timedelta(1, "ns"), "P0DT0H0M0.000000001S"),
    (pd.NaT, None),
    (pd.NA, None),
    (pd.Period("2024-01"), "2024-01"),
    (pd.Interval(0, 1), "(0, 1]"),
    (np.float32(0.5), 0.5),
    (np.float64("nan"), None),
    (np.longdouble(2), 2.0),
    (np.int8(3), 3),
    (np.bool_(True), True),
    (np.complex64(1j), "1j"),
    (np.str_("x"), "x"),
    (np.datetime64("2024-01-01T00:00:00.000000001"), "2024-01-01T00:00:00.000000001"),
    (np.datetime64("NaT"), None),
    (np.timedelta64(2, "D"), "P2DT0H0M0S"),
    (np.timedelta64("NaT"), None),
    (np.ma.masked, None),
    (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
    (np.array("2024-01-01", dtype="M8[ns]"), "2024-01-01T00:00:00.000000000"),
    (np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]), [{"a": 1, "b": 2.0}]),
    (pa.scalar(Decimal("1.5")), "1.5"),
    (Pair(1, 2), [1, 2]),
    ({3}, [3]),
    (deque([1, deque([2])]), [1, [2]]),
    (MisleadingObject([1, 2]), [1, 2]),
    ({1: "a", "1": "b", None: "c", False: "d"}, {"1": "a", "1.1": "b", "null": "c", "false": "d"}),
    ({(1, 2): 3}, {"(1, 2)": 3}),
    (pd.DataFrame({"a": [1]}), "<DataFrame (1, 1)>"),
    (Fraction(1, 3), "1/3"),
    (10**5000, hex(10**5000)),
    (np.array([[1, 2], [3, 4]]).view(np.matrix), [[1, 2], [3, 4]]),
    (pa.scalar(3_723_000_000_001, pa.time64("ns")), "01:02:03.000000001"),
    (pa.scalar(3_723_000_000, pa.time64("us")), "01:02:03"),
    (range(3), "range(0, 3)"),
    (Broken(), "<Broken whose repr raised SystemExit>"),
    ([Broken()], ["<Broken whose repr raised SystemExit>"]),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=lambda case: type(case).__name__)
def test_json_form_of_values(value: Any, expected: Any) -> None:
    """Each kind of value has its JSON form."""
    converted = Converter(CELL).convert(value)
    json.dumps(converted, allow_nan=False)
    assert converted == expected
    assert type(converted) is type(expected)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        b"x" * 1_000_000,
        list(range(1_000_000)),
        {str(number): number for number in range(100_000)},
        np.zeros(1_000_000),
        np.zeros((50, 50, 50, 50)),
        CYCLE,
        [[[[list(range(100))] * 100] * 100] * 100] * 100,
        10**100_000,
        Exception("x" * 1_000_000),
    ],
    ids=["str", "bytes", "list", "dict", "array", "array4d", "cycle", "nested", "int", "repr"],
)
def test_values_are_cut_at_the_limits(value: Any) -> None:
    """A large value is cut, with a mark."""
    text = json.dumps(Converter(CELL).convert(value), allow_nan=False, ensure_ascii=False)
    assert "…" in text or "..." in text
    assert len(text) < 30_000


def test_cut_list_counts_the_rest() -> None:
    """A cut container has the number of items that are not shown."""
    assert Converter(CELL).convert(list(range(105)))[-1] == "… 5 more"
    assert Converter(CELL).convert(dict.fromkeys(range(105)))["…"] == "5 more"


def test_cut_values_are_counted() -> None:
    """The converter counts the values of which something was cut."""
    converter = Converter(CELL)
    for value in ("x" * 10_000, ["x" * 10_001, list(range(200))], b"x" * 10_001, 10**20_000, 1):
        converter.convert(value)
    assert converter.cut_values == 3


def test_interrupt_passes() -> None:
    """A repr that hangs can be interrupted."""

    class Hanging:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Converter(CELL).convert([Hanging()])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"b": 1, "a": [1, 2]}, "{'b': 1, 'a': [1, 2]}"),
        ({2}, "{2}"),
        (set(), "set()"),
        (frozenset({2}), "frozenset({2})"),
        (frozenset(), "frozenset()"),
        (np.array([1, 2]), "array([1, 2])"),
    ],
)
def test_repr_is_pythons(value: Any, expected: str) -> None:
    """A small value's repr is Python's."""
    assert safe_repr(value, 100) == expected == repr(value)


def test_repr_of_large_arrays_ignores_print_options() -> None:
    """A user's print options do not affect the repr of a large array."""
    with np.printoptions(threshold=sys.maxsize):
        assert len(safe_repr(np.zeros(100_000), 10_000)) < 1_000


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "a"], ["a", "a.1", "a.2"]),
        (["a", "a", "a.1"], ["a", "a.2", "a.1"]),
        (["a.1", "a", "a"], ["a.1", "a", "a.2"]),
    ],
)
def test_unique_keys(texts: list[str], expected: list[str]) -> None:
    """Repeated keys are numbered, and never replace another key."""
    assert unique(texts) == expected


def test_json_size_counts_utf8() -> None:
    """The size is that of UTF-8, with lone surrogates."""
    assert json_size("é") == 4
    assert json_size("\ud800") == 5
