"""What user code finds in its memory: nothing of the broker or of another sandbox."""

from __future__ import annotations

from collections.abc import Mapping

import kernelbroker.sync
import pytest

from tests.backends.launch_ways import WAYS, settings_of
from tests.e2e.support import HOST_SECRET, running_broker, whole_system

pytestmark = whole_system

SCAN = """
import json
found = []
for line in open("/proc/self/maps"):
    addresses, access, *_ = line.split()
    if not access.startswith("rw"):
        continue
    start, end = (int(part, 16) for part in addresses.split("-"))
    with open("/proc/self/mem", "rb", 0) as memory:
        memory.seek(start)
        content = (memory.read(end - start) or b"")[::-1]
    found += [name for name, text in BACKWARDS.items() if text.encode() in content]
    del content
verdict = sorted(set(found))
"""
"""Finds texts in the memory of its process. They are written backwards, so that it does not find itself."""


def found_in(session: kernelbroker.sync.Session, texts: Mapping[str, str]) -> list[str]:
    """The names of those texts that are in the memory of the session's kernel."""
    backwards = {name: text[::-1] for name, text in texts.items()}
    code = SCAN.replace("BACKWARDS", repr(backwards))
    result = session.run(code, result_var="verdict", timeout=120)
    assert result.success, result.as_text()
    assert isinstance(result.return_value, list)
    return result.return_value


@pytest.mark.parametrize("way", WAYS)
def test_memory_has_nothing_of_others(way: str) -> None:
    """A sandbox's memory holds no secret, path or id of the broker, and nothing of another sandbox."""
    settings = settings_of(way) | {"POOL__MIN_SIZE": 2}
    with (
        running_broker(**settings) as process,
        kernelbroker.sync.connect(process.url, process.token) as client,
        client.session("session-of-others", env={"OF_OTHERS": "environment-of-others"}) as other,
        client.session("searching") as session,
    ):
        assert other.run("mine = '-'.join(['variable', 'of', 'others'])").success
        other.restart()
        session.restart()  # its sandbox is made after the others have run
        assert session.run("own = '-'.join(['variable', 'of', 'mine'])").success
        (broker_id,) = process.broker_ids()
        sandboxes = process.data_dir / broker_id / "sandboxes"
        texts = {
            "the token": process.token,
            "a variable of the broker": HOST_SECRET,
            "data_dir": str(process.data_dir),
            "run_dir": str(process.run_dir),
            "the other session": "session-of-others",
            "the other's environment": "environment-of-others",
            "the other's variable": "variable-of-others",
            "its own variable": "variable-of-mine",
        }
        texts |= {f"sandbox {n}": path.name for n, path in enumerate(sandboxes.iterdir())}
        assert found_in(session, texts) == ["its own variable"]
