"""Measures `session.table` with tables of several shapes against a file that pyarrow writes and reads,
the first table of a session, and what a report on a table of a million rows adds to a cell.

The sides take turns. pyarrow makes an Arrow table of the DataFrame, writes it to a new file as an Arrow
stream, through the page cache, reads it and makes a DataFrame again, all in one process.
kernelbroker fetches the same DataFrame from a sandbox with `session.table("df")`. The first round
compares both with the original, and is not counted. Memory is the peak of broker and gateway after all
rounds. The first table of a session is one of three rows, in a session of its own that has just imported
pandas. The cell is `1`, run with and without `result_var="df"`, in turns.
"""

from __future__ import annotations

import asyncio
import inspect
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import kernelbroker
from figures import Target, arguments, median_ms, report
from files import largest, peak_rss
from kernelbroker_side import running_broker, scratch_directory, until_warm

FILE, SESSION = "pyarrow", "session.table"
FIRST = "first table of a session"
FIRST_MS = 30
PLAIN, REPORTED = "cell", "cell with a report on 1,000,000 x 10"
REPORT_MS = 3
SMALL = (
    "import pandas; df = pandas.DataFrame({'a': [1, 2, 3], 'b': ['x', None, 'y'], 'c': [0.5] * 3})"
)


@dataclass(frozen=True)
class Shape:
    """A shape of tables, the bound of the ratio to pyarrow's time, and the share of the rounds."""

    rows: int
    columns: int
    bound: float
    share: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.rows:,} x {self.columns:,}"


SHAPES = [
    Shape(1_000_000, 10, 1.5),
    Shape(5_000_000, 10, 1.5, 0.25),
    Shape(1_000, 1_000, 2),
    Shape(100, 10_000, 2, 0.25),
    Shape(100, 20_000, 2, 0.25),
]


def make(rows: int, columns: int) -> Any:
    """Make a DataFrame: of ten columns of five types, or of many columns of floats."""
    import numpy
    import pandas

    random = numpy.random.default_rng(1)
    if columns != 10:
        labels = [f"float{number}" for number in range(columns)]
        return pandas.DataFrame(random.normal(size=(rows, columns)), columns=labels)
    names = numpy.array([f"customer {number:05d}" for number in range(5000)], dtype=object)
    return pandas.DataFrame(
        {
            **{f"float{number}": random.normal(size=rows) for number in range(4)},
            **{f"whole{number}": random.integers(0, 10**6, rows) for number in range(3)},
            "moment": pandas.date_range("2020-01-01", periods=rows, freq="s").to_numpy(),
            "category": pandas.Categorical.from_codes(random.integers(0, 5, rows), list("abcde")),
            "text": names[random.integers(0, 5000, rows)],
        }
    )


def through_a_file(frame: Any, path: Path) -> Any:
    import pyarrow

    path.unlink(missing_ok=True)
    table = pyarrow.Table.from_pandas(frame)
    with (
        pyarrow.OSFile(str(path), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    with pyarrow.OSFile(str(path)) as file, pyarrow.ipc.open_stream(file) as reader:
        return reader.read_all().to_pandas()


async def measure_shape(
    session: kernelbroker.Session, shape: Shape, path: Path, rounds: int
) -> dict[str, list[float]]:
    original = make(shape.rows, shape.columns)
    source = f"from typing import Any\n{inspect.getsource(make)}"
    made = await session.run(f"{source}\ndf = make({shape.rows}, {shape.columns})")
    assert made.success, made.error
    times: dict[str, list[float]] = {FILE: [], SESSION: []}
    for round_number in range(max(2, round(rounds * shape.share)) + 1):
        begin = perf_counter()
        frame = await asyncio.to_thread(through_a_file, original, path)
        from_file = perf_counter() - begin
        exact = frame.equals(original)
        del frame
        begin = perf_counter()
        frame = await session.table("df")
        from_session = perf_counter() - begin
        if not (exact and frame.equals(original)):
            raise AssertionError("another table came back")
        del frame
        if round_number:
            times[FILE].append(from_file)
            times[SESSION].append(from_session)
    return times


async def measure_first(broker: kernelbroker.Broker, rounds: int) -> list[float]:
    """The time of the first table in each of so many sessions."""
    times: list[float] = []
    for _ in range(rounds):
        await until_warm(broker, 1)
        async with broker.session() as session:
            made = await session.run(SMALL)
            assert made.success, made.error
            begin = perf_counter()
            await session.table("df")
            times.append(perf_counter() - begin)
    return times


async def measure_report(session: kernelbroker.Session, rounds: int) -> dict[str, list[float]]:
    """The times of a cell without and with a report on a table of a million rows."""
    source = f"from typing import Any\n{inspect.getsource(make)}"
    made = await session.run(f"{source}\ndf = make(1_000_000, 10)")
    assert made.success, made.error
    times: dict[str, list[float]] = {PLAIN: [], REPORTED: []}
    for round_number in range(5 * rounds + 1):
        for side, variable in ((PLAIN, None), (REPORTED, "df")):
            begin = perf_counter()
            result = await session.run("1", result_var=variable)
            taken = perf_counter() - begin
            assert result.success, result.error
            assert (result.dataframe is not None) == (variable is not None)
            if round_number:
                times[side].append(taken)
    return times


async def measure(
    rounds: int,
) -> tuple[dict[str, dict[str, list[float]]], list[float], dict[str, list[float]], float]:
    with scratch_directory() as directory:
        # A forked gateway's arguments are those of the fork server; what is measured does not depend on it.
        async with (
            running_broker(KERNELBROKER_LOCAL__FORK_SERVER="false") as broker,
            broker.session() as session,
        ):
            await session.run("pass")
            processes = [largest("kernelbroker_server"), largest("kernelbroker_kernel")]
            before = [peak_rss(pid) for pid in processes]
            times = {
                shape.name: await measure_shape(session, shape, directory / "table", rounds)
                for shape in SHAPES
            }
            after = [peak_rss(pid) for pid in processes]
            grown = max(late - early for early, late in zip(before, after, strict=True)) / 2**20
            cells = await measure_report(session, rounds)
            return times, await measure_first(broker, rounds), cells, grown


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=20)
    times, first, cells, grown = asyncio.run(measure(options.rounds))
    rows = {f"{shape}, {side}": taken for shape in times for side, taken in times[shape].items()}
    targets = [
        Target(
            f"{shape.name}, kernelbroker / pyarrow",
            statistics.median(times[shape.name][SESSION])
            / statistics.median(times[shape.name][FILE]),
            shape.bound,
        )
        for shape in SHAPES
    ]
    targets += [
        Target(f"{FIRST} in ms", median_ms(first), FIRST_MS),
        Target(
            "ms that a report on a million rows adds to a cell",
            median_ms(cells[REPORTED]) - median_ms(cells[PLAIN]),
            REPORT_MS,
        ),
        Target("growth of broker or gateway in MiB", grown, 16),
    ]
    return report({**rows, FIRST: first, **cells}, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
