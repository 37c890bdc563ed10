"""The example of the page about E2B."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.e2b.support import DIRECTORY, E2bClients
from tests.e2e.support import whole_system

PAGE = (Path(__file__).parents[2] / "docs" / "e2b.md").read_text()
pytestmark = whole_system


def test_the_three_lines_and_the_example(e2b: E2bClients) -> None:
    """With the three lines of the page, its example prints what the page says."""
    (lines,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names = re.findall(r"export (\w+)=", lines)
    own = e2b.variables()
    assert set(names) <= set(own)
    script = lines.replace("http://127.0.0.1:8720", e2b.broker.url) + 'exec "$0" -c "$1"'
    done = subprocess.run(
        ["bash", "-c", script, DIRECTORY / "venv/bin/python", program],
        env={"PATH": own["PATH"], "TOKEN": e2b.broker.token},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == printed, done.stderr[-3000:]
