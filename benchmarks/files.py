"""Measures an upload and a download of 100 MB, compared with a plain copy.

The sides take turns. The plain copy reads and writes 1 MiB at a time from one file to a new one, through
the page cache, as `cp` does without clones. The upload goes from a local file through SDK, broker and
gateway to a file in the workspace; the download goes back. Memory is the peak of broker and gateway
(VmHWM of /proc) after all rounds, minus that before the first one.

With `--against DIR` the broker of another checkout is measured as well, in the same run.
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

import kernelbroker
from figures import Target, arguments, report
from kernelbroker_server.backends import procfs
from kernelbroker_side import running_broker, scratch_directory

SIZE = 100 * 10**6
CHUNK = 2**20
COPY, UPLOAD, DOWNLOAD = "plain copy of 100 MB", "upload of 100 MB", "download of 100 MB"
OTHER = ", other checkout"


async def measure(
    rounds: int, against: Path | None
) -> tuple[dict[str, list[float]], dict[str, tuple[int, int]]]:
    times: dict[str, list[float]] = {name: [] for name in (COPY, UPLOAD, DOWNLOAD)}
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        source, target = directory / "source", directory / "target"
        source.write_bytes(os.urandom(SIZE))
        sessions = {"": await open_session(stack)}
        processes = {
            "broker": largest("kernelbroker_server"),
            "gateway": largest("kernelbroker_kernel"),
        }
        if against is not None:
            packages = (str(against / name) for name in ("broker", "sdk", "kernel_image"))
            sessions[OTHER] = await open_session(stack, PYTHONPATH=":".join(packages))
            times |= {UPLOAD + OTHER: [], DOWNLOAD + OTHER: []}
        before = {name: peak_rss(pid) for name, pid in processes.items()}
        for round_number in range(rounds + 1):
            taken = {COPY: await asyncio.to_thread(_timed, lambda: plain_copy(source, target))}
            for side, session in (
                reversed(sessions.items()) if round_number % 2 else sessions.items()
            ):
                target.unlink()
                taken[UPLOAD + side] = await _awaited(session.files.upload(source, "large"))
                taken[DOWNLOAD + side] = await _awaited(session.files.download("large", target))
                if target.read_bytes() != source.read_bytes():
                    raise AssertionError("another file came back")
                await session.files.delete("large")
            target.unlink()
            if round_number:
                for name, seconds in taken.items():
                    times[name].append(seconds)
        memory = {name: (before[name], peak_rss(pid)) for name, pid in processes.items()}
    return times, memory


async def open_session(stack: contextlib.AsyncExitStack, **environ: str) -> kernelbroker.Session:
    # A forked gateway could not be told from its kernel; see `largest`.
    plain = {"KERNELBROKER_LOCAL__FORK_SERVER": "false", **environ}
    broker = await stack.enter_async_context(running_broker(warm=1, **plain))
    session = await stack.enter_async_context(broker.session())
    await session.files.write("small", b"x")
    return session


def plain_copy(source: Path, target: Path) -> None:
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        while data := reader.read(CHUNK):
            writer.write(data)


def peak_rss(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
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
    """Return the descendant that runs this module and has the most memory."""
    found = []
    for pid in procfs.family(procfs.processes(), os.getpid()):
        with contextlib.suppress(OSError):
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append((peak_rss(pid), pid))
    return max(found)[1]


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=10, against=True)
    times, memory = asyncio.run(measure(options.rounds, options.against))
    median = {name: statistics.median(values) for name, values in times.items()}
    grown = max(after - before for before, after in memory.values()) / 2**20
    targets = [
        Target("rate of an upload / plain copy", median[COPY] / median[UPLOAD], 0.1, True),
        Target("rate of a download / plain copy", median[COPY] / median[DOWNLOAD], 0.1, True),
        Target("growth of broker or gateway in MiB", grown, 16),
    ]
    status = report(times, targets, check=not options.no_check)
    for name, seconds in median.items():
        print(f"{name}: {SIZE / 1e6 / seconds:.0f} MB/s")
    for name, (before, after) in memory.items():
        print(f"{name}: {before / 2**20:.1f} MiB at most before, {after / 2**20:.1f} after")
    if options.against is not None:
        for name in (UPLOAD, DOWNLOAD):
            print(f"{name}: {median[name] / median[name + OTHER]:.2f} of the other checkout's time")
    return status


if __name__ == "__main__":
    sys.exit(main())
