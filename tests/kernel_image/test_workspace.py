"""The workspace's files: uploads, lists and deletions, step by step."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_kernel import environment, workspace
from kernelbroker_kernel.errors import Refused, refusing
from kernelbroker_kernel.workspace import List, Upload, components, delete


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    monkeypatch.setattr(environment, "WORKSPACE", str(path))
    return path


@pytest.fixture(params=["nameless", "named"])
def _file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems with and without O_TMPFILE."""
    real = os.open

    def without(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "not here")
        return real(path, flags, *args, **kwargs)

    if request.param == "named":
        monkeypatch.setattr(workspace.os, "open", without)


def listed(names: list[str], *, recursive: bool = False) -> List:
    found = List(names, recursive=recursive)
    for _ in found.read():
        pass
    return found


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("_file_system")
def test_upload_appears_when_committed(root: Path) -> None:
    """A committed file appears complete and replaces what was there; otherwise nothing changes."""
    before = open_descriptors()
    for content in (b"first", b"second"):
        upload = Upload(["a", "b"])
        upload.write(content[:2])
        upload.write(content[2:])
        assert not (root / "a/b").exists() or (root / "a/b").read_bytes() == b"first"
        upload.commit()
        upload.close()
        assert (root / "a/b").read_bytes() == content
    upload = Upload(["a", "b"])
    upload.write(b"third")
    upload.close()
    assert (root / "a/b").read_bytes() == b"second"
    assert [path.name for path in (root / "a").iterdir()] == ["b"]
    assert open_descriptors() == before


@pytest.mark.usefixtures("_file_system")
def test_an_upload_that_cannot_be_committed(root: Path) -> None:
    """A target that became a directory stays one, and the upload is removed."""
    before = open_descriptors()
    upload = Upload(["x"])
    upload.write(b"content")
    (root / "x/y").mkdir(parents=True)
    with pytest.raises(OSError):
        upload.commit()
    upload.close()
    assert [path.name for path in root.iterdir()] == ["x"]
    assert open_descriptors() == before


def test_a_full_workspace(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full workspace is reported as such."""

    def full(*_: Any) -> int:
        raise OSError(errno.EDQUOT, "quota")

    upload = Upload(["x"])
    monkeypatch.setattr(workspace.os, "write", full)
    with pytest.raises(Refused) as caught, refusing("x"):
        upload.write(b"content")
    upload.close()
    assert (caught.value.code, list(root.iterdir())) == ("too_large", [])


@pytest.mark.parametrize("path", ["", ".", "./", "a/..", "/a", "a\0", "x" * 5000, "../a", "a/../b"])
def test_invalid_paths_are_refused(path: str) -> None:
    """A path that leaves the workspace, or is malformed, is refused."""
    if path in ("", ".", "./"):
        assert components(path) == []
    else:
        with pytest.raises(Refused):
            components(path)
    assert components("a//b/./c/") == ["a", "b", "c"]


def test_list_of_a_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are in order, with their kinds; a list beyond its bounds is marked as truncated."""
    (root / "b").mkdir()
    (root / "b/c").write_text("xyz")
    (root / "a").symlink_to("/etc")
    os.mkfifo(root / "p")
    os.utime(root / "b/c", (0, 0))
    found = listed([], recursive=True)
    assert [(e["path"], e["kind"]) for e in found.entries] == [
        ("a", "symlink"),
        ("b", "directory"),
        ("b/c", "file"),
        ("p", "other"),
    ]
    assert found.entries[2]["size"] == 3
    assert found.entries[2]["modified_at"] == "1970-01-01T00:00:00.000+00:00"
    assert not found.truncated
    assert [e["path"] for e in listed([]).entries] == ["a", "b", "p"]
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 2)
    assert (len(listed([]).entries), listed([]).truncated) == (2, True)
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 100)
    monkeypatch.setattr(workspace, "MAX_LISTED_CHARS", 1)
    assert (len(listed([]).entries), listed([]).truncated) == (1, True)
    monkeypatch.setattr(workspace, "MAX_LISTED_CHARS", 100)
    monkeypatch.setattr(workspace, "MAX_DEPTH", 1)
    assert ("b/c" in str(listed([], recursive=True).entries), listed([]).truncated) == (
        False,
        False,
    )
    assert listed([], recursive=True).truncated


def test_list_with_times_out_of_range(root: Path) -> None:
    """A file with an impossible time is listed as any other."""
    (root / "x").touch()
    os.utime(root / "x", ns=(2**62, 2**62))
    assert listed([]).entries[0]["path"] == "x"


def test_delete_in_steps(root: Path, tmp_path: Path) -> None:
    """A directory is deleted with its content, at any depth; targets of links stay."""
    before = open_descriptors()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = root / "d"
    for number in range(40):
        folder = folder / f"n{number}"
        folder.mkdir(parents=True)
        (folder / "file").touch()
        (folder / "link").symlink_to(outside)
    for _ in delete(["d"], recursive=True):
        pass
    assert (list(root.iterdir()), [p.name for p in outside.iterdir()]) == ([], ["kept"])
    assert open_descriptors() == before


def test_a_directory_that_is_moved_while_it_is_deleted(root: Path, tmp_path: Path) -> None:
    """A deletion does not follow a moved directory upwards."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").touch()
    (root / "d/below").mkdir(parents=True)
    for number in range(3):
        (root / f"d/below/{number}").touch()
    steps = delete(["d"], recursive=True)
    next(steps)  # it is in `below` now
    (root / "d/below").rename(elsewhere / "below")
    with pytest.raises(OSError, match="moved"):
        for _ in steps:
            pass
    assert (elsewhere / "kept").exists()
