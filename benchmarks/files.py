"""What moving a file costs: 100 MB into a sandbox and out again, against a plain copy.

The sides take turns. The plain copy is a loop of reads and writes of 1 MiB from one file to a new one,
through the page cache, as `cp` without clones; ours goes from a local file through SDK, broker and
gateway to a file in the workspace, and back. Memory is what broker and gateway hold at most
(VmHWM of /proc) after all rounds, against before the first one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from figures import Target, arguments, report
from kernelbroker_server.backends import procfs
from ours import our_broker, scratch_directory

SIZE = 100 * 10**6
CHUNK = 2**20
COPY, UPLOAD, DOWNLOAD = "plain copy of 100 MB", "upload of 100 MB", "download of 100 MB"


async def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, tuple[int, int]]]:
    times: dict[str, list[float]] = {name: [] for name in (COPY, UPLOAD, DOWNLOAD)}
    with scratch_directory() as directory:
        source, target = directory / "source", directory / "target"
        source.write_bytes(os.urandom(SIZE))
        async with our_broker() as broker, broker.session() as session:
            await session.files.write("small", b"x")
            processes = {
                "broker": largest("kernelbroker_server"),
                "gateway": largest("kernelbroker_kernel"),
            }
            before = {name: peak_rss(pid) for name, pid in processes.items()}
            for round_number in range(rounds + 1):
                target.unlink(missing_ok=True)
                copied = await asyncio.to_thread(_timed, lambda: plain_copy(source, target))
                target.unlink()
                uploaded = await _awaited(session.files.upload(source, "large"))
                downloaded = await _awaited(session.files.download("large", target))
                if target.read_bytes() != source.read_bytes():
                    raise AssertionError("another file came back")
                await session.files.delete("large")
                if round_number:
                    times[COPY].append(copied)
                    times[UPLOAD].append(uploaded)
                    times[DOWNLOAD].append(downloaded)
            memory = {name: (before[name], peak_rss(pid)) for name, pid in processes.items()}
    return times, memory


def plain_copy(source: Path, target: Path) -> None:
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        while data := reader.read(CHUNK):
            writer.write(data)


def peak_rss(pid: int) -> int:
    """Bytes that a process has held at most."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def _timed(work: Callable[[], None]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin


async def _awaited(work: object) -> float:
    begin = perf_counter()
    await work  # type: ignore[misc]
    return perf_counter() - begin


def largest(module: str) -> int:
    """Of our descendants that run this module, the one with most memory: a jail's others have little."""
    found = []
    for pid in procfs.family(procfs.processes(), os.getpid()):
        with contextlib.suppress(OSError):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append((peak_rss(pid), pid))
    return max(found)[1]


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=10)
    times, memory = asyncio.run(measure(options.rounds))
    median = {name: statistics.median(values) for name, values in times.items()}
    grown = max(after - before for before, after in memory.values()) / 2**20
    targets = [
        Target("rate of an upload / plain copy", median[COPY] / median[UPLOAD], 1 / 3, True),
        Target("rate of a download / plain copy", median[COPY] / median[DOWNLOAD], 1 / 3, True),
        Target("growth of broker or gateway in MiB", grown, 16),
    ]
    status = report(times, targets, check=not options.no_check)
    for name, seconds in median.items():
        print(f"{name}: {SIZE / 1e6 / seconds:.0f} MB/s")
    for name, (before, after) in memory.items():
        print(f"{name}: {before / 2**20:.1f} MiB at most before, {after / 2**20:.1f} after")
    return status


if __name__ == "__main__":
    sys.exit(main())
