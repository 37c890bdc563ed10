"""The file of the audit log."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kernelbroker_server.audit import Audit


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_one_line(tmp_path: Path) -> None:
    """A record has its time, its event and its fields on one line; only the owner may read the file."""
    audit = Audit(tmp_path / "log")
    audit.record("one", host="a\nb\u2028ü\ud800", number=1, none=None, path=Path("/x"))
    (record,) = lines(tmp_path / "log")
    time = datetime.fromisoformat(str(record.pop("time")))
    assert abs((datetime.now(UTC) - time).total_seconds()) < 60
    facts = {"host": "a\nb\u2028ü\ud800", "number": 1, "none": None, "path": "/x"}
    assert record == {"event": "one", **facts}
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600
    audit.close()


def test_records_are_appended(tmp_path: Path) -> None:
    """Earlier records stay, and two brokers can share a file."""
    first, second = Audit(tmp_path / "log"), Audit(tmp_path / "log")
    for number in range(3):
        first.record("first", number=number)
        second.record("second", number=number)
    assert [record["number"] for record in lines(tmp_path / "log")] == [0, 0, 1, 1, 2, 2]
    first.close()
    second.close()


@pytest.mark.parametrize("after", ["rename", "unlink"])
def test_a_rotated_file_is_created_again(tmp_path: Path, after: str) -> None:
    """After the file was moved or removed, records go to a new file of that name."""
    audit = Audit(tmp_path / "log")
    audit.record("before")
    if after == "rename":
        (tmp_path / "log").rename(tmp_path / "log.1")
    else:
        (tmp_path / "log").unlink()
    audit.record("after")
    assert [record["event"] for record in lines(tmp_path / "log")] == ["after"]
    audit.close()


def test_without_a_file_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path nothing is written."""
    monkeypatch.chdir(tmp_path)
    audit = Audit(None)
    audit.open()
    audit.record("one")
    audit.close()
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_writing_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An error is not raised; it is logged once, and again after writing had succeeded."""
    audit = Audit(tmp_path / "none" / "log")
    with pytest.raises(OSError, match="No such file"):
        audit.open()
    with caplog.at_level(logging.ERROR):
        audit.record("one")
        audit.record("two")
        assert len(caplog.messages) == 1
        (tmp_path / "none").mkdir()
        audit.record("three")
        (tmp_path / "none" / "log").unlink()
        (tmp_path / "none").rmdir()
        audit.record("four")
    assert len(caplog.messages) == 2
    audit.close()


def test_a_partial_record_is_ended(tmp_path: Path) -> None:
    """After a partial record, the next record starts on a new line."""
    pid = os.fork()
    if pid == 0:  # in a separate process with its own limit
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        audit = Audit(tmp_path / "log")
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
        audit.record("one")
        audit.record("two", long="x" * 200)
        audit.record("three")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        audit.record("four")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    first, cut, last = (tmp_path / "log").read_text().splitlines()
    assert json.loads(first)["event"] == "one"
    assert '"two"' in cut
    assert json.loads(last)["event"] == "four"
