"""The properties and the preview of a table that `result_var` named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from . import notebook
from .protocol import events

if TYPE_CHECKING:
    import pandas

_DTYPES = re.compile(
    r"object|str|string|category|bool|boolean|complex(64|128)|period\[[\w-]+\]"
    r"|(u?int|U?Int|float|Float)(8|16|32|64)"
    r"|timedelta64\[\w+\]|datetime64\[\w+(, (?!dateutil)[\w/+:-]+)?\]"
)
_ARROW_DTYPES = re.compile(
    r"(bool|u?int(?:8|16|32|64)|float|double|string|large_string)\[pyarrow\]"
)
"""Names of the dtypes whose values can be made of their JSON. A dtype comes from the sandbox, as text."""
_UNFIT = (TypeError, ValueError, AttributeError, ArithmeticError, NotImplementedError, LookupError)
"""What pandas raises for values that a dtype does not have."""


class DataFrameInfo(events.DataFrame):
    """The properties of a table and its first rows, as records in `preview`; not the whole table.

    `await session.table(info.var_name)` fetches the whole table as a DataFrame. The fields are those
    of the protocol's `DataFrame`. `str()` gives the preview as markdown.
    """

    @classmethod
    def of(cls, table: events.DataFrame) -> DataFrameInfo:
        """The same facts, from the event of the protocol."""
        return msgspec.convert(table, cls, from_attributes=True)

    @property
    def title(self) -> str:
        """Its name, size and kind, in one line."""
        rows, columns = self.shape
        return f"{self.var_name}: {rows:,} rows × {columns:,} columns ({self.kind})"

    def preview_to_pandas(self) -> pandas.DataFrame:
        """Return the previewed rows, not the whole table, as a pandas DataFrame.

        For the whole table call `await session.table(info.var_name)`.

        Row and column labels are those of the table, also duplicates and MultiIndexes. Columns of numbers,
        bools, texts, timestamps, durations and periods get their dtypes (with missing values a nullable
        one in place of `int64` or `bool`). Categories are those of the previewed values. Other columns hold
        the values of `preview`, in the forms of JSON: bytes are base64, intervals are text.

        Raises:
            ImportError: pandas is not installed; `pip install kernelbroker[pandas]`.
        """
        try:
            import pandas
        except ImportError as exc:
            raise ImportError(
                "preview_to_pandas needs pandas: pip install 'kernelbroker[pandas]'"
            ) from exc

        previewed = [key for key in self.columns if not self.preview or key in self.preview[0]]
        columns = {
            position: _series([row[key] for row in self.preview], self.dtypes.get(key))
            for position, key in enumerate(previewed)
        }
        frame = pandas.DataFrame(columns, index=range(len(self.preview)))
        frame.columns = _labels(
            [_hashable(label) for label in self.labels or previewed][: len(previewed)]
        )
        if self.index is not None:
            frame.index = _index(self.index)
        return frame

    def __str__(self) -> str:
        return self.markdown

    # No _repr_markdown_: markdown may hold HTML and links, and a notebook trusts its own output.
    def _repr_html_(self) -> str:
        return notebook.table_html(self, self.title)


def _labels(labels: list[Any]) -> pandas.Index[Any]:
    import pandas

    if not labels:
        return pandas.Index([], dtype=object)
    try:
        if all(isinstance(label, tuple) for label in labels):
            return pandas.MultiIndex.from_tuples(labels)
        return pandas.Index(labels)
    except _UNFIT:  # dicts, or texts with lone surrogates
        return pandas.Index(labels, dtype=object, tupleize_cols=False)


def _series(values: list[Any], name: str | None) -> pandas.Series[Any]:
    """The values as the dtype of that name if it can be, else as pandas would have them."""
    import pandas

    plain = pandas.Series(values, dtype=object)
    try:
        dtype = _dtype(name or "object", is_complete=None not in values)
        if dtype is not None:
            typed = plain.astype(dtype)
            if typed.isna().equals(plain.isna()):
                return typed
    except _UNFIT:
        pass
    try:
        return plain.infer_objects()
    except UnicodeError:  # lone surrogates
        return plain


def _dtype(name: str, *, is_complete: bool) -> Any:
    """The dtype of that name, if the values can be made of their JSON; else None."""
    if found := _ARROW_DTYPES.fullmatch(name):
        import pandas
        import pyarrow

        return pandas.ArrowDtype(pyarrow.type_for_alias(found[1]))
    if not _DTYPES.fullmatch(name):
        return None
    if is_complete:
        return name
    return {"bool": "boolean"}.get(name) or re.sub(
        "^(u?)int", lambda found: found[1].upper() + "Int", name
    )


def _index(info: events.IndexInfo) -> pandas.Index[Any]:
    import pandas

    names = [_hashable(name) for name in info.names]
    if len(names) == 1:
        return pandas.Index(_series(info.values, info.dtypes[0]), name=names[0])
    levels = zip(*info.values, strict=True) if info.values else [()] * len(names)
    parts = [_series(list(level), dtype) for level, dtype in zip(levels, info.dtypes, strict=True)]
    try:
        return pandas.MultiIndex.from_arrays(parts, names=names)
    except _UNFIT:  # lists and dicts are no labels of a MultiIndex
        texts = [pandas.Series(list(map(str, part)), dtype=object) for part in parts]
        return pandas.MultiIndex.from_arrays(texts, names=names)


def _hashable(label: Any) -> Any:
    return tuple(map(_hashable, label)) if isinstance(label, list) else label
