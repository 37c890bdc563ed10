"""How much a workspace holds, whatever user code made of it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kernelbroker_server.backends.usage import Usage, measure

MANY = 1_000_000


def du(directory: Path) -> Usage:
    """What du(1) says, which counts the directory itself as well."""
    size, files = (
        int(subprocess.check_output(["du", "-s", option, directory]).split()[0])
        for option in ("--block-size=1", "--inodes")
    )
    return Usage(size - directory.stat().st_blocks * 512, files - 1)


def test_as_du_has_it(tmp_path: Path) -> None:
    """Files, directories, links, pipes and sockets count as du counts them; hard links once."""
    (tmp_path / "sub/new\nline").mkdir(parents=True)
    (tmp_path / "sub/new\nline/数据").write_bytes(bytes(300_000))
    os.link(tmp_path / "sub/new\nline/数据", tmp_path / "again")
    (tmp_path / "root").symlink_to("/")
    (tmp_path / "up").symlink_to("..")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.chdir(tmp_path):
        listener.bind("socket")  # whose path must be short
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10**12)
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff")).touch()
    assert measure(tmp_path, MANY) == du(tmp_path)


def test_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of any depth is measured, beside what lies at its top."""
    monkeypatch.chdir(tmp_path)
    for _ in range(1500):
        Path("deeper").mkdir()
        Path("file").touch()
        os.chdir("deeper")
    os.chdir(tmp_path)
    try:
        before = len(list(Path("/proc/self/fd").iterdir()))
        assert measure(tmp_path, MANY).files == 3000
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "deeper"], check=True)


def test_the_count_ends(tmp_path: Path) -> None:
    """Beyond the bound nothing is counted: it is known to be too much."""
    for number in range(1000):
        (tmp_path / f"{number}").touch()
    assert measure(tmp_path, 100).files == 101


def test_nothing_there(tmp_path: Path) -> None:
    """A directory that is gone, or a link in its place, holds nothing."""
    (tmp_path / "link").symlink_to("/usr")
    assert measure(tmp_path / "gone", MANY) == Usage()
    assert measure(tmp_path / "link", MANY) == Usage()


def test_while_it_changes(tmp_path: Path) -> None:
    """Directories that become links and move about lead nowhere else, and break nothing."""
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    for number in range(500):
        (outside / f"{number}").mkdir(parents=True)
    deep = inside / "a" / Path(*["d"] * 80)
    deep.mkdir(parents=True)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            (inside / "a").rename(inside / "b")
            (inside / "a").symlink_to(outside)
            (inside / "a").unlink()
            (inside / "b").rename(inside / "a")

    thread = threading.Thread(target=change)
    thread.start()
    try:
        counts = {measure(inside, MANY).files for _ in range(300)}
    finally:
        stop.set()
        thread.join()
    assert max(counts) <= 83
    assert measure(inside, MANY).files == 81


def test_directories_that_may_not_be_read(tmp_path: Path) -> None:
    """Also a broker that is not root counts what lies in a directory of mode 000."""
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked/file").touch()
    (tmp_path / "locked").chmod(0)
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "locked", tmp_path / "locked/file"):
            os.chown(path, 65534, 65534)
        for parent in tmp_path.parents:
            parent.chmod(parent.stat().st_mode | 0o011)
    code = (
        "import os, pathlib, sys\n"
        "from kernelbroker_server.backends.usage import measure\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "assert measure(pathlib.Path(sys.argv[1]), 10).files == 2\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)
