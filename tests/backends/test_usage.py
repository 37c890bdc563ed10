"""The measured size of a workspace with any content."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kernelbroker_server.backends.base import Usage
from kernelbroker_server.backends.usage import measure

MANY = 1_000_000
MIB = 1024**2


def du(directory: Path) -> Usage:
    """The result of du(1), without the directory itself, which du counts."""
    size, files = (
        int(subprocess.check_output(["du", "-s", option, directory]).split()[0])
        for option in ("--block-size=1", "--inodes")
    )
    return Usage(size - directory.stat().st_blocks * 512, files - 1)


def test_usage_equals_du(tmp_path: Path) -> None:
    """Files, directories, links, pipes and sockets count as in du(1); hard links count once."""
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
    """A tree of any depth is measured completely."""
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


def test_count_stops_at_the_bound(tmp_path: Path) -> None:
    """The count stops at the bound, and the result is incomplete."""
    for number in range(1000):
        (tmp_path / f"{number}").touch()
    usage = measure(tmp_path, 100)
    assert (usage.files, usage.complete) == (101, False)


def test_missing_directory_is_empty(tmp_path: Path) -> None:
    """A missing directory, or a link in its place, counts as empty."""
    (tmp_path / "link").symlink_to("/usr")
    assert measure(tmp_path / "gone", MANY) == Usage()
    assert measure(tmp_path / "link", MANY) == Usage()


def test_without_descriptors_the_size_is_unknown(tmp_path: Path) -> None:
    """A walk without free descriptors closes its own. It says nothing about the workspace."""
    (tmp_path / Path(*["d"] * 50)).mkdir(parents=True)
    (tmp_path / "a").mkdir()
    code = (
        "import os, pathlib, resource, sys\n"
        "from kernelbroker_server.backends.base import UNKNOWN\n"
        "from kernelbroker_server.backends.usage import measure\n"
        "before = os.listdir('/proc/self/fd')\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "assert measure(pathlib.Path(sys.argv[1]), 10**6) == UNKNOWN\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 20))\n"
        "assert measure(pathlib.Path(sys.argv[1]), 10**6) == UNKNOWN\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))\n"
        "assert os.listdir('/proc/self/fd') == before\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True)


RENAMES = """
import os, pathlib, sys
os.chdir(sys.argv[1])
print("renaming", flush=True)
while True:
    for old, new in [("a", "b"), ("b", "a")]:
        os.rename(old, new)
        os.rename(f"deep/{old}", f"deep/{new}")
        os.rename(f"file-{old}", f"file-{new}")
"""


def test_renamed_files_are_counted(tmp_path: Path) -> None:
    """A process that renames files and directories continuously cannot hide them."""
    deep = Path(*["d"] * 80)
    for name in ("a", "deep/a"):
        (tmp_path / name / deep).mkdir(parents=True)
        (tmp_path / name / deep / "file").write_bytes(bytes(MIB))
    (tmp_path / "file-a").write_bytes(bytes(MIB))
    expected = measure(tmp_path, MANY)
    assert (expected.files, expected.complete) == (3 + 2 * 81 + 1, True)
    argv = [sys.executable, "-c", RENAMES, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as renaming:
        try:
            assert renaming.stdout is not None
            assert renaming.stdout.readline() == b"renaming\n"
            found = [measure(tmp_path, MANY) for _ in range(50)]
        finally:
            renaming.kill()
    assert all(usage.size <= expected.size for usage in found)
    assert all(usage == expected for usage in found if usage.complete)
    assert sum(usage == expected for usage in found) > 25


def test_a_changing_tree_is_measured_safely(tmp_path: Path) -> None:
    """Directories that are moved or replaced by links do not lead out, and cause no error."""
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
    """A broker that is not root counts the files in a directory of mode 000."""
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
