"""Random DataFrames, as expressions over the names of `frame_source.py`.

Values stand in lists of `rows` items, so that columns, categories, row labels and levels of all dtypes are
made of the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from hypothesis import strategies as st

Expressions: TypeAlias = st.SearchStrategy[str]
MAX_ROWS = 5

TEXTS = [
    *(
        "''",
        "'a'",
        "'b'",
        "'ü日\\U0001f600'",
        "'a\\x00b'",
        "' x '",
        "'1'",
        "'nan'",
        "'line\\nline'",
    ),
    *("'\\r'", "'a,b'", "'\"'", "'NA'", "'|'", "'a' * 300"),
]
SURROGATES = ["'\\udcff'", "'a\\ud800'"]
INTS = ["0", "1", "-1", "7", "127", "2**31", "2**53 + 1", "2**60 + 1", "-2**63", "2**63 - 1"]
LARGE_INTS = ["2**64", "-10**30", "10**5000"]
FLOATS = [
    *("0.0", "-0.0", "1.5", "0.1", "1e300", "5e-324", "123456789.123456789", "2.0**60"),
    *("float('nan')", "float('inf')", "-float('inf')"),
]
DATES = ["dt.date(2020, 1, 2)", "dt.date(1, 1, 1)", "dt.date(9999, 12, 31)"]
TIMES = ["dt.time(1, 2, 3, 4)", "dt.time(0)", "dt.time(23, 59, 59)"]
DATETIMES = ["dt.datetime(2020, 1, 2, 3, 4, 5, 6)", "dt.datetime(1900, 1, 1)"]
DECIMALS = ["Decimal('1.5')", "Decimal('-2.25')", "Decimal('0')", "Decimal('1e10')"]
BYTES = ["b''", "b'\\xff\\x00'", "b'abc'"]
ODD = [
    *("uuid.UUID(int=7)", "Fraction(1, 3)", "Color.RED", "{1, 2}", "frozenset('ab')", "(1, 'a')"),
    *("1j", "complex(0, float('nan'))", "range(3)", "bytearray(b'a')", "dt.timedelta(1, 2, 3)"),
    *("np.float32(0.1)", "np.int64(3)", "np.str_('x')", "np.bool_(True)", "np.array([1.5, 2])"),
    *("np.datetime64('2020-01-01')", "np.array([[1, 2]], 'int8')", "np.array([], 'float32')"),
    *("pd.Timestamp('2020-01-01', tz='Europe/Rome')", "pd.Timedelta('1ns')", "pd.Timestamp(1)"),
    *("pd.Period('2020-01', 'M')", "pd.Interval(0, 1)", "pd.NA", "pd.NaT", "object", "len"),
    *(
        "{'k': [1, None]}",
        "{1: 'a'}",
        "{}",
        "[1, 2.5]",
        "[1, [2, [3]]]",
        "[]",
        "[None]",
        "{'b': b'x'}",
    ),
    *(
        "Decimal('NaN')",
        "Decimal('Infinity')",
        "dt.time(1, tzinfo=dt.UTC)",
        "pd.DataFrame({'a': [1]})",
    ),
    *(
        "dt.datetime(2020, 1, 2, tzinfo=dt.UTC)",
        "slice(1)",
        "dt.date",
        "float('nan')",
        "None",
        "True",
    ),
    *("dt.datetime(2020, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo('Europe/Rome'), fold=1)",),
]
OBJECTS = [*ODD, *TEXTS, *SURROGATES, *INTS, *LARGE_INTS, *FLOATS, *DATES, *DECIMALS, *BYTES]
ZONES = [
    *("'UTC'", "'Asia/Tokyo'", "'Europe/Rome'", "'-03:30'", "zoneinfo.ZoneInfo('UTC')"),
    *("dt.timezone(dt.timedelta(hours=1, minutes=30))", "dt.timezone(dt.timedelta(seconds=-3723))"),
]
UNITS = ["s", "ms", "us", "ns"]
PERIODS = ["M", "D", "h", "Q-MAR", "Y", "W-SUN", "s"]


def listed(items: Sequence[str], rows: int, missing: str | None = None) -> Expressions:
    """A list of so many of the items, some of them the missing value."""
    if missing is not None:
        items = [*items, missing]
    parts = st.lists(st.sampled_from(items), min_size=rows, max_size=rows)
    return parts.map(lambda parts: f"[{', '.join(parts)}]")


def _of(form: str, *parts: Expressions) -> Expressions:
    """The form with the parts in the places of {0}, {1} and so on."""
    return st.tuples(*parts).map(lambda parts: form.format(*parts))


def _choice(*choices: str) -> Expressions:
    return st.sampled_from(choices)


def _smaller(items: Sequence[str], bound: int) -> list[str]:
    return [item for item in items if -bound <= eval(item) < bound]


def numbers(rows: int) -> list[Expressions]:
    """Values of numpy's dtypes and of the nullable ones."""
    made = []
    for bits in (8, 16, 32, 64):
        signed = _smaller(INTS, 2 ** (bits - 1))
        unsigned = [item for item in signed if eval(item) >= 0]
        for kind, items in (("Int", signed), ("UInt", unsigned)):
            name = f"{kind}{bits}"
            made.append(_of(f"pd.array({{0}}, '{name.lower()}')", listed(items, rows)))
            made.append(_of(f"pd.array({{0}}, '{name}')", listed(items, rows, "None")))
    plain = FLOATS[:5]
    for bits in (32, 64):
        made.append(_of(f"np.array({{0}}, 'float{bits}')", listed(FLOATS, rows)))
        made.append(_of(f"pd.array({{0}}, 'Float{bits}')", listed(plain, rows, "None")))
    made.append(
        _of(
            "pd.arrays.FloatingArray(np.array({0}, float), np.array({1}, bool))",
            listed(FLOATS, rows),
            listed(["True", "False"], rows),
        )
    )
    made.append(_of("np.array({0}, 'float16')", listed(["0.0", "1.5", "float('nan')"], rows)))
    made.append(_of("np.array({0}, bool)", listed(["True", "False"], rows)))
    made.append(_of("pd.array({0}, 'boolean')", listed(["True", "False"], rows, "None")))
    return made


def times(rows: int) -> list[Expressions]:
    """Timestamps, durations, periods and intervals."""
    counts = [
        "0",
        "1",
        "-1",
        "10**9",
        "1577934245",
        "-3 * 10**9",
        "-2**40",
    ]  # 1874: Rome is at 00:49:56
    unit = _choice(*UNITS)
    naive = _of("np.array({0}, 'M8[{1}]')", listed(counts, rows, "'NaT'"), unit)
    return [
        naive,
        _of("pd.DatetimeIndex({0}).tz_localize('UTC').tz_convert({1})", naive, _choice(*ZONES)),
        _of("np.array({0}, 'm8[{1}]')", listed(counts, rows, "'NaT'"), unit),
        _of(
            "pd.arrays.PeriodArray(np.array({0}, 'i8'), dtype='period[{1}]')",
            listed(["0", "600", "-5"], rows, "pd.NaT._value"),
            _choice(*PERIODS),
        ),
        _of(
            "pd.arrays.IntervalArray.from_tuples({0}, closed='{1}')",
            listed(["(0, 1)", "(1, 2)", "(2, 5)"], rows, "None"),
            _choice("left", "right", "both", "neither"),
        ),
        _of(
            "pd.arrays.IntervalArray.from_arrays({0}, np.array({0}) + 0.5)",
            listed(["0.0", "1.5", "2.5"], rows),
        ),
    ]


def texts(rows: int) -> list[Expressions]:
    return [
        _of("pd.array({0}, 'str')", listed(TEXTS, rows, "None")),
        _of("pd.array({0}, 'string')", listed(TEXTS, rows, "None")),
        _of("pd.array({0}, pd.StringDtype('python'))", listed(TEXTS, rows, "None")),
        _of("objects({0})", listed(TEXTS, rows, "None")),
        _of("objects({0})", listed([*TEXTS, *SURROGATES], rows, "float('nan')")),
    ]


ARROW_TYPES: list[tuple[str, list[str]]] = [
    ("pa.int8()", ["1", "-1"]),
    ("pa.uint64()", ["0", "2**64 - 1"]),
    ("pa.float32()", ["0.5", "float('nan')"]),
    ("pa.bool_()", ["True", "False"]),
    ("pa.string()", TEXTS),
    ("pa.large_string()", TEXTS),
    ("pa.string_view()", TEXTS),
    ("pa.binary()", BYTES),
    ("pa.binary(3)", ["b'abc'", "b'\\xff\\x00\\x01'"]),
    ("pa.binary_view()", BYTES),
    ("pa.decimal128(20, 3)", DECIMALS),
    ("pa.decimal256(50, 3)", DECIMALS),
    ("pa.date32()", DATES),
    ("pa.date64()", DATES),
    ("pa.time32('s')", ["dt.time(1, 2, 3)"]),
    ("pa.time64('us')", TIMES),
    ("pa.time64('ns')", ["1", "10**9 + 1"]),
    ("pa.timestamp('ns')", ["0", "1"]),
    ("pa.timestamp('s', 'Asia/Tokyo')", ["0", "1577934245", "2**40"]),
    ("pa.duration('us')", ["0", "-1"]),
    ("pa.month_day_nano_interval()", ["pa.MonthDayNano([1, -2, 3])"]),
    ("pa.list_(pa.int64())", ["[1, None, 2**60 + 1]", "[]", "list(range(200))"]),
    ("pa.large_list(pa.string())", ["['a', None]", "[]"]),
    ("pa.list_(pa.int8(), 2)", ["[1, 2]", "[None, 3]"]),
    ("pa.struct([('a', pa.int8()), ('b', pa.list_(pa.binary()))])", ["{'a': 1, 'b': [b'\\xff']}"]),
    ("pa.map_(pa.string(), pa.int8())", ["[('a', 1)]", "[]"]),
    ("pa.null()", ["None"]),
    ("pa.dictionary(pa.int8(), pa.string())", ["'a'", "'b'"]),
]


def arrow(rows: int) -> list[Expressions]:
    return [
        _of(
            f"pd.Series(pd.arrays.ArrowExtensionArray(pa.array({{0}}, {kind})))",
            listed(items, rows, "None"),
        )
        for kind, items in ARROW_TYPES
    ]


def unusual(rows: int) -> list[Expressions]:
    """Columns of Python objects, sparse columns and complex numbers."""
    mixed = listed(OBJECTS, rows)
    one = st.sampled_from(OBJECTS).flatmap(lambda item: listed([item], rows, "None"))
    alike = [
        *(TIMES, DATES, DATETIMES, DECIMALS, BYTES, INTS, LARGE_INTS, FLOATS, ["True", "False"]),
        *(["[1, 2]", "[]"], ["{'k': 1}", "{'k': None}"], ["1", "2.5"], ["1", "'a'"], ["1j", "2j"]),
    ]
    return [
        _of("objects({0})", mixed),
        _of("objects({0})", one),
        *(_of("objects({0})", listed(items, rows, "None")) for items in alike),
        *(_of("objects({0})", listed(items, rows, "float('nan')")) for items in alike),
        _of("objects({0})", listed(["'a'", "None", "float('nan')", "pd.NA"], rows)),
        _of(
            "np.array({0}, 'complex{1}')", listed(["1j", "-0.0", "2.5"], rows), _choice("64", "128")
        ),
        _of("pd.arrays.SparseArray({0})", listed(["0.0", "1.5", "float('nan')"], rows)),
        _of("pd.arrays.SparseArray(np.array({0}, 'int8'))", listed(["0", "3"], rows)),
        _of(
            "pd.arrays.SparseArray(np.array({0}, 'int32'), fill_value=7)", listed(["7", "3"], rows)
        ),
        _of("pd.arrays.SparseArray(np.array({0}, bool))", listed(["True", "False"], rows)),
    ]


def categories(rows: int) -> list[Expressions]:
    """Categoricals; their categories are any labels."""
    of = [
        *numbers(3),
        *times(3),
        *texts(3),
    ]  # some are no categories: pandas has no Index of float16
    codes = listed(["0", "1", "-1"], rows)
    made = [
        _of(
            "(lambda c: pd.Categorical.from_codes(np.minimum({0}, len(c) - 1), c, ordered={2}))"
            "(pd.Index({1}).dropna().unique())",
            codes,
            each,
            _choice("True", "False"),
        )
        for each in of
    ]
    return [*made, _of("pd.Categorical({0})", listed(["1", "'a'", "2.5", "None"], rows))]


ALL: list[Callable[[int], list[Expressions]]] = [numbers, times, texts, arrow, unusual, categories]


@cache
def columns(rows: int) -> Expressions:
    """A column; each of the kinds is as likely as the others."""
    return st.one_of(*(st.one_of(kind(rows)) for kind in ALL))


NAMES = ["None", "'n'", "0", "'c0'", "('a', 1)", "'level_0'", "''", "1.5", "'index'"]


@cache
def labels(count: int) -> Expressions:
    """Row labels or column labels."""
    name = _choice(*NAMES)
    flat = _of("pd.Index({0}, name={1})", columns(count), name)
    objects = _of(
        "pd.Index({0}, dtype=object, name={1}, tupleize_cols=False)", listed(OBJECTS, count), name
    )
    level = st.one_of(*(st.one_of(kind(count)) for kind in (numbers, times, texts, categories)))
    return st.one_of(
        flat,
        objects,
        _of("multi([{0}, {1}], [{2}, {3}])", level, level, name, name),
        _of("multi([{0}], [{1}])", level, name),
        _of(f"pd.RangeIndex({{0}}, {{0}} + {count}, name={{1}})", _choice("0", "5"), name),
        _of(f"pd.RangeIndex(0, {2 * count}, 2, name={{0}})", name),
        _of(
            f"pd.date_range('2020', periods={count}, freq='{{0}}', name={{1}})",
            _choice("D", "h", "B"),
            name,
        ),
        _of("pd.Index({0}, name={1})", listed(["'a'", "'b'", "'c0'", "''"], count), name),
    )


ATTRS = [*["None"] * 12, "{'unit': 'm'}", "{'n': [1, None, {'a': 2.5}]}", "{'t': (1,)}", "{1: 2}"]


@st.composite
def frames(draw: st.DrawFn) -> str:
    """An expression for a DataFrame."""
    rows = draw(st.integers(0, MAX_ROWS))
    width = draw(st.integers(0, 3))
    parts = ", ".join(draw(st.lists(columns(rows), min_size=width, max_size=width)))
    options = ""
    if draw(st.booleans()):
        options += f", labels={draw(labels(width))}"
    if draw(st.booleans()):
        options += f", index={draw(labels(rows))}"
    if (attrs := draw(st.sampled_from(ATTRS))) != "None":
        options += f", attrs={attrs}"
    if draw(st.integers(0, 9)) == 9:
        options += ", unique=True"
    return f"frame([{parts}]{options})"
