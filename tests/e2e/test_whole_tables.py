"""Whole tables through the SDK: exact, and robust against changes in the session."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from pathlib import Path

import kernelbroker
import pandas
import pyarrow
import pytest
from kernelbroker import BadRequest, Conflict, ConnectionLost, NotFound, RequestError, Unavailable
from pandas.testing import assert_frame_equal
from pyarrow import parquet

from tests.e2e.support import DEADLINE_S, BrokerProcess, opened, until, whole_system

pytestmark = whole_system

EXACT = {
    "plain": "pandas.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')]})",
    "dtypes": """pandas.DataFrame({
        'int8': numpy.array([1, -1], 'int8'), 'uint64': numpy.array([0, 2**64 - 1], 'uint64'),
        'float32': numpy.array([1, numpy.nan], 'float32'), 'bool': [True, False],
        'Int64': pandas.array([1, None], 'Int64'), 'boolean': pandas.array([True, None], 'boolean'),
        'string': pandas.array(['a', None], 'string'),
        'utc': pandas.to_datetime(['2020-01-01', None], utc=True),
        'tz': pandas.to_datetime(['2020-06-01', '2021-01-01']).tz_localize('Asia/Tokyo'),
        'ns': pandas.to_datetime(['2020-06-01', '2021-01-01']).astype('datetime64[ns]'),
        'delta': pandas.to_timedelta([1, 2], 's'),
        'period': pandas.period_range('2020-01', periods=2, freq='M'),
        'interval': pandas.interval_range(0, 2)})""",
    "categories": """pandas.DataFrame({
        'c': pandas.Categorical(['b', None], categories=['b', 'a'], ordered=True),
        'n': pandas.Categorical([3, 1])})""",
    "bins": "pandas.DataFrame({'x': pandas.cut([1, 5, 9], 3), 'y': pandas.qcut([1, 5, 9], 2)})",
    "nullable": """pandas.DataFrame({'a': [1, 2]},
        index=pandas.Index([2**60 + 1, None], dtype='Int64', name=0))""",
    "objects": """pandas.DataFrame({
        'i': pandas.Series([1, 2], dtype=object), 'n': pandas.Series([1, None], dtype=object),
        's': pandas.Series(['a', None], dtype=object), 'f': pandas.Series(['a', numpy.nan], dtype=object),
        'b': pandas.Series([True, None], dtype=object), 'y': pandas.Series([b'\\xff', b''], dtype=object),
        'd': pandas.Series([__import__('decimal').Decimal('1.5'), None], dtype=object),
        'date': pandas.Series([__import__('datetime').date(2020, 1, 1), None], dtype=object),
        'l': pandas.Series([[1, 2], []], dtype=object),
        'm': pandas.Series([{'k': 1}, {'k': 2}], dtype=object),
        'e': pandas.Series([None, None], dtype=object),
        'mixed': pandas.Series([1, 'a'], dtype=object), 'numbers': pandas.Series([1, 2.5], dtype=object),
        'sets': pandas.Series([{1}, {2}], dtype=object), 'complex': [1 + 2j, 0j]})""",
    "index": "pandas.DataFrame({'a': [1, 2]}, index=pandas.Index(['x', 'y'], name='key'))",
    "same_name": "pandas.DataFrame({'a': [1, 2]}, index=pandas.Index(['x', 'y'], name='a'))",
    "range": "pandas.DataFrame({'a': [1, 2]}, index=pandas.RangeIndex(5, 9, 2, name='r'))",
    "moments": """pandas.DataFrame({'a': range(3)},
        index=pandas.date_range('2020', periods=3, freq='h', tz='Europe/Rome', name='t'))""",
    "multi": """pandas.DataFrame({'a': range(4)}, index=pandas.MultiIndex.from_product(
        [['x', 'y'], [1, 2]], names=['l', None]))""",
    "labels": "pandas.DataFrame([[1, 2, 3]], columns=[0, 'a', None])",
    "numbers": "pandas.DataFrame([[1, 2], [3, 4]])",
    "named": "pandas.DataFrame([[1, 2]], columns=pandas.Index(['a', 'b'], name='things'))",
    "repeated": "pandas.DataFrame([[1, 'x', 2.5]], columns=['a', 'a', 'b'])",
    "levels": """pandas.DataFrame([[1, 2, 3]], columns=pandas.MultiIndex.from_tuples(
        [('a', 1), ('a', 2), ('b', 1)], names=['p', 'q']))""",
    "days": "pandas.DataFrame([[1, 2]], columns=pandas.date_range('2020', periods=2))",
    "nothing": "pandas.DataFrame()",
    "no_rows": "pandas.DataFrame({'a': [1], 'b': ['x']}).iloc[:0]",
    "no_columns": "pandas.DataFrame(index=[3, 4])",
    "texts": "pandas.DataFrame({'ключ': ['日本', '\\U0001f600', 'a\\x00b', '']})",
    "attrs": "(lambda f: (f.attrs.update(unit='m'), f)[1])(pandas.DataFrame({'a': [1]}))",
}


@pytest.fixture
async def filled(session: kernelbroker.Session) -> kernelbroker.Session:
    result = await session.run("import pandas, numpy, pyarrow")
    assert result.success, result.error
    return session


async def failure(session: kernelbroker.Session, name: str) -> Exception:
    with pytest.raises((RequestError, ConnectionLost)) as caught:
        async with asyncio.timeout(DEADLINE_S):
            await session.table(name)
    return caught.value


@pytest.mark.parametrize("name", EXACT)
async def test_a_table_is_exact(filled: kernelbroker.Session, name: str) -> None:
    """A DataFrame arrives with its values, dtypes, index and labels, and can be changed."""
    import numpy  # noqa: F401  what the expressions name

    result = await filled.run(f"df = {EXACT[name]}")
    assert result.success, result.error
    expected = eval(EXACT[name])
    table = await filled.table("df")
    assert_frame_equal(table, expected, check_exact=True, check_freq=True)
    assert type(table.index) is type(expected.index)
    assert [*map(type, table.columns)] == [*map(type, expected.columns)]
    assert table.columns.names == expected.columns.names
    assert table.attrs == expected.attrs
    for place, dtype in enumerate(expected.dtypes):
        if dtype == "object":
            kinds = [*map(type, table.iloc[:, place])]
            assert kinds == [*map(type, expected.iloc[:, place])]
    for place in range(table.shape[1] if len(table) else 0):
        if not isinstance(expected.iloc[-1, place], list | dict | set):
            table.iloc[0, place] = expected.iloc[-1, place]


async def test_columns_that_arrow_would_change_are_refused(filled: kernelbroker.Session) -> None:
    """A column that Arrow would change is refused with its name, and comes with `lossy`."""
    await filled.run("class Text(str): pass")
    for values in ("[object(), 1]", "[Text('x'), None]"):
        await filled.run(f"df = pandas.DataFrame({{'odd': pandas.Series({values}, dtype=object)}})")
        error = await failure(filled, "df")
        assert isinstance(error, Conflict) and "odd" in str(error), (values, error)
        with pytest.warns(kernelbroker.LossyTableWarning, match="odd"):
            frame = await filled.table("df", lossy=True)
        (change,) = frame.attrs["kernelbroker_changes"]
        assert (change["part"], change["column"]) == ("column", "odd")
    await filled.run("df = pandas.DataFrame({'a': [1, 2]}, index=[object(), 'x'])")
    assert isinstance(await failure(filled, "df"), Conflict)


async def test_unknown_names_and_other_types_are_refused(filled: kernelbroker.Session) -> None:
    """Unknown names, invalid names and values of other types have different errors."""
    await filled.run("number, series = 1, pandas.Series([1])")
    assert isinstance(await failure(filled, "nothing_here"), NotFound)
    assert "it is no table, but int" in str(await failure(filled, "number"))
    assert "to_frame" in str(await failure(filled, "series"))
    for name in ("a.b", "a b", "1", "a()", "x" * 300, "%2e"):
        assert isinstance(await failure(filled, name), BadRequest), name
    with pytest.raises(ValueError, match="format"):
        await filled.table("number", format="excel")  # type: ignore[call-overload]


async def test_variables_are_listed_without_a_trace(client: kernelbroker.Broker) -> None:
    """The list of variables and the tables leave no trace in the history."""
    async with client.session() as session:
        await session.run("import pandas; df = pandas.DataFrame({'a': [1, 2]}); n = [1, 2, 3]")
        found = {each.name: each for each in await session.variables()}
        assert (found["df"].type, found["df"].shape) == ("DataFrame", [2, 1])
        assert (found["n"].type, found["n"].length) == ("list", 3)
        await session.table("df")
        result = await session.run(
            "len(In), [name for name in globals() if 'kernelbroker' in name]"
        )
        assert result.execution_count == 2


async def test_tables_of_other_libraries(filled: kernelbroker.Session) -> None:
    """Tables of any library with Arrow's interface arrive in pandas, pyarrow or polars."""
    made = await filled.run(
        """
class Streamed:
    def __arrow_c_stream__(self, requested_schema=None):
        return table.__arrow_c_stream__()
table = pyarrow.table({'a': [1, None, 3], 'b': ['x', 'y', None]})
batch = table.to_batches()[0]
streamed = Streamed()
"""
    )
    assert made.success, made.error
    expected = pyarrow.table({"a": [1, None, 3], "b": ["x", "y", None]})
    for name in ("table", "batch", "streamed"):
        assert (await filled.table(name, format="arrow")).equals(expected)
        assert (await filled.table(name))["b"].tolist()[:2] == ["x", "y"]
        assert (await filled.table(name, format="polars")).rows() == [
            (1, "x"),
            (None, "y"),
            (3, None),
        ]


async def test_each_format_is_a_complete_file(
    filled: kernelbroker.Session, broker: BrokerProcess, tmp_path: Path
) -> None:
    """Each format is a complete file of its type, sent as an attachment."""
    made = await filled.run(
        """
df = pandas.DataFrame({'n': range(50_001), 't': 'ü,"\\n'}, index=pandas.Index(range(50_001), name='k') + 7)
table = pyarrow.table({'n': pyarrow.array(range(50_001)), 't': ['ü'] * 50_001})
empty = pandas.DataFrame({'a': []})
"""
    )
    assert made.success, made.error
    await filled.export("df", tmp_path / "df.parquet")
    assert pandas.read_parquet(tmp_path / "df.parquet").index.tolist() == list(range(7, 50_008))

    async def fetched(name: str, format_: str) -> tuple[dict[str, str], bytes]:
        path = f"/api/v1/sessions/{filled.session_id}/variables/{name}?format={format_}"
        async with opened(broker, "GET", path) as response:
            assert response.status == 200, await response.rest()
            return dict(response.headers), await response.rest()

    for name, extra in (("df", ["k"]), ("table", [])):
        headers, data = await fetched(name, "csv")
        assert headers["Content-Type"] == "text/csv; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Disposition"] == "attachment"
        rows = list(csv.reader(io.StringIO(data.decode(), newline="")))
        assert rows[0] == [*extra, "n", "t"] and len(rows) == 50_002
        assert rows[-1][-2] == "50000" and rows[-1][-1].startswith("ü")
        headers, data = await fetched(name, "json")
        assert headers["Content-Type"] == "application/json"
        records = json.loads(data)
        assert len(records) == 50_001 and records[-1]["n"] == 50_000
        assert list(records[0]) == [*extra, "n", "t"]
        _, data = await fetched(name, "parquet")
        assert parquet.read_table(io.BytesIO(data)).num_rows == 50_001
        _, data = await fetched(name, "arrow")
        assert pyarrow.ipc.open_stream(data).read_all().num_rows == 50_001
    assert (await fetched("empty", "json"))[1] == b"[]"
    assert (await fetched("empty", "csv"))[1] == b"a\n"
    path = f"/api/v1/sessions/{filled.session_id}/variables/df?format=xlsx"
    async with opened(broker, "GET", path) as response:
        assert response.status == 400


async def test_in_the_order_of_the_session(filled: kernelbroker.Session) -> None:
    """A table waits for the cells before it."""
    await filled.run("order = pandas.DataFrame({'n': [0]})")
    running = asyncio.create_task(
        filled.run("import time; print('runs'); time.sleep(0.5); order['n'] = [1]")
    )
    await until(lambda: is_busy(filled))
    assert (await filled.table("order"))["n"].tolist() == [1]
    assert (await running).success


async def is_busy(session: kernelbroker.Session) -> bool:
    from kernelbroker.http_request import call

    path = f"/api/v1/sessions/{session.session_id}"
    found = await call(session._address, "GET", path, DEADLINE_S)
    return found["state"] == "busy"


HOSTILE = """
import os, signal, time
class Raises:
    def __arrow_c_stream__(self, schema=None): raise RuntimeError("not today")
class Exits:
    def __arrow_c_stream__(self, schema=None): raise SystemExit(3)
class Lies:
    def __arrow_c_stream__(self, schema=None): return "no capsule"
class Blocks:
    def __arrow_c_stream__(self, schema=None):
        open('/data/blocking', 'w').close()
        while True: time.sleep(0.01)
class Dies:
    def __arrow_c_stream__(self, schema=None): os.kill(os.getpid(), signal.SIGKILL)
class Frame(pandas.DataFrame):
    def __getattribute__(self, name): raise RuntimeError("nothing works")
class Slow:
    def __arrow_c_stream__(self, schema=None):
        def batches():
            yield pyarrow.record_batch({'a': [1] * 1000})
            open('/data/streaming', 'w').close()
            if self.dies: os.kill(os.getpid(), signal.SIGKILL)
            while True:
                time.sleep(0.01)
                yield pyarrow.record_batch({'a': [1] * 1000})
        schema = pyarrow.schema({'a': pyarrow.int64()})
        return pyarrow.RecordBatchReader.from_batches(schema, batches()).__arrow_c_stream__()
raises, exits, lies, blocks, dies = Raises(), Exits(), Lies(), Blocks(), Dies()
frame = Frame({'a': [1]})
slow, fatal = Slow(), Slow()
slow.dies, fatal.dies = False, True
endless = pyarrow.table({'a': pyarrow.array(range(8_000_000))})
"""


@pytest.fixture
async def hostile(filled: kernelbroker.Session) -> kernelbroker.Session:
    made = await filled.run(HOSTILE)
    assert made.success, made.error
    for mark in ("blocking", "streaming"):  # of the test before
        if await filled.files.exists(mark):
            await filled.files.delete(mark)
    return filled


async def test_a_failing_table_is_an_error_of_its_call(hostile: kernelbroker.Session) -> None:
    """A table that raises, exits or lies is an error of this call, and the session continues."""
    for name in ("raises", "exits", "lies", "frame"):
        error = await failure(hostile, name)
        assert isinstance(error, Conflict), (name, error)
    assert (await hostile.run("1 + 1")).success


async def test_an_interrupt_while_it_is_prepared(hostile: kernelbroker.Session) -> None:
    """An interrupt ends a table that blocks; the variables stay."""
    asked = asyncio.create_task(failure(hostile, "blocks"))
    await until(lambda: hostile.files.exists("blocking"))
    await hostile.interrupt()
    assert isinstance(await asked, Conflict | Unavailable)
    assert (await hostile.run("blocks")).success


async def test_an_interrupt_while_it_is_sent(hostile: kernelbroker.Session) -> None:
    """The client of an interrupted table sees that it is incomplete."""
    asked = asyncio.create_task(failure(hostile, "slow"))
    await until(lambda: hostile.files.exists("streaming"))
    await hostile.interrupt()
    assert isinstance(await asked, ConnectionLost)
    assert (await hostile.run("slow")).success


async def test_a_client_that_leaves(hostile: kernelbroker.Session, broker: BrokerProcess) -> None:
    """A client that leaves before or during a table does not delay the session."""
    path = f"/api/v1/sessions/{hostile.session_id}/variables/"
    for name, seen in (("blocks", "blocking"), ("slow", "streaming")):
        asked = asyncio.create_task(hostile.table(name))
        await until(lambda seen=seen: hostile.files.exists(seen))
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(DEADLINE_S):
            assert (await hostile.run("1")).success
    async with opened(broker, "GET", path + "endless") as response:
        assert response.status == 200
        assert await response.more()
    async with asyncio.timeout(DEADLINE_S):
        assert (await hostile.run("1")).success


async def test_a_kernel_that_dies(hostile: kernelbroker.Session) -> None:
    """A kernel that dies before or during a table is reported at once, and by the next cell."""
    assert isinstance(await failure(hostile, "dies"), Unavailable)
    result = await hostile.run("1")
    assert result.success and result.kernel_restarted
    made = await hostile.run("import pandas, pyarrow\n" + HOSTILE)
    assert made.success, made.error
    error = await failure(hostile, "fatal")
    assert isinstance(error, ConnectionLost | Unavailable)
    assert (await hostile.run("1")).kernel_restarted


def test_the_synchronous_client_fetches_tables(broker: BrokerProcess) -> None:
    """The synchronous client has the same calls."""
    with kernelbroker.sync.connect(broker.url, broker.token) as client, client.session() as session:
        session.run("import pandas; df = pandas.DataFrame({'a': [1, 2]})")
        assert_frame_equal(session.table("df"), pandas.DataFrame({"a": [1, 2]}))
        assert [each.name for each in session.variables()] == ["df"]
        with pytest.raises(Conflict):
            session.install("x")
