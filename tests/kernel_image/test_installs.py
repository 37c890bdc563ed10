"""How installed packages replace the earlier ones, and how failures are reported."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_kernel import installs


def fill(directory: Path, **files: str) -> Path:
    for name, content in files.items():
        path = directory / name.replace("_in_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_entries_are_replaced(tmp_path: Path) -> None:
    """All entries are replaced by those of the copy; other installations' directories stay."""
    there = fill(tmp_path / "there", lib_in_a="old", lib_in_b="old", share_in_c="old")
    fill(there / "tmp-1", d="its own")
    copy = fill(tmp_path / "copy", lib_in_b="new", lib_in_deep_in_d="new", bin_in_e="new")
    installs._put_in_place(copy, there, tmp_path / "replaced")
    assert contents(there) == {
        "lib/b": "new",
        "lib/deep/d": "new",
        "bin/e": "new",
        "tmp-1/d": "its own",
    }


def test_interrupt_while_replacing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt at any moment is raised after all entries are replaced."""
    rename = Path.rename
    for moment in range(7):
        there = fill(tmp_path / f"there{moment}", lib_in_a="old", share_in_b="old", gone_in_c="old")
        copy = fill(tmp_path / f"copy{moment}", lib_in_a="new", share_in_b="new", bin_in_d="new")
        calls = iter(range(100))

        def interrupted(self: Path, target: Path, calls: Any = calls, moment: int = moment) -> Path:
            done = rename(self, target)
            if next(calls) == moment:
                raise KeyboardInterrupt
            return done

        monkeypatch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt) if moment < 6 else contextlib.nullcontext():
            installs._put_in_place(copy, there, tmp_path / f"replaced{moment}")
        assert contents(there) == {"lib/a": "new", "share/b": "new", "bin/d": "new"}


PROXY = "kernelbroker: pypi.org is not in `allow` of the template web: ask your operator to add it"
BROKEN = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
    f"OSError('Tunnel connection failed: 403 {PROXY}'))': /simple/six/"
)
UNTRUSTED = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'SSLError('no')': /simple/six/"
)


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([], ""),
        (["WARNING: this", "ERROR: first", "ERROR: last", "  more"], "last"),
        ([BROKEN, "ERROR: No six"], f"No six; {PROXY}"),
        ([BROKEN, f"ERROR: No six: {PROXY}"], f"No six: {PROXY}"),
        ([UNTRUSTED, "ERROR: No six"], "No six; SSLError('no')"),
        ([BROKEN], ""),
        (["error: some-name", "", "× In words", "╰─> more", "hint: no"], "In words"),
        (["ERROR: " + "x" * 5_000], "x" * 1_000),
    ],
)
def test_errors_of_pip(lines: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The last error is reported, with the cause if it is the network; all lines are forwarded."""
    script = f"import sys; sys.stderr.writelines(line + chr(10) for line in {lines!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert installs._error(process) == error
    assert process.wait() == 0
    assert capsys.readouterr().err == "".join(f"{line}\n" for line in lines)
