"""Processes beside the kernel: their output, their input, their ends, and who watches them."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import kernelbroker_kernel
import pytest

from tests.support.requires import KERNEL_PYTHON, requires

pytestmark = requires("the kernels' environment")
PACKAGE = Path(kernelbroker_kernel.__file__).parent

PRELUDE = """
import asyncio, json, os, signal, sys
from struct import unpack_from
from kernelbroker_kernel import environment
environment.WORKSPACE = sys.argv[1]
from kernelbroker_kernel.errors import Refused
from kernelbroker_kernel.process import KEPT_BYTES, Command
from kernelbroker_kernel.process_watcher import WAITING_BYTES
from kernelbroker_kernel.processes import MAX_ENDED, Processes

processes = Processes()

def parts(data):
    offset, found = 0, {}
    while offset < len(data):
        kind, size = unpack_from("!cI", data, offset)
        found[kind.decode()] = found.get(kind.decode(), b"") + data[offset + 5 : offset + 5 + size]
        offset += 5 + size
    return found

async def output(process, watcher):
    data = b""
    while not (process.ended is not None and watcher.is_empty):
        data += await watcher.next(30)
        process.taken()
    process.leave(watcher)
    found = parts(data)
    return found | {"x": json.loads(found["x"])} if "x" in found else found

async def run(cmd, *args, **options):
    return await output(*processes.start(Command(cmd, list(args), **options)))

async def gone(pid):
    while pid in [process.pid for process in processes.list()]:
        await asyncio.sleep(0.01)

def refusal(function, *arguments):
    try:
        function(*arguments)
    except Refused as error:
        return error.code

def report(*values):
    print(json.dumps(values if len(values) > 1 else values[0], default=lambda data: data.decode("latin-1")))
"""


def run(tmp_path: Path, source: str) -> Any:
    """Run a coroutine `main` in the kernels' environment. Returns what it reports."""
    program = f"{PRELUDE}\n{textwrap.dedent(source)}\nasyncio.run(asyncio.wait_for(main(), 50))\n"
    done = subprocess.run(
        [KERNEL_PYTHON, "-c", program, str(tmp_path)],
        env={"PYTHONPATH": str(PACKAGE.parent), "PATH": "/usr/bin:/bin", "VALUE": "given"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_output_and_status_are_told_apart(tmp_path: Path) -> None:
    """Standard output, standard error and the status arrive; a signal is named; no process is left."""
    plain, killed, listed = run(
        tmp_path,
        """
        async def main():
            plain = await run("bash", "-c", "echo $VALUE $MINE; pwd >&2; exit 3", env={"MINE": "own"})
            killed = await run("bash", "-c", "kill -TERM $$")
            report(plain, killed["x"], len(processes.list()))
        """,
    )
    assert (plain["o"], plain["e"]) == ("given own\n", f"{tmp_path}\n")
    assert plain["x"] == {"exit_code": 3, "exited": True}
    assert killed == {"exit_code": 143, "exited": False, "signal": "SIGTERM"}
    assert listed == 0


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("Command('no-such-program')", "not_found"),
        ("Command('/etc/hosts')", "conflict"),
        ("Command('true', cwd='nowhere')", "not_found"),
        ("Command('true', cwd='a\\0b')", "bad_request"),
        ("Command('true', ['x' * 3_000_000])", "conflict"),
    ],
)
def test_what_cannot_start_is_refused(tmp_path: Path, command: str, code: str) -> None:
    """The refusal says why, and no descriptor stays open."""
    found, before, after = run(
        tmp_path,
        f"""
        async def main():
            before = len(os.listdir("/proc/self/fd"))
            found = {{refusal(processes.start, {command}) for _ in range(20)}}
            report(list(found), before, len(os.listdir("/proc/self/fd")))
        """,
    )
    assert found == [code]
    assert after - before <= 3, "the signal's own descriptors"


@pytest.mark.slow
def test_a_slow_watcher_slows_the_process_down(tmp_path: Path) -> None:
    """No output is dropped while somebody watches, and only a bounded part of it waits."""
    waiting, limit, total = run(
        tmp_path,
        """
        async def main():
            process, watcher = processes.start(Command("head", ["-c", "30000000", "/dev/zero"]))
            while not watcher.is_full:
                await asyncio.sleep(0.01)
            for _ in range(20):
                await asyncio.sleep(0.01)
            waiting = watcher._size
            report(waiting, WAITING_BYTES, len((await output(process, watcher))["o"]))
        """,
    )
    assert waiting < 2 * limit
    assert total == 30_000_000


def test_what_nobody_watches_is_kept_for_the_next_watcher(tmp_path: Path) -> None:
    """The process goes on meanwhile. The last part of its output is kept, with its end, once."""
    small, large, kept, again = run(
        tmp_path,
        """
        async def unwatched(*args):
            process, watcher = processes.start(Command("bash", ["-c", *args], stdin=True))
            process.leave(watcher)
            await gone(process.pid)
            return process.pid
        async def main():
            small = await unwatched("echo early; exit 2")
            large = await unwatched("head -c 10000000 /dev/zero; echo last")
            found = await output(*processes.watch(small))
            rest = await output(*processes.watch(large))
            many = [await unwatched("echo") for _ in range(MAX_ENDED + 3)]
            report(found, [len(rest["o"]), rest["o"][-5:], rest["x"]], KEPT_BYTES,
                   [refusal(processes.watch, small), refusal(processes.watch, many[0])])
        """,
    )
    assert (small["o"], small["x"]["exit_code"]) == ("early\n", 2)
    assert large[0] <= kept and large[1:] == ["last\n", {"exit_code": 0, "exited": True}]
    assert again == ["not_found", "not_found"]


def test_children_in_the_background_do_not_hold_up_the_end(tmp_path: Path) -> None:
    """A child that keeps the output open goes on when its parent has ended, and can still write."""
    ended, written = run(
        tmp_path,
        """
        async def main():
            code = "(trap '' PIPE; read < pipe; echo late && echo alive > file) & echo parent"
            os.mkfifo(os.path.join(sys.argv[1], "pipe"))
            found = await run("bash", "-c", code)
            with open(os.path.join(sys.argv[1], "pipe"), "w") as pipe:
                pipe.write("go\\n")
            path = os.path.join(sys.argv[1], "file")
            while not (os.path.exists(path) and os.path.getsize(path)):
                await asyncio.sleep(0.01)
            report(found["o"], open(path).read())
        """,
    )
    assert (ended, written) == ("parent\n", "alive\n")


def test_a_kill_reaches_children(tmp_path: Path) -> None:
    """A signal goes to the whole group; after SIGKILL the process has ended when the call returns."""
    status, second, children = run(
        tmp_path,
        """
        async def main():
            process, watcher = processes.start(Command("bash", ["-c", "sleep 1000 & echo $!; wait"]))
            child = int(parts(await watcher.next(30))["o"])
            process.taken()
            await process.signal(signal.SIGKILL)
            try:
                await process.signal(signal.SIGKILL)
                second = None
            except Refused as error:
                second = error.code
            found = await output(process, watcher)
            while os.path.exists(f"/proc/{child}"):
                state = open(f"/proc/{child}/stat").read().split()[2]
                if state == "Z":
                    break
                await asyncio.sleep(0.01)
            report(found["x"]["signal"], second, "ended")
        """,
    )
    assert (status, second, children) == ("SIGKILL", "not_found", "ended")


def test_input_is_fed_until_it_is_closed(tmp_path: Path) -> None:
    """Input of any size waits until it is read; it ends on request; then there is no more."""
    size, late, timed_out = run(
        tmp_path,
        """
        async def main():
            process, watcher = processes.start(Command("wc", ["-c"], stdin=True))
            await process.feed(b"x" * 3_000_000)
            await process.close_input()
            late = None
            try:
                await process.feed(b"x")
            except Refused as error:
                late = error.code
            found = await output(process, watcher)
            deaf = await run("sleep", "100", timeout=0.2)
            report(found["o"].strip(), late, deaf["x"]["signal"])
        """,
    )
    assert (size, late, timed_out) == ("3000000", "conflict", "SIGKILL")


def test_a_terminal_is_one(tmp_path: Path) -> None:
    """A program in a terminal sees its size and controls it, and Ctrl-C interrupts what runs there."""
    text, ended = run(
        tmp_path,
        """
        async def main():
            process, watcher = processes.start(Command("bash", ["--norc", "-i"], size=(77, 22)))
            data = b""
            async def until(text):
                nonlocal data
                while text not in data:
                    data += parts(await watcher.next(30)).get("p", b"")
                    process.taken()
            await process.feed(b"stty size\\n")
            await until(b"22 77")
            process.resize((99, 33))
            # What prints has the terminal already: bash itself can miss a Ctrl-C between two commands.
            await process.feed(b"stty size; sh -c 'echo on; exec sleep 1000'\\n")
            await until(b"33 99")
            await until(b"\\non")
            await process.feed(b"\\x03")
            await process.feed(b"echo st$((1))ll\\n")
            await until(b"st1ll")
            await process.feed(b"exit 4\\n")
            ended = (await output(process, watcher))["x"]
            report(data, ended)
        """,
    )
    assert "22 77" in text and "st1ll" in text
    assert ended == {"exit_code": 4, "exited": True}


def test_a_hundred_processes_run_at_once(tmp_path: Path) -> None:
    """All of them are reaped, and each watcher gets its own output."""
    outputs, zombies = run(
        tmp_path,
        """
        async def main():
            found = await asyncio.gather(*(run("sh", "-c", f"echo {n}; exit {n}") for n in range(100)))
            zombies = 0
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
                except OSError:
                    continue
                zombies += fields[0] == "Z" and int(fields[1]) == os.getpid()
            report([[f["o"], f["x"]["exit_code"]] for f in found], zombies)
        """,
    )
    assert outputs == [[f"{n}\n", n] for n in range(100)]
    assert zombies == 0
