"""The columns of a DataFrame as Arrow data: by a rule for their dtype, or by pyarrow.

pyarrow looks at each float for missing values, which takes 30 times as long as it takes numpy, so that
complete columns have a rule of their own. No column takes longer because there are many.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

from .changes import Changes, Part
from .errors import Refused
from .introspection import is_a
from .object_json import Encoder
from .safe_repr import safe_text
from .values import unique

CATEGORY_CHARS = 100_000
TEXT_CHARS = 1_000_000
_KEPT_TYPES = frozenset({str, int, float, bool, bytes, Decimal})
"""Types that Arrow keeps in a column of Python objects, if all are of one; decimals of one scale."""
_CHECKED_TYPES = frozenset({date, datetime, time, timedelta, list, dict})
"""Types that Arrow keeps for some values."""
_MAX_DEPTH = 50
"""Of nested lists and dicts that pyarrow converts."""

LabelsOf: TypeAlias = Callable[[Any, Part], dict[str, Any]]


def arrow_errors() -> tuple[type[Exception], ...]:
    """What pyarrow and pandas raise for values that Arrow has no type for."""
    import pyarrow

    return (
        *(pyarrow.ArrowException, TypeError, ValueError, OverflowError, KeyError),
        *(AttributeError, NotImplementedError),
    )


class Columns:
    """Makes the pyarrow Table of a DataFrame whose labels are unique texts.

    Args:
        parts: the names of the columns in messages, by position.
        labels_of: makes the metadata of categories.

    Attributes:
        metadata: of the columns, as `dataframes` describes it.
    """

    def __init__(self, parts: Callable[[int], Part], changes: Changes, labels_of: LabelsOf) -> None:
        import pandas

        self.metadata: dict[str, Any] = {}
        self._parts = parts
        self._changes = changes
        self._labels_of = labels_of
        self._arrays: dict[int, tuple[Any, str]] = {}
        self._is_kept: dict[Any, bool] = {}
        self._numpy_rules = {
            **dict.fromkeys("iubmM", self._plain),
            "f": self._floats,
            "c": self._complex,
            "O": self._objects,
        }
        self._rules: list[tuple[type, Callable[[int, Any], Any]]] = [
            (pandas.StringDtype, lambda _, column: column),
            (pandas.CategoricalDtype, self._categories),
            (pandas.ArrowDtype, self._arrow),
            (pandas.SparseDtype, self._sparse),
            (pandas.Float32Dtype, self._nullable_floats),
            (pandas.Float64Dtype, self._nullable_floats),
            (object, self._others),
        ]

    def table(self, frame: Any) -> Any:
        """The table. Raises Refused."""
        for_pyarrow: dict[int, Any] = {}
        for place, (_, column) in enumerate(frame.items()):
            if (column := self._converted(place, column)) is not None:
                for_pyarrow[place] = column
        try:
            return self._assembled(frame, for_pyarrow)
        except arrow_errors() as error:
            if not self._give_texts(for_pyarrow):
                reason = safe_text(error, 300)
                raise Refused("conflict", f"Arrow has no type for it: {reason}") from None
            return self._assembled(frame, for_pyarrow)

    def _converted(self, place: int, column: Any) -> Any:
        """The column as pyarrow shall convert it; None if it was converted by a rule."""
        dtype = column.dtype
        if is_a(dtype, "numpy", "dtype"):
            if not dtype.isnative:
                problem = f"is {dtype}, in another order of bytes than Arrow's"
                self._changes.add(self._parts(place), problem, "the machine's order")
                column = column.astype(dtype.newbyteorder("="))
            convert = self._numpy_rules.get(dtype.kind)
            return column if convert is None else convert(place, column)
        return next(rule for kind, rule in self._rules if isinstance(dtype, kind))(place, column)

    def _assembled(self, frame: Any, for_pyarrow: dict[int, Any]) -> Any:
        import pandas
        import pyarrow
        from pyarrow.pandas_compat import get_logical_type

        labels = frame.columns
        rest = pandas.DataFrame(
            {labels[place]: column for place, column in for_pyarrow.items()},
            index=frame.index,
            copy=False,
        )
        rest.columns = labels[list(for_pyarrow)]
        rest.attrs = frame.attrs
        table = pyarrow.Table.from_pandas(rest)
        if not self._arrays:
            return table
        metadata = json.loads(table.schema.metadata[b"pandas"])
        described = iter(metadata["columns"])
        converted = zip(table.columns, table.schema, strict=True)
        arrays, fields, descriptions = [], [], []
        for place, label in enumerate(labels):
            if place in self._arrays:
                array, numpy_type = self._arrays[place]
                field = pyarrow.field(label, array.type)
                names = {"name": label, "field_name": label}
                kind = {"pandas_type": get_logical_type(array.type), "numpy_type": numpy_type}
                description = {**names, **kind, "metadata": None}
            else:
                (array, field), description = next(converted), next(described)
            arrays.append(array)
            fields.append(field)
            descriptions.append(description)
        for array, field in converted:  # the row labels
            arrays.append(array)
            fields.append(field)
        metadata["columns"] = [*descriptions, *described]
        schema = table.schema.metadata | {b"pandas": json.dumps(metadata).encode()}
        return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields, schema))

    def _plain(self, place: int, column: Any) -> Any:
        import pyarrow

        self._arrays[place] = pyarrow.array(column.to_numpy()), str(column.dtype)
        return None

    def _floats(self, place: int, column: Any) -> Any:
        import numpy

        if column.dtype.itemsize > 8:
            return self._text(place, column, f"is {column.dtype}, which Arrow does not have")
        return column if numpy.isnan(column.to_numpy()).any() else self._plain(place, column)

    def _complex(self, place: int, column: Any) -> Any:
        import pyarrow

        if column.dtype.itemsize > 16:
            return self._text(place, column, f"is {column.dtype}, which Arrow does not have")
        values = column.to_numpy()
        parts = [pyarrow.array(values.real.copy()), pyarrow.array(values.imag.copy())]
        array = pyarrow.StructArray.from_arrays(parts, names=["real", "imag"])
        self._arrays[place] = array, "object"
        self.metadata.setdefault("complex", []).append(place)
        return None

    def _objects(self, place: int, column: Any) -> Any:
        import pyarrow

        array, missing = _as_one_type(column)
        if array is None:
            encoder = Encoder()
            texts = [None if value is None else encoder.dumps(value) for value in column.tolist()]
            if encoder.replaced:
                problem, remedy = encoder.described()
                self._changes.add(self._parts(place), problem, remedy)
            array, missing = pyarrow.array(texts, pyarrow.string()), "json"
        self._arrays[place] = array, "object"
        self.metadata.setdefault("objects", {})[place] = missing
        return None

    def _categories(self, place: int, column: Any) -> Any:
        true = column.cat.categories
        is_kept = true.name is None and (
            _is_text(true) or (is_a(true.dtype, "numpy", "dtype") and true.dtype.kind in "iufbM")
        )
        if not is_kept or not len(column):  # the stream of an empty table has no categories
            labels = self._labels_of(true, self._parts(place))
            self.metadata.setdefault("categories", {})[place] = labels
        if is_kept:
            return column
        return column.cat.rename_categories(
            unique(plain_text(each, CATEGORY_CHARS) for each in true)
        )

    def _arrow(self, place: int, column: Any) -> Any:
        import pyarrow

        self._arrays[place] = pyarrow.array(column.array), "object"
        self.metadata.setdefault("arrow", []).append(place)
        return None

    def _sparse(self, place: int, column: Any) -> Any:
        dense = column.sparse.to_dense()
        if column.dtype.subtype.kind in "iufb":
            fill = Encoder().encode(column.dtype.fill_value)
            self.metadata.setdefault("sparse", {})[place] = fill
        else:
            self._changes.add(self._parts(place), f"is {column.dtype}", "all values, not sparse")
        return self._converted(place, dense)

    def _nullable_floats(self, place: int, column: Any) -> Any:
        import numpy

        if numpy.isnan(column.to_numpy(dtype="float64", na_value=0.0)).any():
            self.metadata.setdefault("nan", []).append(place)
        return column

    def _others(self, place: int, column: Any) -> Any:
        dtype = column.dtype
        if dtype not in self._is_kept:
            self._is_kept[dtype] = _is_kept(column.iloc[:0])
        if self._is_kept[dtype]:
            return column
        if (zone := _zone_in_arrow(column)) is not None:  # the moments are the same
            if (was := safe_text(dtype.tz, 100)) != (now := safe_text(zone, 100)):
                problem = f"has the time zone {was}, which Arrow has as {now}"
                self._changes.add(self._parts(place), problem, f"the zone {now}")
            return column.dt.tz_convert(zone)
        return self._text(place, column, f"is {dtype}, of which Arrow makes another type")

    def _text(self, place: int, column: Any, problem: str) -> None:
        import pyarrow

        self._changes.add(self._parts(place), problem, "text")
        pairs = zip(column, column.isna().tolist(), strict=True)
        texts = [None if missing else plain_text(value, TEXT_CHARS) for value, missing in pairs]
        self._arrays[place] = pyarrow.array(texts, pyarrow.string()), "str"

    def _give_texts(self, for_pyarrow: dict[int, Any]) -> bool:
        """Convert the columns to text that pyarrow cannot convert. Returns whether there are any."""
        import pyarrow

        unfit = []
        for place, column in for_pyarrow.items():
            try:
                pyarrow.array(column, from_pandas=True)
            except arrow_errors() as error:
                unfit.append(place)
                self._text(place, column, f"does not fit into Arrow ({safe_text(error, 200)})")
        for place in unfit:
            del for_pyarrow[place]
        return bool(unfit)


def are_same(dtype: Any, other: Any) -> bool:
    """Whether two dtypes are the same, except for the way in which pandas stores texts."""
    import pandas

    if isinstance(dtype, pandas.StringDtype) and isinstance(other, pandas.StringDtype):
        return dtype.na_value is other.na_value
    if isinstance(dtype, pandas.CategoricalDtype) and isinstance(other, pandas.CategoricalDtype):
        # Categories of objects and of texts are equal.
        return dtype == other and are_same(dtype.categories.dtype, other.categories.dtype)
    return bool(dtype == other)


def plain_text(value: object, limit: int) -> str:
    """`str`, cut to `limit` characters, and without lone surrogates."""
    return safe_text(value, limit).encode("utf-8", "backslashreplace").decode()


def _is_kept(empty: Any) -> bool:
    """Whether a column of this dtype comes back as it was: seen by one without rows."""
    import pandas
    import pyarrow

    try:
        back = pyarrow.Table.from_pandas(pandas.DataFrame({"a": empty})).to_pandas()
    except arrow_errors():
        return False
    found = back.dtypes.iloc[0]
    # Time zones are equal to pandas whose names are not.
    return are_same(empty.dtype, found) and str(_zone(empty.dtype)) == str(_zone(found))


def _zone(dtype: Any) -> Any:
    return getattr(dtype, "tz", None)


def _zone_in_arrow(column: Any) -> Any:
    """The time zone that Arrow makes of the column's; None if that has none, or Arrow has none for it."""
    import pandas
    import pyarrow

    if not isinstance(column.dtype, pandas.DatetimeTZDtype):
        return None
    try:
        return _zone(pyarrow.array(column.iloc[:0], from_pandas=True).to_pandas().dtype)
    except arrow_errors():
        return None


def _is_text(index: Any) -> bool:
    """Whether the labels are texts in pandas' own type."""
    import pandas

    text = pandas.Index([], dtype="str").dtype
    return isinstance(text, pandas.StringDtype) and are_same(index.dtype, text)


def _as_one_type(column: Any) -> tuple[Any, str]:
    """A column of Python objects as an array, and what stands for missing; None if it would change."""
    import pyarrow

    is_missing = column.isna()
    missing = {type(item) if item is not None else None for item in column[is_missing].tolist()}
    if missing - {None} and missing != {float}:
        return None, ""
    items = column[~is_missing].tolist()
    kinds = set(map(type, items))
    if len(kinds) > 1 or not kinds <= _KEPT_TYPES | _CHECKED_TYPES or not _are_plain(items):
        return None, ""
    try:
        array = pyarrow.array(column, from_pandas=True)
        back = array.drop_null().to_pylist() if kinds & _CHECKED_TYPES else items
    except arrow_errors():
        return None, ""
    if back is not items and [*map(repr, back)] != [*map(repr, items)]:  # 1 equals 1.0
        return None, ""
    return array, "nan" if missing == {float} else "None"


def _are_plain(items: list[Any]) -> bool:
    """Whether all nested values are of plain types, and not too deep. pyarrow crashes on a cycle."""
    for _ in range(_MAX_DEPTH):
        nested = {id(item): item for item in items if type(item) in (list, dict)}
        items = [
            child
            for item in nested.values()
            for child in (item.values() if type(item) is dict else item)
        ]
        kinds = set(map(type, items))
        if not kinds <= _KEPT_TYPES | _CHECKED_TYPES | {type(None)}:
            return False
        if not kinds & {list, dict}:
            return True
    return False
