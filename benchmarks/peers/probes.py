"""Probes: what a peer keeps when it is tried. Only the standard library.

A probe runs cells in a session of its own and judges by their effect, not by documentation. It
answers in a few words; the first one is "kept", "partly" or "lost".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.adapter import Adapter, Outcome, call
from peers.memory import peak_mib

SECRET_VARIABLE = "BENCHMARK_SECRET"
"""Set by the runner in the environment of the process that uses the peer's client."""
DEADLINE_S = 20.0
FLOOD_MB = 200
FLOOD_DEADLINE_S = 180.0
LINES_AFTER_CUT = 20

READ_ENVIRONMENT = """
import os, pathlib
wanted = bytes.fromhex({wanted!r})
found = "environ" if wanted in repr(dict(os.environ)).encode() else "none"
if found == "none":
    for each in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in each.read_bytes():
                found = "proc"
        except OSError:
            pass
print("found:" + found)
"""
READ_FILE = """
try:
    print(open({path!r}).read())
except OSError as exc:
    print("refused:" + type(exc).__name__)
"""
READ_LOOPBACK = """
import socket
try:
    with socket.create_connection(("127.0.0.1", {port}), timeout=3) as connection:
        print(connection.recv(100).decode())
except OSError as exc:
    print("refused:" + type(exc).__name__)
"""
COUNT_SLOWLY = f"""
import time
for number in range({LINES_AFTER_CUT}):
    print("line", number, flush=True)
    time.sleep(0.1)
"""
FLOOD = f"for _ in range({FLOOD_MB * 10}): print('x' * 99_999)"


@dataclass(frozen=True)
class Probe:
    title: str
    run: Callable[[Adapter], Awaitable[str]]


class Bench:
    """A session of an adapter with a deadline for each cell."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._threads = ThreadPoolExecutor(1)
        self.session: Any = None

    async def __aenter__(self) -> Bench:
        self.session = await call(self.adapter.open, executor=self._threads)
        return self

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(DEADLINE_S):
                await call(self.adapter.close, self.session, executor=self._threads)

    async def run(
        self, code: str, timeout: float | None = None, deadline_s: float = DEADLINE_S
    ) -> Outcome:
        """Run a cell; what the client raises is the outcome's error.

        Raises TimeoutError after the deadline.
        """
        begin = time.monotonic()
        try:
            async with asyncio.timeout(deadline_s):
                outcome: Outcome = await call(
                    self.adapter.run, self.session, code, timeout, executor=self._threads
                )
                return outcome
        except Exception as exc:
            if isinstance(exc, TimeoutError) and time.monotonic() - begin >= deadline_s:
                raise
            return Outcome(error=f"{type(exc).__name__}: {exc}")


async def host_files(adapter: Adapter) -> str:
    word = secrets.token_hex(8)
    with tempfile.NamedTemporaryFile("w", dir=Path.home(), prefix=".benchmark-secret-") as file:
        file.write(word)
        file.flush()
        async with Bench(adapter) as bench:
            text = (await bench.run(READ_FILE.format(path=file.name))).text
    return _reach(word in text, "refused:" in text, "a file of the user was read")


async def environment(adapter: Adapter) -> str:
    code = READ_ENVIRONMENT.format(wanted=os.environ[SECRET_VARIABLE].encode().hex())
    async with Bench(adapter) as bench:
        text = (await bench.run(code)).text
    where = "in os.environ" if "found:environ" in text else "in /proc"
    seen = "found:environ" in text or "found:proc" in text
    return _reach(seen, "found:none" in text, f"read {where}")


async def loopback(adapter: Adapter) -> str:
    word = secrets.token_hex(8)

    def greet() -> None:
        with contextlib.suppress(OSError):
            while True:
                listener.accept()[0].sendall(word.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, daemon=True).start()
        async with Bench(adapter) as bench:
            code = READ_LOOPBACK.format(port=listener.getsockname()[1])
            text = (await bench.run(code)).text
        listener.shutdown(socket.SHUT_RDWR)
    return _reach(word in text, "refused:" in text, "a server of the host answered")


def _reach(reached: bool, refused: bool, how: str) -> str:
    if reached:
        return f"lost: {how}"
    return "kept: out of reach" if refused else "lost: the probe's cell gave no answer"


async def timeout(adapter: Adapter) -> str:
    async with Bench(adapter) as bench:
        await bench.run("x = 41")
        begin = time.monotonic()
        try:
            outcome = await bench.run("while True: pass", 2)
        except TimeoutError:
            return f"lost: a timeout of 2 s did not end the cell in {DEADLINE_S:.0f} s"
        took = time.monotonic() - begin
        if outcome.error is None:
            return "lost: the timeout was not told"
        return await _state_after(bench, f"ended after {took:.1f} s")


async def exits(adapter: Adapter) -> str:
    async with Bench(adapter) as bench:
        await bench.run("x = 41")
        begin = time.monotonic()
        try:
            outcome = await bench.run("import os; os._exit(3)")
        except TimeoutError:
            return f"lost: the client hung for {DEADLINE_S:.0f} s"
        told = "told" if outcome.error is not None else "not told"
        note = f"{told} after {time.monotonic() - begin:.1f} s"
        verdict = await _state_after(bench, note)
        # The interpreter is gone: its state cannot be kept. What counts is the message and the next cell.
        if outcome.error is not None and "next cell works" in verdict:
            return verdict.replace("partly", "kept", 1)
        return verdict


async def _state_after(bench: Bench, note: str) -> str:
    try:
        again = await bench.run("print('x' in globals() and x + 1)")
    except TimeoutError:
        return f"lost: {note}; the next cell hangs"
    if "42" in again.text:
        return f"kept: {note}; state kept"
    if again.error is None and "False" in again.text:
        return f"partly: {note}; state lost, the next cell works"
    return f"lost: {note}; the session is unusable"


async def disconnect(adapter: Adapter) -> str:
    async with Bench(adapter) as bench:
        try:
            async with asyncio.timeout(DEADLINE_S):
                text = await call(adapter.resume, bench.session, COUNT_SLOWLY)
        except NotImplementedError:
            return "lost: the client has no means to come back"
        except TimeoutError:
            return f"lost: the client hung for {DEADLINE_S:.0f} s"
    came = sum(f"line {number}\n" in text for number in range(LINES_AFTER_CUT))
    word = "kept" if came == LINES_AFTER_CUT else "lost"
    return f"{word}: {came} of {LINES_AFTER_CUT} lines"


async def flood(adapter: Adapter) -> str:
    async with Bench(adapter) as bench:
        before = peak_mib()
        try:
            outcome = await bench.run(FLOOD, deadline_s=FLOOD_DEADLINE_S)
        except TimeoutError:
            return f"lost: not done after {FLOOD_DEADLINE_S:.0f} s"
        grown = peak_mib() - before
        came = outcome.text.count("x") / 1e6
        alive = "1" in (await bench.run("print(1)")).text
    note = f"{came:.0f} of {FLOOD_MB} MB came, client +{grown:.0f} MiB"
    if not alive:
        return f"lost: {note}; the session is unusable"
    if came > FLOOD_MB * 0.999:
        return f"kept: {note}"
    if outcome.cut or outcome.error is not None:
        return f"kept: {note}; the cut is told"
    return f"lost: {note}; the cut is not told"


PROBES = {
    "host_files": Probe("host files out of reach", host_files),
    "environment": Probe("environment of the host process out of reach", environment),
    "loopback": Probe("host's loopback out of reach", loopback),
    "timeout": Probe("after a timeout", timeout),
    "exit": Probe("after `os._exit`", exits),
    "disconnect": Probe("output after a client's disconnect", disconnect),
    "flood": Probe(f"{FLOOD_MB} MB of output", flood),
}
