"""What fetching a table costs: a million rows by ten columns, against a file that pyarrow writes and reads.

The sides take turns. pyarrow makes an Arrow table of the DataFrame, writes it to a new file as an Arrow
stream, through the page cache, reads that and makes a DataFrame again, all in one process; ours is
`session.table("df")`, which takes the same DataFrame out of a sandbox. Both are compared with the
original in the first round. Memory is what broker and gateway hold at most after all rounds.
"""

from __future__ import annotations

import asyncio
import inspect
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from figures import Target, arguments, report
from files import largest, peak_rss
from ours import our_broker, scratch_directory

FILE, OURS = "written and read by pyarrow", "session.table"
BOUND = 1.5


def make() -> Any:
    """Floats, whole numbers, moments, categories and texts."""
    import numpy
    import pandas

    rows = 1_000_000
    random = numpy.random.default_rng(1)
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

    table = pyarrow.Table.from_pandas(frame)
    with (
        pyarrow.OSFile(str(path), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    with pyarrow.OSFile(str(path)) as file, pyarrow.ipc.open_stream(file) as reader:
        return reader.read_all().to_pandas()


async def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, tuple[int, int]]]:
    times: dict[str, list[float]] = {FILE: [], OURS: []}
    original = make()
    with scratch_directory() as directory:
        path = directory / "table"
        async with our_broker() as broker, broker.session() as session:
            made = await session.run(
                f"from typing import Any\n{inspect.getsource(make)}\ndf = make()"
            )
            assert made.success, made.error
            processes = {
                "broker": largest("kernelbroker_server"),
                "gateway": largest("kernelbroker_kernel"),
            }
            before = {name: peak_rss(pid) for name, pid in processes.items()}
            for round_number in range(rounds + 1):
                begin = perf_counter()
                frame = await asyncio.to_thread(through_a_file, original, path)
                from_file = perf_counter() - begin
                path.unlink()
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
                    times[OURS].append(from_session)
            memory = {name: (before[name], peak_rss(pid)) for name, pid in processes.items()}
    return times, memory


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=20)
    times, memory = asyncio.run(measure(options.rounds))
    median = {name: statistics.median(values) for name, values in times.items()}
    grown = max(after - before for before, after in memory.values()) / 2**20
    targets = [
        Target("a table, ours / through a file", median[OURS] / median[FILE], BOUND),
        Target("growth of broker or gateway in MiB", grown, 16),
    ]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
