"""What a broker removes of what it finds in its directory of data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kernelbroker_server.backends.directories import Directories
from kernelbroker_server.backends.orphan_watch import LOCK

FOREIGN: dict[str, Callable[[Path], None]] = {
    "a free lock": lambda it: (it / LOCK).touch(),
    "a lock and sandboxes": lambda it: [(it / LOCK).touch(), (it / "sandboxes").mkdir()],
    "another broker's mark": lambda it: [
        (it / LOCK).write_text("the sandboxes of kernelbroker 00000000\n")
    ],
    "a lock that is a directory": lambda it: (it / LOCK).mkdir(),
    "a lock that is a link": lambda it: (it / LOCK).symlink_to("/etc/hostname"),
    "no lock": lambda it: None,
}


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("name", ["precious", "0123abcd", "workspaces", ".hidden"])
def test_foreign_directories_are_no_dead_brokers(tmp_path: Path, what: str, name: str) -> None:
    """A directory without a broker's mark is left alone, whatever its name, and whatever it has."""
    directories = Directories.create(tmp_path / "data", tmp_path / "run")
    foreign = tmp_path / "data" / name
    foreign.mkdir()
    FOREIGN[what](foreign)
    assert directories.of_the_dead() == []
    directories.release()


def test_a_link_to_a_dead_broker_is_left_alone(tmp_path: Path) -> None:
    """Only the directory itself is a broker's."""
    dead = Directories.create(tmp_path / "elsewhere", tmp_path / "run")
    dead.release()
    directories = Directories.create(tmp_path / "data", tmp_path / "run")
    (tmp_path / "data" / dead.broker_id).symlink_to(dead.data)
    assert directories.of_the_dead() == []
    directories.release()


@pytest.mark.parametrize("begun", ["created", "resumed", "seized"])
def test_dead_brokers_are_found(tmp_path: Path, begun: str) -> None:
    """A broker that has died is found by its mark, also one that went on with another's directories."""
    data, run = tmp_path / "data", tmp_path / "run"
    dead = Directories.create(data, run)
    dead.release()
    if begun != "created":
        (dead.data / LOCK).write_text("")  # as an earlier version left it
        again = (Directories.resume if begun == "resumed" else Directories.seize)(
            data, run, dead.broker_id
        )
        assert again is not None
        again.release()
    directories = Directories.create(data, run)
    (found,) = directories.of_the_dead()
    assert (found.broker_id, found.data, found.run) == (dead.broker_id, dead.data, dead.run)
    assert directories.of_the_dead() == []  # it is locked
    found.release()
    directories.release()
