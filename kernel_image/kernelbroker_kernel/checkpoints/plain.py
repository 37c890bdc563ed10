"""Plain arrays and tables: saved as npy and as Arrow, which any version of their libraries can read.

Only what comes back exactly the same is plain: numbers, times and text, with plain labels. Everything else
is pickled.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

from ..introspection import is_a

_KINDS = "biufcmM"
"""Of numpy's dtypes."""


@dataclass(slots=True)
class Plain:
    """A value in a plain form. `kind` is `npy` or `arrow`; `size` is in bytes."""

    kind: str
    size: int
    pieces: list[Any]


class Table:
    """An Arrow table, written when it is its turn."""

    def __init__(self, table: Any) -> None:
        import pyarrow

        self._table = table
        counter = pyarrow.MockOutputStream()
        self._write(counter)
        self.size: int = counter.size()

    def write(self, sink: Any) -> None:
        import pyarrow

        self._write(pyarrow.PythonFile(sink, mode="w"))

    def _write(self, sink: Any) -> None:
        import pyarrow

        with pyarrow.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)


def of(value: object) -> Plain | None:
    """The plain form of a value; None if it has none."""
    if is_a(value, "numpy", "ndarray"):
        return _array(value)
    if is_a(value, "pandas", "DataFrame"):
        return _table(value)
    return None


def load(kind: str, data: bytearray) -> Any:
    if kind == "npy":
        return _load_array(data)
    import pyarrow

    return pyarrow.ipc.open_stream(pyarrow.py_buffer(data)).read_all().to_pandas()


def _array(value: Any) -> Plain | None:
    import numpy

    if type(value) is not numpy.ndarray or value.dtype.kind not in _KINDS:
        return None
    if not (value.flags.c_contiguous or value.flags.f_contiguous) or not value.flags.writeable:
        return None
    header = io.BytesIO()
    numpy.lib.format.write_array_header_2_0(
        header, numpy.lib.format.header_data_from_array_1_0(value)
    )
    flat: Any = value.reshape(-1, order="A").view("u1") if value.size else numpy.empty(0, "u1")
    body = memoryview(flat)
    return Plain("npy", header.tell() + body.nbytes, [header.getvalue(), body])


def _load_array(data: bytearray) -> Any:
    import numpy

    file = io.BytesIO(data)
    numpy.lib.format.read_magic(file)
    shape, fortran_order, dtype = numpy.lib.format.read_array_header_2_0(file)
    array = numpy.frombuffer(data, dtype, offset=file.tell())  # writable, as the data is
    return array.reshape(shape, order="F" if fortran_order else "C")


def _table(value: Any) -> Plain | None:
    import pandas
    import pyarrow

    if type(value) is not pandas.DataFrame or value.attrs:
        return None
    labels = list(value.columns)
    if not all(type(label) is str for label in labels) or len(set(labels)) < len(labels):
        return None
    if type(value.index) is not pandas.RangeIndex or value.index.name is not None:
        return None
    if type(value.columns) is not pandas.Index or not all(map(_is_plain, value.dtypes)):
        return None
    try:
        table = pyarrow.Table.from_pandas(value)
        again = table.slice(0, 0).to_pandas()
    except (pyarrow.ArrowException, ValueError, TypeError):
        return None
    if list(again.dtypes) != list(value.dtypes) or again.columns.dtype != value.columns.dtype:
        return None
    body = Table(table)
    return Plain("arrow", body.size, [body])


def _is_plain(dtype: Any) -> bool:
    import numpy
    import pandas

    if isinstance(dtype, numpy.dtype):
        return dtype.kind in "biufM"
    return isinstance(dtype, pandas.StringDtype | pandas.DatetimeTZDtype)
