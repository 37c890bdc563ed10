"""The workspace files that changed between two scans."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from kernelbroker.protocol import events
from kernelbroker_kernel.changed_files import MAX_DEPTH, MAX_ENTRIES, MAX_REPORTED, changes, scan


def touch(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def changed(root: Path, act: Callable[[], object]) -> tuple[list[str], bool]:
    before = scan(str(root))
    act()
    found, truncated = changes(before, scan(str(root)))
    json.dumps(found)
    msgspec.convert(found, list[events.FileChange])
    return [change["path"] for change in found], truncated


def make_pipe(root: Path) -> None:
    os.mkfifo(root / "pipe")


CASES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "nothing": (lambda root: None, []),
    "created": (lambda root: touch(root / "new.txt"), ["new.txt"]),
    "created deeper": (lambda root: touch(root / "a/b/c.txt"), ["a/b/c.txt"]),
    "size changed": (lambda root: touch(root / "old.txt", "longer"), ["old.txt"]),
    "time changed": (lambda root: os.utime(root / "old.txt", ns=(1, 1)), ["old.txt"]),
    "rights changed": (lambda root: (root / "old.txt").chmod(0o600), []),
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
def test_new_and_changed_files(tmp_path: Path, case: str) -> None:
    """Only new and changed regular files are reported."""
    touch(tmp_path / "old.txt")
    act, expected = CASES[case]
    assert changed(tmp_path, lambda: act(tmp_path)) == (expected, False)


def test_change_of_size_alone(tmp_path: Path) -> None:
    """A change has the file's size, and whether the file is new."""
    before = scan(str(tmp_path))
    touch(tmp_path / "f", "four")
    created = scan(str(tmp_path))
    assert changes(before, created) == ([{"path": "f", "size": 4, "created": True}], False)
    touch(tmp_path / "f", "longer")
    changed = {"path": "f", "size": 6, "created": False}
    assert changes(created, scan(str(tmp_path))) == ([changed], False)


def test_missing_workspace(tmp_path: Path) -> None:
    """A missing workspace has no files."""
    assert scan(str(tmp_path / "absent")).files == {}


def test_scan_is_bounded_in_depth(tmp_path: Path) -> None:
    """Directories beyond the greatest depth are not scanned, and the result is truncated."""
    deepest = tmp_path.joinpath(*["d"] * (MAX_DEPTH - 1))
    deepest.mkdir(parents=True)
    assert changed(tmp_path, lambda: touch(deepest / "f")) == (
        ["d/" * (MAX_DEPTH - 1) + "f"],
        False,
    )
    assert changed(tmp_path, lambda: touch(deepest / "d/f")) == ([], True)


def test_reported_files_are_bounded(tmp_path: Path) -> None:
    """The number of reported files is bounded, and the result is truncated."""

    def act() -> None:
        for number in range(MAX_REPORTED + 1):
            touch(tmp_path / str(number))

    found, truncated = changed(tmp_path, act)
    assert (len(found), truncated) == (MAX_REPORTED, True)


def test_scan_is_bounded_in_entries(tmp_path: Path) -> None:
    """Files that a bounded scan left out are not reported as new later."""
    for number in range(MAX_ENTRIES):
        touch(tmp_path / "folder" / str(number))
        os.utime(tmp_path / "folder" / str(number), ns=(1, 1))
    before = scan(str(tmp_path))
    assert before.truncated
    assert len(before.files) < MAX_ENTRIES
    later = type(before)(before.files, True, before.taken_ns + 10**12)
    (tmp_path / "folder" / next(iter(before.files)).removeprefix("folder/")).unlink()
    (tmp_path / "folder" / list(before.files)[1].removeprefix("folder/")).unlink()
    after = scan(str(tmp_path))
    assert after.files.keys() - before.files.keys()  # scanned for the first time, but not new
    assert changes(later, after) == ([], True)
    touch(tmp_path / "new")
    assert changes(before, scan(str(tmp_path)))[1]
    assert "new" in [change["path"] for change in changes(before, scan(str(tmp_path)))[0]]
