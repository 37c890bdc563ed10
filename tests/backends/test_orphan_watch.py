"""The watch that ends the sandboxes of a dead broker."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kernelbroker_server.backends import orphan_watch


def test_sandboxes_without_a_directory_end(tmp_path: Path) -> None:
    """If the directory of a dead broker was removed, nobody can adopt its sandboxes, and they end."""
    kept, removed = tmp_path / "kept", tmp_path / "removed"
    kept.mkdir()
    of = {
        directory: subprocess.Popen(
            ["/bin/sh", "-c", "read _"],
            stdin=subprocess.PIPE,
            env={"KERNELBROKER_WORKSPACE": f"{directory}/sandbox/workspace"},
        )
        for directory in (kept, removed)
    }
    try:
        for directory in of:
            assert orphan_watch._end_old(directory, alone_for=0.0) == 0
        assert of[removed].wait(10) == -9
        assert of[kept].poll() is None
    finally:
        for process in of.values():
            process.communicate()


def test_the_watch_ends_sandboxes_of_a_broker_without_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch ends them also if everything of the broker is gone when it looks, its lock included."""
    directory = tmp_path / "broker"
    (directory / "sandboxes").mkdir(parents=True)
    (directory / orphan_watch.LOCK).touch()
    sandbox = subprocess.Popen(
        ["/bin/sh", "-c", "read _"],
        stdin=subprocess.PIPE,
        env={"KERNELBROKER_WORKSPACE": f"{directory}/sandboxes/one/workspace"},
    )

    def died(*_: object) -> None:
        shutil.rmtree(directory)

    monkeypatch.setattr(orphan_watch.select, "select", died)
    try:
        orphan_watch.watch(directory, os.getppid())
        assert sandbox.wait(10) == -9
    finally:
        sandbox.communicate()
