"""polars, which the image does not have: once a session installed it, its tables are as good as pandas'."""

from __future__ import annotations

import datetime
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import kernelbroker
import pandas
import polars
import pyarrow
import pytest
from kernelbroker import Conflict
from pyarrow import parquet

from tests.e2e.support import BrokerProcess, opened, whole_system
from tests.support.requires import lacks

pytestmark = whole_system

SESSION = "polars"
MAKE = """
import datetime, decimal, polars
moments = [datetime.datetime(2024, 1, 1), None, datetime.datetime(2024, 6, 1, 12, 30, 15, 123456)]
df = polars.DataFrame({
    "int": [1, None, 3],
    "float": [1.5, float("nan"), None],
    "text": ["a", None, "ü"],
    "bool": [True, None, False],
    "list": [[1, None], [], None],
    "deep": [[[1], [2]], None, []],
    "struct": [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, None],
    "moment": moments,
    "date": [datetime.date(2024, 1, 1), None, datetime.date(1, 1, 1)],
    "time": [datetime.time(1, 2, 3, 4), None, datetime.time(0)],
    "duration": [datetime.timedelta(days=1, microseconds=1), None, datetime.timedelta(0)],
    "decimal": [decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")],
    "bytes": [b"\\xff", None, b""],
    "category": polars.Series(["x", None, "y"], dtype=polars.Categorical),
    "enum": polars.Series(["lo", None, "hi"], dtype=polars.Enum(["lo", "hi"])),
    "null": [None, None, None],
    "array": polars.Series([[1, 2], None, [3, 4]], dtype=polars.Array(polars.Int64, 2)),
    "large": polars.Series([2**64 - 1, None, 0], dtype=polars.UInt64),
}).with_columns(zone=polars.Series(moments).dt.replace_time_zone("Europe/Rome"))
"""
OTHERS = """
lazy, series, zoned = df.lazy(), df["text"], df["zone"]
empty, no_rows = polars.DataFrame(), df.clear()
wide = polars.DataFrame({"fits": [1], "int128": polars.Series([2**100], dtype=polars.Int128)})
objects = polars.DataFrame({"thing": polars.Series([object()], dtype=polars.Object)})
rows = polars.DataFrame({"n": range(50_001)})
"""


@pytest.fixture(scope="module")
def wheels(request: pytest.FixtureRequest) -> Path:
    """A directory with the wheels of polars, some 55 MB, downloaded once for all test runs."""
    assert request.config.cache is not None
    directory = request.config.cache.mkdir(f"polars-{polars.__version__}")
    if not any(directory.glob("polars-*.whl")):
        asked = ["--only-binary", ":all:", "--dest", directory, f"polars=={polars.__version__}"]
        download = [sys.executable, "-m", "pip", "download", "--quiet", *asked]
        done = subprocess.run(download, capture_output=True, text=True, timeout=300)
        if done.returncode:
            lacks("an index of packages", done.stderr.strip()[-200:])
    return directory


@pytest.fixture(scope="module")
def broker(wheels: Path) -> Iterator[BrokerProcess]:
    with (
        tempfile.TemporaryDirectory(prefix="kb-") as name,
        BrokerProcess(Path(name), PACKAGES__WHEELS=wheels).running() as broker,
    ):
        with (
            kernelbroker.sync.connect(broker.url, broker.token) as client,
            client.session(SESSION, keep=True) as session,
        ):
            assert not session.run("import polars").success
            installed = session.install("polars")
            assert installed.success, installed.error
            for code in (MAKE, OTHERS):
                made = session.run(code)
                assert made.success, made.error
        yield broker


@pytest.fixture
async def session(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Session]:
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(SESSION, keep=True) as session,
    ):
        yield session


@pytest.fixture(scope="module")
def expected() -> polars.DataFrame:
    names: dict[str, polars.DataFrame] = {}
    exec(MAKE, names)
    return names["df"]


async def test_a_polars_preview(session: kernelbroker.Session, expected: polars.DataFrame) -> None:
    """A polars DataFrame is reported with its dtypes and its first rows as JSON."""
    result = await session.run("", result_var="df", preview_rows=2)
    told = result.dataframe
    assert told is not None, result.error
    assert (told.kind, told.shape, told.index) == ("polars", (3, 19), None)
    assert told.dtypes == {name: str(dtype) for name, dtype in expected.schema.items()}
    first, second = told.preview
    assert first == {
        "int": 1,
        "float": 1.5,
        "text": "a",
        "bool": True,
        "list": [1, None],
        "deep": [[1], [2]],
        "struct": {"x": 1, "y": "a"},
        "moment": "2024-01-01T00:00:00",
        "date": "2024-01-01",
        "time": "01:02:03.000004",
        "duration": "P1DT0H0M0.000001S",
        "decimal": "1.50",
        "bytes": "/w==",
        "category": "x",
        "enum": "lo",
        "null": None,
        "array": [1, 2],
        "large": 2**64 - 1,
        "zone": "2024-01-01T00:00:00+01:00",
    }
    kept = {name: value for name, value in second.items() if value is not None}
    assert kept == {"list": [], "struct": {"x": None, "y": "b"}}
    assert told.memory_usage > 0
    assert told.markdown.splitlines()[2].startswith("| 1 | 1.5 | a | true | [1, null] |")
    assert told.preview_to_pandas()["struct"].tolist() == [
        {"x": 1, "y": "a"},
        {"x": None, "y": "b"},
    ]


async def test_series_and_lazy_frames(session: kernelbroker.Session) -> None:
    """A Series gives its first values, a LazyFrame only its name; both say how to make a table."""
    series = (await session.run("", result_var="zoned")).return_value
    assert series == {
        "type": "Series",
        "name": "zone",
        "dtype": "Datetime(time_unit='us', time_zone='Europe/Rome')",
        "length": 3,
        "data": ["2024-01-01T00:00:00+01:00", None, "2024-06-01T12:30:15.123456+02:00"],
    }
    lazy = (await session.run("", result_var="lazy")).return_value
    assert (lazy["type"], lazy["preview"]) == ("LazyFrame", None)
    for name, advice in (("series", r"Series; .*\.to_frame\(\)"), ("lazy", r"\.collect\(\)")):
        with pytest.raises(Conflict, match=advice):
            await session.table(name)
    found = {each.name: (each.type, each.shape) for each in await session.variables()}
    assert found["df"] == ("DataFrame", [3, 19])
    assert found["series"] == ("Series", [3])
    assert found["lazy"] == ("LazyFrame", None)


async def test_a_polars_table_is_exact(
    session: kernelbroker.Session, expected: polars.DataFrame
) -> None:
    """A table arrives exactly in polars, and also in pyarrow and pandas."""
    same = await session.table("df", format="polars")
    assert same.schema == expected.schema
    assert same.equals(expected, null_equal=True)
    assert (await session.table("no_rows", format="polars")).schema == expected.schema
    assert (await session.table("empty", format="polars")).shape == (0, 0)
    table = await session.table("df", format="arrow")
    assert (table.num_rows, table.column_names) == (3, expected.columns)
    assert table.schema.field("zone").type == pyarrow.timestamp("us", "Europe/Rome")
    assert pyarrow.types.is_large_list(table.schema.field("list").type)
    frame = await session.table("df")
    assert frame["zone"].dtype == pandas.DatetimeTZDtype("us", ZoneInfo("Europe/Rome"))
    assert frame["enum"].dtype == pandas.CategoricalDtype(["lo", "hi"], ordered=True)
    assert frame["moment"].dtype == "datetime64[us]"
    assert frame["int"].dtype == "Int64" and frame["int"].dropna().tolist() == [1, 3]
    assert frame["large"].dtype == "UInt64" and frame["large"][0] == 2**64 - 1
    assert frame["decimal"].tolist() == [Decimal("1.50"), None, Decimal("-2.25")]
    assert frame["struct"].tolist() == [{"x": 1, "y": "a"}, {"x": None, "y": "b"}, None]
    assert frame["date"][2] == datetime.date(1, 1, 1)


async def test_types_without_arrow_form_are_refused(session: kernelbroker.Session) -> None:
    """A column of a type without an Arrow form is refused by its name."""
    for format in ("pandas", "arrow", "polars"):
        with pytest.raises(Conflict, match=r"column int128 is Int128, .*lossy=True"):
            await session.table("wide", format=format)
        with pytest.raises(Conflict, match="column thing holds Python objects"):
            await session.table("objects", format=format)


async def test_polars_formats(
    session: kernelbroker.Session, broker: BrokerProcess, expected: polars.DataFrame
) -> None:
    """CSV, JSON and Parquet hold every value; nested values are JSON in CSV."""

    async def fetched(name: str, format_: str) -> bytes:
        path = f"/api/v1/sessions/{SESSION}/variables/{name}?format={format_}"
        async with opened(broker, "GET", path) as response:
            assert response.status == 200, await response.rest()
            return await response.rest()

    read = polars.from_arrow(parquet.read_table(io.BytesIO(await fetched("df", "parquet"))))
    assert isinstance(read, polars.DataFrame)
    assert read.equals(expected, null_equal=True)
    records = json.loads(await fetched("df", "json"))
    assert records[0]["bytes"] == "/w=="
    assert [record["deep"] for record in records] == [[[1], [2]], None, []]
    assert [record["struct"] for record in records] == expected["struct"].to_list()
    assert [record["zone"] for record in records][::2] == [
        "2024-01-01T00:00:00.000000+01:00",
        "2024-06-01T12:30:15.123456+02:00",
    ]
    lines = pandas.read_csv(io.BytesIO(await fetched("df", "csv")), dtype=str, na_filter=False)
    assert lines["bytes"].tolist() == ["/w==", "", ""]
    assert json.loads(lines["struct"][0]) == {"x": 1, "y": "a"}
    assert [json.loads(text) for text in lines["deep"] if text] == [[[1], [2]], []]
    assert lines["large"][0] == str(2**64 - 1)
    assert len(json.loads(await fetched("rows", "json"))) == 50_001
