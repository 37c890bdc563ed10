"""What `pyarrow.Table.from_pandas` makes of a DataFrame, by a shorter way.

It looks at each float by itself for missing values, which takes 30 times as long as numpy does.
Columns without any pass it as whole numbers, in the same memory.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from .objects import is_a


def converted(frame: Any, untyped: Collection[int] = ()) -> Any:
    """The table. What stands beside it names no pandas type for the columns at `untyped`.

    Raises what pyarrow raises for values that it has no type for.
    """
    import numpy
    import pandas
    import pyarrow

    complete: dict[int, Any] = {}
    for place, dtype in enumerate(frame.dtypes):
        if dtype == numpy.float64 and is_a(dtype, "numpy", "dtype"):
            values = frame.iloc[:, place].to_numpy()
            if not numpy.isnan(values).any():
                complete[place] = values
    if not complete and not untyped:
        return pyarrow.Table.from_pandas(frame)
    passing = frame.copy(deep=False)
    for place, values in complete.items():
        numbers = pandas.Series(values.view(numpy.int64), frame.index, copy=False)
        passing.isetitem(place, numbers)
    table = pyarrow.Table.from_pandas(passing)
    described = json.loads(table.schema.metadata[b"pandas"])
    for place, values in complete.items():
        field = table.schema.field(place).with_type(pyarrow.float64())
        table = table.set_column(place, field, pyarrow.array(values))
        described["columns"][place] |= {"pandas_type": "float64", "numpy_type": "float64"}
    for place in untyped:
        described["columns"][place]["numpy_type"] = "object"
    return table.replace_schema_metadata(
        table.schema.metadata | {b"pandas": json.dumps(described).encode()}
    )
