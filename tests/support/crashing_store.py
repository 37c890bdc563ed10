"""A program that uses a durable store and is killed at one of its writes.

    python -m tests.support.crashing_store DIR each         a directory for each write of one run
    python -m tests.support.crashing_store DIR chain SEED   many runs in one directory, killed at random

What a client would have seen before the kill is in the file `seen`, one JSON value a line. The run is a
fork of this process, which is quicker than a start of Python.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from kernelbroker.protocol.events import Result, Started, Stdout
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions
from kernelbroker_server.sessions import journal, store_thread
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.sessions.store import Entry, SessionRecord

EXECUTIONS = 2
OUTPUTS = 3
SEGMENT_BYTES = 700
CHAIN = 60
_MOST_POINTS = 3000
FAR = time.time() + 10**6

write = os.write


class Faults:
    """Counts the writes of this process, and kills it at one of them. `torn_write` counts three."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self._fatal = fatal

    def hit(self) -> bool:
        """Whether this is the fatal one."""
        self.count += 1
        return self.count == self._fatal

    def may_kill(self, *_: object) -> None:
        if self.hit():
            os.kill(os.getpid(), signal.SIGKILL)

    def torn_write(self, fd: int, data: bytes) -> int:
        """Killed before it, in the middle, or after it."""
        self.may_kill()
        if self.hit():
            write(fd, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        written = write(fd, data)
        self.may_kill()
        return written

    def install(self) -> None:
        faults = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                faults.may_kill()
                cursor = super().execute(statement, *values)
                if statement == "COMMIT":
                    faults.may_kill()
                return cursor

            def executemany(self, statement: str, rows: Any) -> sqlite3.Cursor:
                faults.may_kill()
                return super().executemany(statement, rows)

        connect, unlink, rename = sqlite3.connect, Path.unlink, Path.rename

        def unlink_or_die(path: Path, missing_ok: bool = False) -> None:
            faults.may_kill()
            unlink(path, missing_ok)

        def rename_or_die(path: Path, target: Path) -> Path:
            faults.may_kill()
            return rename(path, target)

        def connect_or_die(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*args, **options, factory=Connection)
            connection.set_progress_handler(faults.may_kill, 40)  # also within a statement
            return connection

        os.write = self.torn_write  # type: ignore[assignment]
        sqlite3.connect = connect_or_die  # type: ignore[assignment]
        Path.unlink = unlink_or_die  # type: ignore[method-assign]
        Path.rename = rename_or_die  # type: ignore[method-assign]


async def use(directory: Path, name: str) -> None:
    """Open a store, run executions in a session, and close it."""
    seen = os.open(directory / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def see(*fact: object) -> None:
        write(seen, json.dumps(fact).encode() + b"\n")

    store = DurableStore(directory / "state")
    await store.start()
    await store.end_lost()
    store.record_session(SessionRecord(name, "t", name, SessionOptions()))
    for number in range(EXECUTIONS):
        store.put_entry(Entry("key", "t", f"{name}-{number}", b"value", FAR))
        see("put", f"{name}-{number}")
        log = store.create_execution(name, str(number), ExecutionRequest(code="1"))
        log.begin()
        see("begun", name, str(number))
        events = [Stdout(content=f"{name} {number} {n} " + 50 * "x") for n in range(OUTPUTS)]
        for event in (Started(), *events, Result(success=True)):
            log.append(event)
            see("event", name, str(number), log.read()[-1].json.decode())
            await asyncio.sleep(0.002)  # the store's thread works meanwhile
        see("dropping", f"{name}-{number}")
        store.drop_entry("key", "t", f"{name}-{number}")
        see("dropped", f"{name}-{number}")
    store.end_session(name, "over")
    see("ended", name)
    log_again = await store.past_execution("t", name, "0")
    assert log_again is not None
    await store.stop()


def run(directory: Path, name: str, fatal: int) -> int:
    """Run `use` in a fork, which is killed at this write. Returns its status: 0 if it had fewer writes."""
    pid = os.fork()
    if not pid:
        try:
            journal.Journal.__init__.__kwdefaults__["segment_bytes"] = SEGMENT_BYTES
            store_thread._GROUP_S = 0.001
            Faults(fatal).install()
            asyncio.run(use(directory, name))
            os._exit(0)
        except BaseException as exc:
            sys.stderr.write(repr(exc))
            sys.stderr.flush()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    directory, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "each":
        for point in range(1, _MOST_POINTS):
            where = directory / str(point)
            where.mkdir()
            status = run(where, "s", point)
            if status != -signal.SIGKILL:
                sys.stdout.write(str(point))
                return status
        return 1
    chance = random.Random(int(sys.argv[3]))
    for number in range(CHAIN):
        # Early ones hit the recovery, later ones the work, the latest nothing.
        if run(directory, f"s{number}", int(chance.expovariate(1 / 120)) + 1) == 1:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
