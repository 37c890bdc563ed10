"""The workspace files that changed from cell to cell, in small workspaces and in large ones."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import perf_counter, time_ns

import msgspec
import pytest
from kernelbroker.protocol import events
from kernelbroker_kernel import changed_files
from kernelbroker_kernel.changed_files import (
    CLOCK_SLACK_NS,
    MAX_REPORTED,
    WATCHED_FROM,
    WorkspaceChanges,
    scan,
)

WATCHES = (False, True)
BEGUN: list[WorkspaceChanges] = []


def touch(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def fill(root: Path, count: int, folder: str = "images") -> None:
    """Make many old files, so that the system is asked for reports."""
    (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (root / folder / f"{number:05}.png").touch()


def begun(root: Path, *, watch: bool = True) -> WorkspaceChanges:
    """What a kernel knows that has run one cell."""
    files = WorkspaceChanges(str(root))
    files.begin(watch=watch)
    files.end()
    BEGUN.append(files)
    return files


@pytest.fixture(autouse=True)
def _queues() -> Iterator[None]:
    """The system has few queues for all tests that run at the same time."""
    yield
    while BEGUN:
        BEGUN.pop().begin(watch=False)


def queues() -> list[int]:
    """The descriptors of this process that are queues of reports."""
    return [int(each.name) for each in Path("/proc/self/fd").iterdir() if is_inotify(each)]


def is_inotify(descriptor: Path) -> bool:
    with suppress(OSError):
        return "inotify" in str(descriptor.readlink())
    return False


def found(files: WorkspaceChanges) -> list[str]:
    """The paths of what changed until the next cell's end, which are all."""
    files.begin(known=True)
    changes, truncated = files.end()
    json.dumps(changes)
    msgspec.convert(changes, list[events.FileChange])
    assert not truncated
    return [change["path"] for change in changes]


@pytest.fixture(params=["scanned", "watched"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A workspace of each size."""
    if request.param == "watched":
        fill(tmp_path, WATCHED_FROM + 100)
    return tmp_path


def make_pipe(root: Path) -> None:
    os.mkfifo(root / "pipe")


def rewrite_with_old_time(root: Path) -> None:
    stat = (root / "old.txt").stat()
    (root / "old.txt").write_text("y")
    os.utime(root / "old.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))


def replace_with_old_time(root: Path) -> None:
    stat = (root / "old.txt").stat()
    (root / "draft").write_text("y")
    os.utime(root / "draft", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (root / "draft").rename(root / "old.txt")


def unpack(root: Path) -> None:
    """An archive restores size and time of modification."""
    with tarfile.open(root / ".." / "archive.tar", "w") as archive:
        archive.add(root / "old.txt", "old.txt")
    subprocess.run(["tar", "-xf", str(root / ".." / "archive.tar")], cwd=root, check=True)


def map_into_memory(root: Path) -> None:
    with (root / "old.txt").open("r+b") as file, mmap.mmap(file.fileno(), 1) as mapped:
        mapped[:] = b"y"
        mapped.flush()


def move_directory(root: Path) -> None:
    touch(root / "a/f.txt")
    (root / "a").rename(root / "b")


CASES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda root: None, []),
    "created": (lambda root: touch(root / "new.txt"), ["new.txt"]),
    "created deeper": (lambda root: touch(root / "a/b/c.txt"), ["a/b/c.txt"]),
    "size changed": (lambda root: touch(root / "old.txt", "longer"), ["old.txt"]),
    "time changed": (lambda root: os.utime(root / "old.txt", ns=(1, 1)), ["old.txt"]),
    "rights changed": (lambda root: (root / "old.txt").chmod(0o600), []),
    "rights taken": (lambda root: (root / "old.txt").chmod(0), []),
    "second name": (lambda root: os.link(root / "old.txt", root / "new.txt"), ["new.txt"]),
    "time set back": (rewrite_with_old_time, ["old.txt"]),
    "replaced with the old time": (replace_with_old_time, ["old.txt"]),
    "unpacked over it": (unpack, ["old.txt"]),
    "mapped into memory": (map_into_memory, ["old.txt"]),
    "removed and made again": (
        lambda root: ((root / "old.txt").unlink(), touch(root / "old.txt", "new")),
        ["old.txt"],
    ),
    "directories at once": (lambda root: touch(root / "a/b/c/d/e/f.txt"), ["a/b/c/d/e/f.txt"]),
    "very deep": (lambda root: touch(root.joinpath(*["d"] * 200, "f.txt")), ["d/" * 200 + "f.txt"]),
    "directory moved": (move_directory, ["b/f.txt"]),
    "renamed": (lambda root: (root / "old.txt").rename(root / "new.txt"), ["new.txt"]),
    "removed": (lambda root: (root / "old.txt").unlink(), []),
    "link": (lambda root: (root / "link").symlink_to(root / "old.txt"), []),
    "link to a folder": (lambda root: (root / "link").symlink_to("/"), []),
    "loop": (lambda root: (root / "link").symlink_to(root), []),
    "folder": (lambda root: (root / "folder").mkdir(), []),
    "pipe": (make_pipe, []),
    "shared": (lambda root: touch(root / "shared/x"), []),
    "shared deeper": (lambda root: touch(root / "a/shared/x"), ["a/shared/x"]),
    "not UTF-8": (lambda root: touch(root / "\udcff"), ["\udcff"]),
}


@pytest.mark.parametrize("case", CASES)
def test_new_and_changed_files(root: Path, case: str) -> None:
    """Only new and changed regular files are reported."""
    touch(root / "old.txt")
    files = begun(root)
    act, expected = CASES[case]
    act(root)
    assert found(files) == expected
    assert found(files) == []


def test_size_and_whether_a_file_is_new(root: Path) -> None:
    """A change has the file's size, and whether the file is new."""
    files = begun(root)
    touch(root / "f", "four")
    files.begin(known=True)
    assert files.end() == ([{"path": "f", "size": 4, "created": True}], False)
    touch(root / "f", "longer")
    files.begin(known=True)
    assert files.end() == ([{"path": "f", "size": 6, "created": False}], False)
    (root / "f").unlink()
    files.end()
    touch(root / "f")
    assert files.end()[0] == [{"path": "f", "size": 1, "created": True}]


def test_what_others_change(root: Path) -> None:
    """What a background process makes between two cells is the next cell's, a client's nobody's."""
    files = begun(root)
    touch(root / "by a process")
    assert found(files) == ["by a process"]
    touch(root / "by a client")
    files.begin(known=False)
    touch(root / "by the cell")
    assert [each["path"] for each in files.end()[0]] == ["by the cell"]


def test_missing_workspace(tmp_path: Path) -> None:
    """A missing workspace has no files."""
    assert scan(str(tmp_path / "absent")).files == {}
    assert found(begun(tmp_path / "absent")) == []


@pytest.mark.parametrize("watch", WATCHES)
def test_nothing_is_missed_in_a_large_workspace(tmp_path: Path, watch: bool) -> None:
    """Whatever changes beside thousands of files is told, and nothing is called truncated."""
    fill(tmp_path, 5000)
    files = begun(tmp_path, watch=watch)
    made = [f"new{number}" for number in range(20)] + [
        "output/report.pdf",
        "images/00017.png",
        "z/z/z/z/z/z/z/z/z/z",
    ]
    for path in made:
        touch(tmp_path / path)
    assert found(files) == sorted(made)


@pytest.mark.parametrize("watch", WATCHES)
def test_reported_files_are_bounded(tmp_path: Path, watch: bool) -> None:
    """Of too many, those near the top are reported, and the newest of the others, as truncated."""
    fill(tmp_path, WATCHED_FROM + 1)
    files = begun(tmp_path, watch=watch)
    fill(tmp_path, MAX_REPORTED + 1000, folder="deep/er")
    touch(tmp_path / "report.pdf")
    os.utime(tmp_path / "report.pdf", ns=(1, 1))
    files.begin(known=True)
    changes, truncated = files.end()
    paths = [change["path"] for change in changes]
    assert truncated
    assert len(paths) == MAX_REPORTED
    assert paths == sorted(paths)
    assert {"report.pdf", f"deep/er/{MAX_REPORTED + 999:05}.png"} <= set(paths)
    assert found(files) == []


def test_a_directory_that_others_bring_in(tmp_path: Path) -> None:
    """A directory with files that is moved into the workspace, out of it, and in it."""
    fill(tmp_path / "data", WATCHED_FROM + 1)
    fill(tmp_path / "outside", 3)
    files = begun(tmp_path / "data")
    (tmp_path / "outside").rename(tmp_path / "data/inside")
    expected = [f"inside/images/{number:05}.png" for number in range(3)]
    assert found(files) == expected
    (tmp_path / "data/inside").rename(tmp_path / "outside")
    assert found(files) == []
    touch(tmp_path / "outside/images/00001.png", "changed outside")
    (tmp_path / "outside").rename(tmp_path / "data/inside")
    assert found(files) == expected
    (tmp_path / "data/images").rename(tmp_path / "data/pictures")
    touch(tmp_path / "data/pictures/00001.png", "changed")
    files.begin(known=True)
    changes, truncated = files.end()
    assert (len(changes), truncated) == (MAX_REPORTED, True)  # all have another path
    touch(tmp_path / "data/pictures/00002.png", "changed")
    assert found(files) == ["pictures/00002.png"]


def test_thousands_of_changes_in_one_cell(tmp_path: Path) -> None:
    """When the system has dropped reports, nothing is missed."""
    fill(tmp_path, WATCHED_FROM + 1)
    files = begun(tmp_path)
    for number in range(20_000):
        (tmp_path / "images" / f"x{number}").touch()
        (tmp_path / "images" / f"x{number}").unlink()
    touch(tmp_path / "last")
    assert found(files) == ["last"]
    touch(tmp_path / "later")
    assert found(files) == ["later"]


def test_mapped_files_stay_watched(tmp_path: Path) -> None:
    """Memory that belongs to a file changes without a report of the system's."""
    fill(tmp_path, WATCHED_FROM + 1)
    files = begun(tmp_path)
    touch(tmp_path / "array.npy", "12345678")
    with (tmp_path / "array.npy").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 8)
    assert found(files) == ["array.npy"]
    touch(tmp_path / "other")
    assert found(files) == ["other"]
    mapped[:1] = b"x"
    mapped.flush()
    assert found(files) == ["array.npy"]
    mapped.close()


def test_a_new_directory_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the scan of a new directory is cut, what changes below it later is found."""
    fill(tmp_path, WATCHED_FROM + 1)
    files = begun(tmp_path)
    monkeypatch.setattr(changed_files, "MAX_ENTRIES", WATCHED_FROM + 100)
    fill(tmp_path, WATCHED_FROM + 200, folder="new")
    touch(tmp_path / "new/below/file")
    files.begin(known=True)
    assert files.end()[1]
    monkeypatch.undo()
    files.begin(known=False)
    touch(tmp_path / "new/below/file", "changed")
    assert found(files) == ["new/below/file"]


@pytest.mark.parametrize("reused", [False, True])
def test_code_that_closes_all_descriptors(tmp_path: Path, reused: bool) -> None:
    """A queue that a user's code has closed is not needed, and no descriptor of the user's is closed."""
    fill(tmp_path, WATCHED_FROM + 1)
    files = begun(tmp_path)
    touch(tmp_path / "first")
    (descriptor,) = queues()
    os.close(descriptor)
    if reused:
        assert os.open(tmp_path / "first", os.O_RDONLY) == descriptor
    assert found(files) == ["first"]
    if reused:
        assert os.read(descriptor, 1) == b"x"
        os.close(descriptor)
    touch(tmp_path / "second")
    assert found(files) == ["second"]


def test_without_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no more queues, and where processes are saved, the workspace is scanned."""

    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(changed_files, "Inotify", refuse)
    fill(tmp_path, WATCHED_FROM + 1)
    files = begun(tmp_path)
    touch(tmp_path / "images/00001.png")
    assert found(files) == ["images/00001.png"]
    monkeypatch.undo()
    begun(tmp_path, watch=False)
    assert queues() == []
    begun(tmp_path, watch=True)
    assert len(queues()) == 1


def test_scan_is_bounded_in_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a bounded scan left out are not reported as new later."""
    monkeypatch.setattr(changed_files, "MAX_ENTRIES", 1000)
    fill(tmp_path, 2000)
    newest = max(each.stat().st_ctime_ns for each in (tmp_path / "images").iterdir())
    while time_ns() <= newest + CLOCK_SLACK_NS:  # the files become old
        pass
    files = begun(tmp_path)
    for known in list(scan(str(tmp_path)).files)[:500]:
        (tmp_path / known).unlink()
    files.begin(known=True)
    assert files.end() == ([], True)
    monkeypatch.undo()
    touch(tmp_path / "new")
    files.begin(known=True)
    assert [each["path"] for each in files.end()[0]] == ["new"]


def test_a_cell_costs_what_it_changes(tmp_path: Path) -> None:
    """With 20,000 files, a cell that changes one costs less than a twentieth of looking at all."""
    fill(tmp_path, 20_000)
    files = begun(tmp_path)
    costs = []
    for number in range(20):
        touch(tmp_path / "one", str(number))
        before = perf_counter()
        assert found(files) == ["one"]
        costs.append(perf_counter() - before)
    before = perf_counter()
    scan(str(tmp_path))
    assert median(costs) < (perf_counter() - before) / 20
    shutil.rmtree(tmp_path)
