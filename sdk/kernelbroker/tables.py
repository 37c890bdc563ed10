"""The preview of a table that a variable held, to look at and to work on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import notebook
from .protocol import events

if TYPE_CHECKING:
    import pandas


class DataFrameInfo(events.DataFrame):
    """A table that `result_var` named: its facts, and its first rows as records in `preview`.

    The fields are those of the protocol's `DataFrame`. `str()` gives the markdown.
    """

    @property
    def title(self) -> str:
        """Its name, size and kind, in one line."""
        rows, columns = self.shape
        return f"{self.var_name}: {rows:,} rows × {columns:,} columns ({self.kind})"

    def to_pandas(self) -> pandas.DataFrame:
        """The preview, not the whole table, as a pandas DataFrame.

        Row and column labels are the true ones, duplicates and MultiIndexes too. Each column gets its
        dtype where the values that JSON carried allow it without inventing or losing a missing one.

        Raises:
            ImportError: pandas is not installed; `pip install kernelbroker[pandas]`.
        """
        try:
            import pandas
        except ImportError as exc:
            raise ImportError("to_pandas needs pandas: pip install 'kernelbroker[pandas]'") from exc

        previewed = [key for key in self.columns if not self.preview or key in self.preview[0]]
        columns = {
            position: _series([row[key] for row in self.preview], self.dtypes.get(key))
            for position, key in enumerate(previewed)
        }
        frame = pandas.DataFrame(columns, index=range(len(self.preview)))
        labels = [_hashable(label) for label in self.labels or self.columns][: len(previewed)]
        if labels and all(isinstance(label, tuple) for label in labels):
            frame.columns = pandas.MultiIndex.from_tuples(labels)
        else:
            frame.columns = pandas.Index(labels, dtype=None if labels else object)
        if self.index is not None:
            frame.index = _index(self.index)
        return frame

    def __str__(self) -> str:
        return self.markdown

    # No _repr_markdown_: markdown may hold HTML and links, and a notebook trusts its own output.
    def _repr_html_(self) -> str:
        return notebook.table_html(self)


def _series(values: list[Any], dtype: str | None) -> pandas.Series[Any]:
    """The values as that dtype if it can be, else as pandas would have them."""
    import pandas

    plain = pandas.Series(values, dtype=object)
    try:
        typed = plain.astype(dtype or object)
    except (TypeError, ValueError, AttributeError, OverflowError):
        typed = None
    if typed is None or not typed.isna().equals(plain.isna()):
        return plain.infer_objects()
    return typed


def _index(info: events.IndexInfo) -> pandas.Index[Any]:
    import pandas

    names = [_hashable(name) for name in info.names]
    if len(names) == 1:
        return pandas.Index(_series(info.values, info.dtypes[0]), name=names[0])
    levels = zip(*info.values, strict=True) if info.values else [()] * len(names)
    return pandas.MultiIndex.from_arrays(
        [_series(list(level), dtype) for level, dtype in zip(levels, info.dtypes, strict=True)],
        names=names,
    )


def _hashable(label: Any) -> Any:
    return tuple(map(_hashable, label)) if isinstance(label, list) else label
