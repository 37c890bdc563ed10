"""Working directory and environment variables of a session and of one execution."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_kernel import environment
from kernelbroker_kernel.environment import Override, configure


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace for a test; directory and variables are restored afterwards."""
    monkeypatch.setattr(environment, "WORKSPACE", str(tmp_path))
    monkeypatch.chdir("/")
    for name in ("KB_A", "KB_B"):
        monkeypatch.setenv(name, "before")
        monkeypatch.delenv(name)
    return tmp_path


def test_configure_sets_variables_and_directory(workspace: Path) -> None:
    """A session's variables are set, and its directory is made and entered."""
    configure({"env": {"KB_A": "1"}, "cwd": "made/here"})
    assert os.environ["KB_A"] == "1"
    assert Path.cwd() == workspace / "made/here"


def test_configure_without_settings() -> None:
    """Absent or null settings change nothing."""
    configure({"env": None, "cwd": None})
    configure({})
    assert Path.cwd() == Path("/")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "'configure' must be an object"),
        ({"env": ["KB_A"]}, "'env' must be an object"),
        ({"env": {"KB_A": 1}}, "'KB_A': name and value must be text"),
        ({"env": {"KB_A=": "1"}}, "'KB_A=': no empty name"),
        ({"env": {"": "1"}}, "'': no empty name"),
        ({"env": {"KB_A": "a\0"}}, "'KB_A': no empty name, no '=' in it, no NUL"),
        ({"env": {"KB_A": "\ud800"}}, "'KB_A': not valid Unicode"),
        ({"cwd": 5}, "'cwd' must be a path or null"),
        ({"cwd": "a\0"}, "no NUL"),
    ],
)
def test_configure_refuses_invalid_settings(settings: Any, message: str) -> None:
    """Invalid settings are refused with a message."""
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        configure(settings)


def test_configure_with_a_directory_that_cannot_be_made() -> None:
    """A directory outside the workspace is not made."""
    with pytest.raises(FileNotFoundError, match="working directory '/absent': No such file"):
        configure({"cwd": "/absent"})


def test_override_is_undone(workspace: Path) -> None:
    """The variables and directory are restored after the execution."""
    os.environ["KB_A"] = "session's"
    override = Override(".", {"KB_A": "cell's", "KB_B": "cell's"})
    override.apply()
    assert (os.environ["KB_A"], os.environ["KB_B"], Path.cwd()) == ("cell's", "cell's", workspace)
    override.undo()
    assert (os.environ["KB_A"], os.environ.get("KB_B"), Path.cwd()) == (
        "session's",
        None,
        Path("/"),
    )


def test_override_ignores_values_of_other_types() -> None:
    """Values of another type are ignored."""
    for override in (Override(5, ["KB_A"]), Override(None, {"KB_A": 1, 2: "x"})):
        override.apply()
        override.undo()
    assert "KB_A" not in os.environ


def test_override_keeps_what_the_cell_changed() -> None:
    """Without a directory in the request, the cell's own chdir stays."""
    override = Override(None, {"KB_A": "1"})
    override.apply()
    os.chdir("/tmp")
    os.environ["KB_B"] = "the cell's own"
    override.undo()
    assert (Path.cwd(), os.environ["KB_B"]) == (Path("/tmp"), "the cell's own")


@pytest.mark.parametrize(
    ("cwd", "env"), [("absent", {"KB_A": "1"}), (".", {"KB_A": "1", "KB_B": "\0"})]
)
def test_override_that_fails_is_undone(cwd: str, env: dict[str, str]) -> None:
    """Changes before a failure are undone as well."""
    override = Override(cwd, env)
    with pytest.raises((OSError, ValueError)):
        override.apply()
    override.undo()
    assert ("KB_A" in os.environ, Path.cwd()) == (False, Path("/"))


def test_undo_after_the_directory_was_removed(workspace: Path) -> None:
    """If the former directory was removed, another one is entered."""
    (workspace / "gone").mkdir()
    os.chdir(workspace / "gone")
    override = Override("/tmp", {})
    override.apply()
    (workspace / "gone").rmdir()
    override.undo()
    assert Path.cwd() == Path("/")
