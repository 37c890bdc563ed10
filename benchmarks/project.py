"""Measures operations on a project: ripgrep over 10,000 files, and 500 tests of pytest, streamed.

The sides take turns: `session.code` through SDK, broker and gateway, and the same programs started by hand
with the same Python, outside of any sandbox. The first test is timed by the first `test_output`.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import kernelbroker
from figures import Target, arguments, median_ms, report
from kernelbroker_side import KERNEL_PYTHON, running_broker, scratch_directory

FILES, TESTS = 10_000, 500
SEARCH, RG = "search of 10,000 files", "the same by rg"
RUN, PYTEST, FIRST = "500 tests", "the same by pytest", "the first test_output"


def make_project(root: Path) -> None:
    for number in range(FILES):
        directory = root / "src" / f"d{number // 100}"
        directory.mkdir(parents=True, exist_ok=True)
        needle = "needle = 1\n" if number % 1000 == 0 else ""
        lines = "".join(f"value_{line} = {line}\n" for line in range(40))
        (directory / f"m{number}.py").write_text(lines + needle)
    (root / "tests").mkdir()
    for number in range(TESTS // 50):
        text = "".join(f"def test_{each}():\n    assert {each} >= 0\n\n" for each in range(50))
        (root / "tests" / f"test_{number}.py").write_text(text)
    (root / "pytest.ini").write_text("[pytest]\n")


async def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in (SEARCH, RG, RUN, PYTEST, FIRST)}
    with scratch_directory() as root:
        make_project(root)
        async with running_broker() as broker, broker.session() as session:
            await session.code.upload(root)
            for round_number in range(rounds + 1):
                taken = {SEARCH: await search(session)}
                taken[RG] = await by_hand(["rg", "--json", "needle", str(root)])
                taken[FIRST], taken[RUN] = await run_tests(session)
                argv = [str(KERNEL_PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
                taken[PYTEST] = await by_hand([*argv, str(root / "tests")])
                if round_number:  # the first one reads the files from the disk
                    for name, seconds in taken.items():
                        times[name].append(seconds)
    return times


async def search(session: kernelbroker.Session) -> float:
    begun = perf_counter()
    found = await session.code.search("needle")
    assert len(found.result["matches"]) == FILES // 1000
    return perf_counter() - begun


async def run_tests(session: kernelbroker.Session) -> tuple[float, float]:
    begun, first = perf_counter(), 0.0
    async for event in session.code.stream("run_tests", {"target": "tests"}):
        if event["type"] == "test_output" and not first:
            first = perf_counter() - begun
        if event["type"] == "result":
            assert event["result"]["passed"] == TESTS, event
    return first, perf_counter() - begun


async def by_hand(argv: list[str]) -> float:
    begun = perf_counter()
    await asyncio.to_thread(subprocess.run, argv, stdout=subprocess.DEVNULL, check=True)
    return perf_counter() - begun


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=5)
    times = asyncio.run(measure(options.rounds))
    median = {name: median_ms(values) for name, values in times.items()}
    targets = [
        Target("search / rg", median[SEARCH] / median[RG], 5),
        Target("500 tests / pytest", median[RUN] / median[PYTEST], 2),
        Target("first test_output / all tests", median[FIRST] / median[RUN], 0.9),
    ]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
