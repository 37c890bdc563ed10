"""A tree as a stream: what comes is what was there; a hostile stream is refused and leaves nothing open."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernelbroker_kernel.tree_stream import TreeError, TreeWriter, read_tree

HUGE = 10**30
MIB = 1024**2


def records(*given: list[Any] | bytes) -> bytes:
    """The bytes of records; bytes are passed on as they are."""
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in given]
    return b"".join(len(text).to_bytes(4, "big") + text for text in texts)


def write(root: Path, stream: bytes, piece: int = 7) -> None:
    writer = TreeWriter(root, MIB, 100)
    try:
        for begin in range(0, len(stream), piece):
            writer.feed(stream[begin : begin + piece])
        writer.finish()
    finally:
        writer.close()
        writer.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


FILE = ["f", "x", 0o600, 0, 3, None]

HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no end": records(FILE),
    "more after the end": records(["."]) + b"....",
    "not JSON": records(b"{"),
    "deep JSON": records(b"[" * 60_000),
    "not UTF-8": records(b'["d", "\xff", 1, 1]'),
    "a record that is too long": (2**31).to_bytes(4, "big"),
    "an unknown record": records(["z"]),
    "no list": records(b"7"),
    "a name that leads up": records(["d", "..", 0o700, 0]),
    "a name with a slash": records(["d", "a/b", 0o700, 0]),
    "a name with a zero": records(["d", "a\0b", 0o700, 0]),
    "a lone surrogate": records(b'["d", "\\ud800", 448, 0]'),
    "a name that is too long": records(["d", "x" * 300, 0o700, 0]),
    "a leave too many": records(["u"]),
    "a time that no file has": records(["f", "x", 0o600, HUGE, 0, None], ["."]),
    "a time that no directory has": records(["d", "x", 0o700, HUGE], ["u"], ["."]),
    "a size that no file has": records(["f", "x", 0o600, 0, HUGE, None], ["."]),
    "a negative size": records(["f", "x", 0o600, 0, -1, None], ["."]),
    "an inode with many digits": records(["f", "x", 0o600, 0, 0, 10**4000], ["."]),
    "an offset that no file has": records(FILE, ["x", HUGE, 1]) + b"a",
    "a large offset": records(FILE, ["x", 2**63 - 1, 1]) + b"a",
    "a negative offset": records(FILE, ["x", -1, 1]) + b"a",
    "too many bytes": records(FILE, ["x", 0, 2 * MIB]) + b"a" * 2 * MIB,
    "too many entries": records(*(["d", str(number), 0o700, 0] for number in range(101))),
    "infinity": records(b'["x", Infinity, 1]'),
}


@pytest.mark.parametrize("stream", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_stream(tmp_path: Path, stream: bytes) -> None:
    """It is refused, whole or in pieces, and no descriptor stays open."""
    before = open_files()
    for number, piece in enumerate((len(stream) or 1, 4096)):
        root = tmp_path / str(number)
        root.mkdir()
        with pytest.raises((TreeError, OSError)):
            write(root, stream, piece)
    assert open_files() == before


def test_an_unknown_name_of_a_file_is_left_out(tmp_path: Path) -> None:
    """Another name of a file that has not come makes nothing, and leads nowhere."""
    write(tmp_path, records(["h", "x", 7], ["."]))
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """What comes below the name of a link is left out, wherever the link leads."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    below = [["d", "link", 0o700, 0], ["d", "deeper", 0o700, 0], FILE, ["u"], FILE, ["u"]]
    write(root, records(["l", "link", str(outside)], *below, ["."]))
    assert list(outside.iterdir()) == []
    assert [path.name for path in root.iterdir()] == ["link"]


WHOLE = records(["d", "a", 0o755, 1], FILE, ["x", 0, 3]) + b"abc" + records(["u"], ["."])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=6))
def test_a_damaged_stream(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    """A stream with any bytes changed is written or refused, and nothing is open afterwards."""
    stream = bytearray(WHOLE)
    for place, value in changes:
        stream[place] = value
    before = open_files()
    root = tmp_path_factory.mktemp("tree")
    with contextlib.suppress(TreeError, OSError):
        write(root, bytes(stream))
    assert open_files() == before


@pytest.mark.parametrize("piece", [1, 7, 100_000])
def test_a_tree_arrives_as_it_is(tmp_path: Path, piece: int) -> None:
    """Contents, modes, times, links, holes and further names arrive; so do closed directories."""
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "a" / "b").mkdir(parents=True)
    target.mkdir()
    (source / "a" / "text").write_bytes(b"abc")
    (source / "a" / "b" / "empty").touch()
    os.link(source / "a" / "text", source / "again")
    (source / "link").symlink_to("a/text")
    with (source / "hole").open("wb") as file:
        file.truncate(300_000)
        file.seek(200_000)
        file.write(b"end")
    os.utime(source / "a" / "text", ns=(5, 1_234_567_891))
    (source / "a" / "b").chmod(0)
    os.mkfifo(source / "pipe")
    write(target, b"".join(read_tree(source)), piece)
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert found == {"a", "a/b", "a/b/empty", "a/text", "again", "hole", "link"}
    assert (target / "a" / "text").read_bytes() == b"abc"
    assert (target / "a" / "text").stat().st_mtime_ns == 1_234_567_891
    assert (target / "again").stat().st_ino == (target / "a" / "text").stat().st_ino
    assert str((target / "link").readlink()) == "a/text"
    assert (target / "hole").read_bytes() == (source / "hole").read_bytes()


def test_what_is_there_stays(tmp_path: Path) -> None:
    """Names that exist keep their content."""
    (tmp_path / "x").write_text("old")
    write(tmp_path, records(FILE, ["x", 0, 3]) + b"new" + records(["."]))
    assert (tmp_path / "x").read_text() == "old"
