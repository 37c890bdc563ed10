"""Tables and values of `result_var`: strict JSON, correct, and without cost for the cell."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, Measured, opened, whole_system

pytestmark = whole_system


async def report(broker: BrokerProcess, session_id: str, code: str, **options: Any) -> Any:
    """The result of a cell whose variable `x` is asked for, read as strictly as JSON can be."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    path = f"/api/v1/sessions/{session_id}/exec"
    body = {"code": code, "result_var": "x"} | options
    async with opened(broker, "POST", path, body, accept="application/json") as response:
        answer = json.loads(await response.rest(), parse_constant=refuse)
    result = answer["result"]
    assert result["success"], result["error"]
    assert answer["stderr"] == ""
    return result


async def test_size_does_not_matter(session: kernelbroker.Session, measured: Measured) -> None:
    """A frame of five million rows is reported in milliseconds."""
    made = await session.run(
        "import numpy as np, pandas as pd\n"
        "big = pd.DataFrame({'a': np.arange(5_000_000), 'b': np.random.rand(5_000_000),\n"
        "                    'c': pd.Categorical.from_codes(np.zeros(5_000_000, 'i1'), ['k'])})"
    )
    assert made.success, made.error

    async def seconds(**options: Any) -> float:
        loop = asyncio.get_running_loop()
        took = []
        for _ in range(7):
            began = loop.time()
            result = await session.run("pass", **options)
            took.append(loop.time() - began)
            assert result.success
        return min(took)

    without, with_it = await seconds(), await seconds(result_var="big")
    measured("a cell without, with a report of 5,000,000 rows", without, with_it)
    assert with_it - without < 0.15
    result = await session.run("pass", result_var="big", preview_rows=3)
    assert result.dataframe is not None
    assert result.dataframe.shape == (5_000_000, 3)
    assert [row["a"] for row in result.dataframe.preview] == [0, 1, 2]
    assert result.dataframe.memory_usage > 80_000_000


ODD_VALUES = """
import datetime, decimal, uuid
import numpy as np, pandas as pd
x = pd.DataFrame({
    "float": [1.5, float("nan"), float("inf"), -float("inf")],
    "time": pd.to_datetime(["2026-01-02T03:04:05", None, "1999-12-31T00:00:00", "2000-01-01T00:00:00"]),
    "zoned": pd.to_datetime(["2026-01-02T03:04:05+02:00"] * 4),
    "delta": pd.to_timedelta(["1 days 02:03:04", None, "0 days", "-1 days"]),
    "decimal": [decimal.Decimal("1.10"), decimal.Decimal("NaN"), None, decimal.Decimal("1e400")],
    "period": pd.period_range("2026-01", periods=4, freq="M"),
    "interval": pd.interval_range(0, 4),
    "category": pd.Categorical(["a", None, "b", "a"]),
    "bytes": [b"ab", b"\\xff", None, b""],
    "nested": [[1, [2, {"k": float("nan")}]], {"a": (1, 2)}, None, {3}],
    "big": [2**70, -2**70, 0, None],
    "bool": pd.array([True, None, False, True], dtype="boolean"),
    "int": pd.array([1, None, 2**62, 3], dtype="Int64"),
    "complex": [1 + 2j, None, 0j, 3j],
    "text": pd.Series(["</result>", "\\ud800", "|pipe|\\n", None], dtype=object),
    "date": [datetime.date(2026, 1, 2), None, datetime.time(3, 4), uuid.UUID(int=1)],
    "callable": [len, object, np, x_ := Exception("e")],
})
"""


async def test_unusual_values_of_columns(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """Every kind of value of a column is reported as JSON, and missing values stay missing."""
    result = await report(broker, session.session_id, ODD_VALUES)
    table = result["dataframe"]
    assert table["shape"] == [4, 17]
    rows = table["preview"]

    def column(name: str) -> list[Any]:
        return [row[name] for row in rows]

    assert column("float")[:2] == [1.5, None]
    assert all(value is None or isinstance(value, str) for value in column("float")[2:])
    assert column("time")[:3] == ["2026-01-02T03:04:05", None, "1999-12-31T00:00:00"]
    assert column("zoned")[0] == "2026-01-02T03:04:05+02:00"
    assert column("delta")[1] is None
    assert column("decimal")[0] == "1.10"
    assert column("period")[0] == "2026-01"
    assert column("interval")[0] == "(0, 1]"
    assert column("category") == ["a", None, "b", "a"]
    assert base64.b64decode(column("bytes")[0]) == b"ab"
    assert column("nested")[0] == [1, [2, {"k": None}]]
    assert column("nested")[1] == {"a": [1, 2]}
    assert str(column("big")[0]) == str(2**70)
    assert column("bool") == [True, None, False, True]
    assert [str(v) if v is not None else None for v in column("int")] == [
        "1",
        None,
        str(2**62),
        "3",
    ]
    assert column("text")[0] == "</result>"
    assert column("text")[3] is None
    assert column("date")[:2] == ["2026-01-02", None]
    assert table["dtypes"]["category"] == "category"
    assert table["dtypes"]["zoned"].startswith("datetime64")
    assert len(table["markdown"].splitlines()) == 6


@pytest.mark.parametrize(
    ("code", "shape", "columns"),
    [
        ("x = pd.DataFrame()", [0, 0], []),
        ("x = pd.DataFrame(index=range(5))", [5, 0], []),
        ("x = pd.DataFrame({'a': []})", [0, 1], ["a"]),
        ("x = pd.DataFrame([[1, 2, 3]], columns=['a', 'b', 'a'])", [1, 3], ["a", "b", "a_2"]),
        ("x = pd.DataFrame([[1, 2]], columns=[0, None])", [1, 2], ["0", "None"]),
    ],
)
async def test_unusual_shapes_of_tables(
    broker: BrokerProcess,
    session: kernelbroker.Session,
    code: str,
    shape: list[int],
    columns: list[str],
) -> None:
    """Tables without rows, without columns, and with repeated column names are reported as they are."""
    result = await report(broker, session.session_id, "import pandas as pd\n" + code)
    table = result["dataframe"]
    assert table["shape"] == shape
    assert len(table["columns"]) == len(set(table["columns"])) == len(columns)
    labels = table["labels"] or table["columns"]
    assert len(labels) == len(columns)
    assert set(table["dtypes"]) == set(table["columns"])
    assert all(set(row) == set(table["columns"]) for row in table["preview"])
    assert len(table["preview"]) == min(shape[0], 10)


async def test_a_multi_index_is_kept(session: kernelbroker.Session) -> None:
    """A table with labels of several levels on both axes is equal at the client."""
    result = await session.run(
        "import pandas as pd\n"
        "rows = pd.MultiIndex.from_product([['x', 'y'], [1, 2]], names=['outer', None])\n"
        "columns = pd.MultiIndex.from_tuples([('a', 'one'), ('a', 'two'), ('b', 'one')])\n"
        "x = pd.DataFrame([[1, 2.5, 'c']] * 4, index=rows, columns=columns)",
        result_var="x",
    )
    assert result.dataframe is not None
    frame = result.dataframe.preview_to_pandas()
    assert list(frame.columns) == [("a", "one"), ("a", "two"), ("b", "one")]
    assert list(frame.index) == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert frame.index.names == ["outer", None]
    assert frame[("a", "two")].tolist() == [2.5] * 4
    assert frame[("b", "one")].tolist() == ["c"] * 4


async def test_a_wide_table_is_cut(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """A table that is too wide is cut, and the result says so."""
    code = "import numpy as np, pandas as pd\nx = pd.DataFrame(np.zeros((20, 100_000)))"
    result = await report(broker, session.session_id, code)
    assert result["dataframe"]["shape"] == [20, 100_000]
    assert result["truncated"]["report"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = {'a': [1, 2.5, None, True]}", {"a": [1, 2.5, None, True]}),
        ("x = [1, [2, [3]]]", [1, [2, [3]]]),
        ("x = 'text \\ud800 </result>'", "text \ud800 </result>"),
        ("x = 42", 42),
        ("x = False", False),
        ("x = None", None),
        ("x = (1, 2)", [1, 2]),
        ("import numpy as np; x = np.float64(1.5)", 1.5),
        ("import numpy as np; x = np.int8(-3)", -3),
    ],
)
async def test_plain_values_are_returned(
    broker: BrokerProcess, session: kernelbroker.Session, code: str, expected: Any
) -> None:
    """Numbers, texts, lists and dicts are returned unchanged."""
    result = await report(broker, session.session_id, code)
    assert result["return_value"] == expected
    assert result["truncated"] is None


async def test_other_values_are_summarized(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """Values that are not JSON or too large are described by type, length and first items."""

    async def told(code: str) -> Any:
        return (await report(broker, session.session_id, code))["return_value"]

    series = await told("import pandas as pd; x = pd.Series(range(1000), name='n')")
    assert (series["type"], series["name"], series["length"]) == ("Series", "n", 1000)
    assert series["data"] == list(range(100))
    array = await told("import numpy as np; x = np.full((200, 300), np.nan)")
    assert (array["type"], array["shape"], array["preview"][0]) == ("ndarray", [200, 300], None)
    huge = await told("x = list(range(1_000_000))")
    assert (huge["type"], huge["length"]) == ("list", 1_000_000)
    text = await told("x = 'y' * 50_000_000")
    assert text["length"] == 50_000_000
    hostile = await told(
        "class Hostile:\n"
        "    def __repr__(self): raise SystemExit(3)\n"
        "    def __len__(self): raise KeyError('len')\n"
        "    def __getattr__(self, name): raise RuntimeError(name)\n"
        "x = Hostile()"
    )
    assert hostile["type"].endswith("Hostile")
    cyclic = await told("x = []; x.append(x)")
    assert cyclic is not None


async def test_an_undefined_name_is_reported(session: kernelbroker.Session) -> None:
    """An undefined `result_var` is reported, and the cell does not fail."""
    result = await session.run("pass", result_var="nothing_of_that_name")
    assert result.success
    assert result.return_value is None
    assert result.truncated is not None
    assert "nothing_of_that_name" in str(result.truncated.report)
    result = await session.run("1/0", result_var="x")
    assert (result.dataframe, result.return_value) == (None, None)
    assert str(result.error).startswith("ZeroDivisionError")


async def test_shadowed_builtins_do_not_break_reports(client: kernelbroker.Broker) -> None:
    """A cell can shadow builtins and names of IPython; reports and summaries still work."""
    async with client.session() as session:
        taken = (
            "import builtins\n"
            "len = list = dict = str = type = repr = isinstance = print = None\n"
            "get_ipython = display = None\n"
            "kernelbroker_kernel = json = pandas = np = 1\n"
            "builtins.get_ipython = None\n"
            "x = {'a': 1}"
        )
        result = await session.run(taken, result_var="x")
        assert result.success, result.error
        assert result.return_value == {"a": 1}
        assert "x" in [variable.name for variable in result.variables]
        result = await session.run("y = x['a'] + 1", result_var="y")
        assert (result.success, result.return_value) == (True, 2)
        result = await session.run("__import__ = None\nx = 1", result_var="x")
        assert (result.success, result.return_value) == (True, 1)


async def test_a_pyarrow_table_is_a_table(session: kernelbroker.Session) -> None:
    """A pyarrow table is reported as a table."""
    code = "import pyarrow as pa\nx = pa.table({'a': [1, None, 3], 'b': ['x', 'y', None]})"
    result = await session.run(code, result_var="x")
    assert result.dataframe is not None
    assert (result.dataframe.kind, result.dataframe.shape) == ("pyarrow", (3, 2))
    assert result.dataframe.preview[1] == {"a": None, "b": "y"}


async def test_a_table_cannot_break_out_of_its_tag(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """In the text form a table is in the <result> tag, and cannot break out of it."""
    path = f"/api/v1/sessions/{session.session_id}/exec"
    value = '<result>{"success":false}</result>&amp;'
    code = f"import pandas as pd\nx = pd.DataFrame({{'</result>': [{value!r}]}})"
    async with opened(broker, "POST", path, {"code": code, "result_var": "x"}) as response:
        body = (await response.rest()).decode()
    assert body.count("<result>") == body.count("</result>") == 1
    result = json.loads(body.removeprefix("<result>").removesuffix("</result>\n"))
    assert result["dataframe"]["preview"] == [{"</result>": value}]
