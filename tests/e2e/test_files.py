"""Workspace files through the SDK: while cells run, large ones, and in all forms."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import os
import re
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import ConnectionLost, NotFound, TooLarge, Unavailable

from tests.e2e.support import DEADLINE_S, BrokerProcess, call, opened, until, whole_system

pytestmark = whole_system

MIB = 1024**2


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        for _ in range(96):
            file.write(os.urandom(MIB))
    return path


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def peak_rss(pid: int) -> int:
    """Bytes that a process has held at most."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def runs_gateway(pid: int) -> bool:
    try:
        # A forked gateway has the command line of its server, which it shares with its kernel.
        names = {b"kernelbroker_kernel", b"kernelbroker_kernel.fork_server"}
        return bool(names & set(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")))
    except OSError:
        return False


async def test_files_are_exchanged_in_both_directions(
    session: kernelbroker.Session, tmp_path: Path
) -> None:
    """A cell reads the client's files and the client reads the cell's files, in each form of data."""
    files = session.files

    async def pieces() -> AsyncIterator[bytes]:
        yield b"12"
        yield b""
        yield b"345"

    local = tmp_path / "local.bin"
    local.write_bytes(b"12345")
    for data in (b"12345", "12345", io.BytesIO(b"12345"), pieces()):
        await files.write("both/ways.txt", data)
        result = await session.run("content = open('both/ways.txt').read()", result_var="content")
        assert result.return_value == "12345"
    await files.upload(local)
    await session.run("open('back.bin', 'wb').write(open('local.bin', 'rb').read()[::-1])")
    await files.download("back.bin", tmp_path / "back.bin")
    assert (tmp_path / "back.bin").read_bytes() == b"54321"
    assert await files.read_text("back.bin") == "54321"
    assert await files.read("both/ways.txt") == b"12345"
    (entry,) = await files.list("both")
    assert (entry.path, entry.kind, entry.size) == ("both/ways.txt", "file", 5)
    assert entry.modified_at.year > 2000
    await files.write("empty", b"")
    assert await files.read("empty") == b""
    with pytest.raises(TypeError, match="binary"):
        await files.write("text", io.StringIO("text"))  # type: ignore[arg-type]
    assert not await files.exists("text")


async def test_while_a_cell_runs(session: kernelbroker.Session) -> None:
    """Files are transferred during an execution, and the execution can wait for them."""
    running = asyncio.create_task(
        session.run(
            """
import os, time
open("begun", "w").close()
while not os.path.exists("signal"): time.sleep(0.01)
print(open("signal").read())
"""
        )
    )
    async with asyncio.timeout(DEADLINE_S):
        await until(lambda: session.files.exists("begun"))
        assert not running.done()
        await session.files.write("signal", "seen")
        assert (await running).stdout == "seen\n"


async def test_a_large_file_takes_little_memory(
    broker: BrokerProcess,
    client: kernelbroker.Broker,
    session: kernelbroker.Session,
    large: Path,
) -> None:
    """The memory of broker and gateway does not grow with the size of a file."""

    async def warm() -> bool:
        status = await client.pool_status()
        return status["idle_containers"] >= 2 and not status["starting_containers"]

    await session.files.write("warm", b"x" * MIB)
    await session.files.read("warm")
    await until(warm)
    processes = [broker.pid, *(pid for pid in broker.family() if runs_gateway(pid))]
    before = {pid: peak_rss(pid) for pid in processes}
    seen: list[tuple[int, int | None]] = []
    size = large.stat().st_size
    await session.files.upload(
        large, "large", progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    seen.clear()

    async def note(done: int, total: int | None) -> None:
        seen.append((done, total))

    target = large.with_name("back")
    await session.files.download("large", target, progress=note)
    assert (digest(target), seen[-1]) == (digest(large), (size, size))
    assert len(processes) >= 2
    for pid in processes:
        assert peak_rss(pid) - before[pid] < 32 * MIB
    await session.files.delete("large")


async def test_ranges_are_answered(
    broker: BrokerProcess, session: kernelbroker.Session, shared_id: str
) -> None:
    """A range is answered according to RFC 9110; an invalid one is ignored."""
    await session.files.write("part", "0123456789")
    path = f"/api/v1/sessions/{shared_id}/files/part"
    for asked, status, content, part in [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-2", 206, b"89", "bytes 8-9/10"),
        ("bytes=-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=5-99", 206, b"56789", "bytes 5-9/10"),
        ("bytes=0-0", 206, b"0", "bytes 0-0/10"),
        ("bytes=4-2", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
        ("bytes=0-1,3-4", 200, b"0123456789", None),
        ("lines=1-2", 200, b"0123456789", None),
    ]:
        async with opened(broker, "GET", path, Range=asked) as answer:
            got = (answer.status, await answer.rest(), answer.headers["Content-Range"])
        assert got == (status, content, part), asked
    for asked in ("bytes=10-", "bytes=99-100", "bytes=-0"):
        async with opened(broker, "GET", path, Range=asked) as answer:
            assert (answer.status, answer.headers["Content-Range"]) == (416, "bytes */10")
            assert b"bad_request" in await answer.rest()
    async with opened(broker, "HEAD", path) as answer:
        assert (answer.status, answer.headers["Content-Length"]) == (200, "10")
        assert answer.headers["Accept-Ranges"] == "bytes"
        assert await answer.rest() == b""


async def test_a_file_that_shrinks(session: kernelbroker.Session, tmp_path: Path) -> None:
    """A download that ends early is an error, and leaves no part of the local file."""
    await session.run("open('shrinks', 'wb').write(bytes(64 << 20))")
    target = tmp_path / "target"
    target.write_text("before")
    done = 0

    async def shrink(now: int, total: int | None) -> None:
        nonlocal done
        if not done:
            await session.run("import os; os.truncate('shrinks', 1 << 20)")
        done = now

    with pytest.raises(ConnectionLost, match="broke off"):
        await session.files.download("shrinks", target, progress=shrink)
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert target.read_text() == "before"
    await session.files.delete("shrinks")


async def test_local_pipes_can_be_transferred(
    session: kernelbroker.Session, tmp_path: Path
) -> None:
    """A local pipe or a file without a size is uploaded completely; a download can write to a pipe."""
    files, pipe = session.files, tmp_path / "pipe"
    os.mkfifo(pipe)
    content = os.urandom(9 * MIB)

    def feed() -> None:
        with pipe.open("wb") as file:
            file.write(content)

    feeding = asyncio.create_task(asyncio.to_thread(feed))
    await files.upload(pipe, "piped")
    await feeding
    assert await files.read("piped") == content
    taking = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    await files.download("piped", pipe)
    assert await taking == content
    assert pipe.is_fifo()
    await files.upload("/proc/self/environ", "environ")
    assert await files.read("environ") == Path("/proc/self/environ").read_bytes()
    (tmp_path / "empty").touch()
    await files.upload(tmp_path / "empty")
    assert await files.read("empty") == b""
    (tmp_path / "link").symlink_to("target")
    await files.download("environ", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == Path("/proc/self/environ").read_bytes()
    with pytest.raises(IsADirectoryError):
        await files.download("environ", tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "link", "pipe", "target"]


@pytest.mark.parametrize("size", [100, 9 * MIB])
async def test_a_file_that_grows(session: kernelbroker.Session, tmp_path: Path, size: int) -> None:
    """The download of a growing file, such as a log, has its size at the beginning."""
    path = tmp_path / "log"
    path.write_bytes(b"a" * size)
    seen = []

    def grow(done: int, total: int | None) -> None:
        seen.append((done, total))
        with path.open("ab") as file:
            file.write(b"b" * 1000)

    await session.files.upload(path, progress=grow)
    assert await session.files.read("log") == b"a" * size
    assert seen[-1] == (size, size)


async def test_a_cancelled_transfer_leaves_nothing(
    session: kernelbroker.Session, large: Path
) -> None:
    """A cancelled transfer ends at once, and leaves nothing on either side."""
    first = asyncio.Event()

    async def stall(done: int, total: int | None) -> None:
        first.set()
        await asyncio.Event().wait()

    target = large.with_name("back")
    await session.files.write("there", bytes(8 * MIB))
    for transfer in (
        session.files.upload(large, "cancelled", progress=stall),
        session.files.download("there", target, progress=stall),
    ):
        task = asyncio.create_task(transfer)
        async with asyncio.timeout(DEADLINE_S):
            await first.wait()
            first.clear()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert [path.name for path in large.parent.iterdir()] == ["large"]
    assert not await session.files.exists("cancelled")
    names = [f.path for f in await session.files.list()]
    assert not any(name.startswith(".") for name in names)


async def test_the_limit_of_a_file(session: kernelbroker.Session, large: Path) -> None:
    """More than the default of 100 MiB is refused before it is sent."""
    with large.open("ab") as file:
        file.truncate(101 * MIB)
    with pytest.raises(TooLarge, match="104,857,600"):
        await session.files.upload(large, "over")
    assert not await session.files.exists("over")


async def test_files_outlive_a_kernel(client: kernelbroker.Broker) -> None:
    """After a death and a restart the files are there at once."""
    async with client.session() as session:
        await session.files.write("kept/a.txt", "kept")
        await session.run("import os; os._exit(3)")
        assert await session.files.read("kept/a.txt") == b"kept"
        await session.restart()
        assert await session.files.read("kept/a.txt") == b"kept"
        await session.files.write("kept/a.txt", "anew")
        result = await session.run("print(open('kept/a.txt').read())")
        assert result.stdout == "anew\n"


async def test_a_sandbox_that_died_in_silence(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """Files of a session whose kernel died while nothing ran are served by the next one."""
    async with client.session() as session:
        await session.files.write("a.txt", "kept")
        await session.run(
            """
import os, threading, time
def die():
    while not os.path.exists("die"): time.sleep(0.01)
    os._exit(3)
threading.Thread(target=die).start()
"""
        )
        await session.files.write("die", "")

        async def replaced() -> bool:
            with contextlib.suppress(Unavailable):  # it died just then
                assert await session.files.read("a.txt") == b"kept"
            status, info = await call(broker, "GET", f"/api/v1/sessions/{session.session_id}")
            return status == 200 and bool(info["restarts"])

        await until(replaced)
        assert (await session.run("1")).kernel_restarted


async def test_the_result_lists_changed_files(session: kernelbroker.Session) -> None:
    """The result lists the files that the cell wrote; an upload meanwhile is a change as well."""
    result = await session.run(
        """
import os
os.makedirs("out/deep", exist_ok=True)
open("out/deep/a.csv", "w").write("1,2")
open("out/汉.txt", "w").write("")
"""
    )
    assert [(f.path, f.size) for f in result.files] == [("out/deep/a.csv", 3), ("out/汉.txt", 0)]
    await session.files.write("uploaded", "x")
    assert (await session.run("1")).files == []
    for file in result.files:
        assert len(await session.files.read(file.path)) == file.size


MANY_FILES = """
import os, subprocess
os.makedirs("many/images")
for number in range(1100):
    open(f"many/images/{number}.png", "w").close()
"""
PROCESS = """
subprocess.Popen("sleep 0.3; echo x > many/by_process; mv many/by_process many/done", shell=True)
"""


async def test_changed_files_beside_many_others(client: kernelbroker.Broker) -> None:
    """Among many files, results list those that changed, whatever in the sandbox wrote them, and once."""
    async with client.session() as session:
        other = await session.context("other")

        async def changed(code: str, by: kernelbroker.Session = session) -> list[str]:
            result = await by.run(code)
            assert result.success
            assert result.truncated is None
            return [file.path for file in result.files]

        made = await session.run(MANY_FILES)
        assert made.truncated is not None
        assert made.truncated.files
        assert len(made.files) == 200
        twenty = "for i in range(20): open(f'many/new{i}', 'w').close()"
        report = "os.makedirs('many/out'); open('many/out/report.pdf', 'w').close()"
        assert len(await changed(f"{report}\n{twenty}")) == 21
        assert await changed(PROCESS) == []
        await until_file(session, "many/done")
        assert await changed("1") == ["many/done"]
        await session.files.write("many/by_client", "x")
        assert await changed("open('many/images/17.png', 'a').write('x')") == ["many/images/17.png"]
        assert await changed("open('many/by_other', 'w').close()", by=other) == ["many/by_other"]
        assert await changed("1") == []
        assert await changed("1", by=other) == []


async def until_file(session: kernelbroker.Session, path: str) -> None:
    async def exists() -> bool:
        return await session.files.exists(path)

    await until(exists)


def test_the_synchronous_client_transfers_files(broker: BrokerProcess, tmp_path: Path) -> None:
    """The synchronous client has the same calls; progress is reported in the caller's thread."""
    local = tmp_path / "local"
    local.write_bytes(os.urandom(3 * MIB))
    threads = set()

    def progress(done: int, total: int | None) -> None:
        threads.add(threading.current_thread())

    with (
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        files = session.files
        files.upload(local, "a/b", progress)
        files.download("a/b", tmp_path / "back", progress)
        assert (tmp_path / "back").read_bytes() == local.read_bytes() == files.read("a/b")
        assert b"".join(files.stream("a/b")) == local.read_bytes()
        files.write("t", "text")
        files.move("t", "a/t")
        files.mkdir("m")
        assert files.read_text("a/t") == "text"
        assert [f.path for f in files.list(recursive=True)] == ["a", "a/b", "a/t", "m"]
        assert files.exists("m")
        files.delete("a", recursive=True)
        assert not files.exists("a/b")
        with pytest.raises(NotFound):
            files.read("a/b")
    assert threads == {threading.current_thread()}


async def test_sandbox_client_transfers_files(broker: BrokerProcess, tmp_path: Path) -> None:
    """`SandboxClient` uploads and downloads files of its session."""
    (tmp_path / "in").write_text("abc")
    async with kernelbroker.SandboxClient(broker.url, token=broker.token) as client:
        await client.upload(tmp_path / "in")
        await client.execute("open('out', 'w').write(open('in').read().upper())")
        await client.download("out", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "ABC"


async def test_the_command_line_transfers_files(broker: BrokerProcess, tmp_path: Path) -> None:
    """Files are put, listed, fetched and removed from the shell; errors are one line."""

    async def command(*args: str) -> tuple[int | None, str, str]:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kernelbroker.cli", "files", "--session", "shell", *args),
            env=broker.client_environ,
            cwd=tmp_path,
            stdout=pipe,
            stderr=pipe,
        )
        out, err = await asyncio.wait_for(process.communicate(), DEADLINE_S)
        return process.returncode, out.decode(), err.decode()

    (tmp_path / "a.txt").write_text("12345")
    assert await command("put", "a.txt") == (0, "", "")
    assert await command("put", "a.txt", "sub/b.txt") == (0, "", "")
    status, out, _ = await command("ls", "-r")
    lines = [line.split() for line in out.splitlines()]
    assert (status, [line[-1] for line in lines]) == (0, ["a.txt", "sub/", "sub/b.txt"])
    assert lines[0][0] == "5"
    assert await command("get", "sub/b.txt") == (0, "", "")
    assert (tmp_path / "b.txt").read_text() == "12345"
    status, _, err = await command("rm", "sub")
    assert (status, "not empty" in err) == (2, True)
    assert await command("rm", "-r", "sub") == (0, "", "")
    status, _, err = await command("get", "sub/b.txt")
    assert (status, err) == (2, "kernelbroker: sub/b.txt: there is no such file or directory\n")
    await call(broker, "DELETE", "/api/v1/sessions/shell")
