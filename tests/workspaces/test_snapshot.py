"""What a workspace has, read from a directory and made again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from kernelbroker_server.backends.directories import remove_tree
from kernelbroker_server.workspaces import snapshot
from kernelbroker_server.workspaces.snapshot import (
    HOLE,
    PIECE,
    Digest,
    Entry,
    Index,
    Manifest,
    Restoring,
    Scan,
)

from tests.support.deep_tree import make_deep_tree


def scan(
    root: Path,
    index: Index | None = None,
    stored: set[Digest] | None = None,
    max_size: int = 10**9,
    max_entries: int = 1000,
) -> tuple[Scan, Manifest, dict[Digest, bytes]]:
    """Read a directory; returns also the pieces that were not stored."""
    made = Scan(root, index or {}, set(stored or ()), max_size=max_size, max_entries=max_entries)
    pieces: dict[Digest, bytes] = {}
    for batch in made.batches():
        pieces |= batch
    return made, made.manifest(), pieces


def restore(root: Path, manifest: Manifest, pieces: dict[Digest, bytes]) -> None:
    restoring = Restoring(root, manifest)
    for entry, number in restoring.make():
        restoring.write(entry, number, pieces[entry.pieces[number]])
    restoring.finish()


async def test_a_deep_tree_is_read_in_linear_time(tmp_path: Path) -> None:
    """Directories within each other cost no more than as many beside each other."""
    depth = 1_900
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        for name in ("b", "d", "z"):  # before and behind the way down
            os.mkdir(name, dir_fd=descriptor)
        os.close(os.open("z/last", os.O_WRONLY | os.O_CREAT, dir_fd=descriptor))
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(os.open("a", os.O_WRONLY | os.O_CREAT, dir_fd=below))
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    began = time.process_time()
    made, manifest, _ = scan(tmp_path, max_entries=10**6)
    assert time.process_time() - began < 3
    assert made.left_out == 0
    paths = [entry.path for entry in manifest.entries]
    ways = [b"d/" * number for number in range(depth)]
    below = (b"b", b"d", b"z", b"z/last", b"d/a")
    assert sorted(paths) == sorted(way + name for way in ways for name in below)
    assert await remove_tree(tmp_path / "d")
    seen = {b""}
    for path in paths:
        assert path.rpartition(b"/")[0] in seen
        seen.add(path)


async def test_a_path_that_is_too_long_is_counted(tmp_path: Path) -> None:
    """What Linux cannot name in one call is left out, and told."""
    make_deep_tree(tmp_path, 5_000)
    made, manifest, _ = scan(tmp_path, max_entries=10**6)
    assert made.left_out == 1
    assert max(len(entry.path) for entry in manifest.entries) <= snapshot.MAX_PATH
    assert await remove_tree(tmp_path / "d")


def test_everything_comes_back(tmp_path: Path) -> None:
    """Files of any name and size, modes, times, links and empty directories are as before."""
    root = tmp_path / "one"
    (root / "a" / "b").mkdir(parents=True)
    (root / "empty").mkdir()
    large = os.urandom(PIECE) + os.urandom(10)
    (root / "a" / "large").write_bytes(large)
    (root / "a" / "b" / "nothing").touch()
    Path(os.fsdecode(os.fsencode(root) + b"/na\xffme\n")).write_text("x")
    (root / "run").write_text("#!")
    (root / "run").chmod(0o4755)
    (root / "link").symlink_to("/etc/passwd")
    os.utime(root / "run", ns=(10**18, 10**18))
    _, manifest, pieces = scan(root)
    restore(tmp_path / "two", manifest, pieces)
    two = tmp_path / "two"
    assert (two / "a" / "large").read_bytes() == large
    assert (two / "a" / "b" / "nothing").read_bytes() == b""
    assert Path(os.fsdecode(os.fsencode(two) + b"/na\xffme\n")).read_text() == "x"
    assert list((two / "empty").iterdir()) == []
    assert str((two / "link").readlink()) == "/etc/passwd"
    status = (two / "run").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o755, 10**18)
    assert len(list(two.iterdir())) == 5


def test_only_what_has_changed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second scan reads no file again, and only the changed piece of a changed one is new."""
    monkeypatch.setattr(snapshot, "_SETTLED_NS", 0)
    root = tmp_path / "one"
    root.mkdir()
    (root / "large").write_bytes(os.urandom(3 * PIECE))
    (root / "same").write_bytes(b"same")
    first, manifest, pieces = scan(root)
    assert len(pieces) == 4
    again, second, none = scan(root, first.index, set(pieces))
    assert none == {} and second.digests == manifest.digests
    with (root / "large").open("r+b") as file:
        file.seek(PIECE)
        file.write(b"changed")
    _, third, more = scan(root, again.index, set(pieces))
    assert len(more) == 1
    assert len(third.digests - manifest.digests) == 1


def test_holes_are_not_stored(tmp_path: Path) -> None:
    """Pieces of zeros are neither stored nor written."""
    root = tmp_path / "one"
    root.mkdir()
    with (root / "sparse").open("wb") as file:
        file.truncate(5 * PIECE)
        file.seek(2 * PIECE)
        file.write(b"x")
    _, manifest, pieces = scan(root)
    (entry,) = manifest.entries
    assert len(pieces) == 1 and entry.pieces.count(HOLE) == 4
    restore(tmp_path / "two", manifest, pieces)
    assert (tmp_path / "two" / "sparse").read_bytes() == (root / "sparse").read_bytes()
    assert (tmp_path / "two" / "sparse").stat().st_blocks * 512 <= 2 * PIECE


def test_links_and_pipes_lead_nowhere(tmp_path: Path) -> None:
    """Links are not followed, neither to files nor to directories, and pipes do not block."""
    root, secret = tmp_path / "one", tmp_path / "secret"
    root.mkdir()
    secret.mkdir()
    (secret / "key").write_text("private")
    (root / "file").symlink_to(secret / "key")
    (root / "folder").symlink_to(secret)
    os.mkfifo(root / "pipe")
    made, manifest, pieces = scan(root)
    assert pieces == {} and made.left_out == 0
    assert sorted(entry.kind for entry in manifest.entries) == ["link", "link"]


def test_bounds(tmp_path: Path) -> None:
    """What is larger than the bounds is left out and counted."""
    root = tmp_path / "one"
    root.mkdir()
    for number in range(5):
        (root / f"{number}").write_bytes(bytes(100))
    with (root / "huge").open("wb") as file:
        file.truncate(10**12)
    made, manifest, _ = scan(root, max_size=1000)
    assert made.left_out == 1 and len(manifest.entries) == 5
    made, manifest, _ = scan(root, max_entries=2)
    assert made.left_out == 4 and len(manifest.entries) == 2


def test_empty_mount_points_are_no_files(tmp_path: Path) -> None:
    """Directories that shared data was mounted on are not kept while they are empty."""
    root = tmp_path / "one"
    (root / "shared").mkdir(parents=True)
    assert scan(root)[1].entries == ()
    (root / "shared" / "mine").touch()
    assert len(scan(root)[1].entries) == 2


def test_a_workspace_that_is_missing_is_not_empty(tmp_path: Path) -> None:
    """A directory that is renamed while it is read is an error, so that nothing is saved in its place."""
    with pytest.raises(OSError, match="none"):
        scan(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        scan(tmp_path / "file")


def _file(path: bytes, pieces: tuple[bytes, ...] = (), size: int = 0) -> Entry:
    return Entry(path, "file", 0o644, 0, 0, size, pieces)


@pytest.mark.parametrize(
    "entries",
    [
        (_file(b"../outside"),),
        (_file(b"/outside"),),
        (_file(b"no/parent"),),
        (_file(b""),),
        (_file(b".."),),
        (_file(b"a\0b"),),
        (_file(b"twice"), _file(b"twice")),
        (_file(b"short", (), 10),),
        (_file(b"negative", (), -1),),
        (Entry(b"link", "link", 0, 0, 0, target=b".."), _file(b"link/outside")),
    ],
)
def test_a_manifest_leads_out_of_no_workspace(tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    """A manifest whose paths lead elsewhere, or that lacks pieces, is refused."""
    with pytest.raises(ValueError):
        restore(tmp_path / "two", Manifest(0, entries), {})
    assert not (tmp_path / "outside").exists()


def test_a_damaged_piece_is_refused(tmp_path: Path) -> None:
    """A piece that is not what its digest says is not written."""
    root = tmp_path / "one"
    root.mkdir()
    (root / "file").write_bytes(b"content")
    _, manifest, pieces = scan(root)
    with pytest.raises(ValueError, match="damaged"):
        restore(tmp_path / "two", manifest, dict.fromkeys(pieces, b"contemt"))
