"""E2B's own clients, unmodified, in processes of their own against a broker."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.support import BrokerProcess

DIRECTORY = Path(
    os.environ.get("KERNELBROKER_TEST_E2B_CLIENTS", "/var/tmp/kernelbroker-e2b-clients")
)
GET = Path(__file__).parents[1] / "support" / "e2b_clients" / "get"
TIMEOUT_S = 120.0
_MARK = "#report "

_PYTHON = f"""
import json
def report(*values):
    print("{_MARK}" + json.dumps(values if len(values) != 1 else values[0], default=str), flush=True)
def kind_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except BaseException as error:
        return [type(error).__name__, str(error)]
"""
_NODE = f"""
const report = (...values) =>
    console.log("{_MARK}" + JSON.stringify(values.length === 1 ? values[0] : values))
const kindOf = async (work) => {{
    try {{ await work() }} catch (error) {{ return [error.name, error.message] }}
}}
"""


@dataclass
class E2bClients:
    """Runs programs that use E2B's clients.

    Args:
        environ: variables of the programs, besides those that name the broker.
    """

    broker: BrokerProcess
    environ: Mapping[str, str] = field(default_factory=dict)

    def python(self, source: str, **environ: str) -> Any:
        """Run a Python program. Returns what it gives to `report`; `kind_of` returns an error of a call."""
        program = _PYTHON + textwrap.dedent(source)
        return self.run([DIRECTORY / "venv/bin/python", "-c", program], **environ)

    def node(self, source: str, **environ: str) -> Any:
        """Run a JavaScript module, as `python` does; `kindOf` is for functions without arguments."""
        lines = textwrap.dedent(source)
        imports = [line for line in lines.splitlines() if line.startswith("import ")]
        rest = [line for line in lines.splitlines() if not line.startswith("import ")]
        program = "\n".join([*imports, _NODE, *rest])
        node = DIRECTORY / "node_modules/.bin/node"
        return self.run([node, "--input-type=module", "-e", program], **environ)

    def run(self, command: list[str | Path], **environ: str) -> Any:
        """Run a command that prints a report."""
        done = subprocess.run(
            command,
            cwd=DIRECTORY,
            env=self.variables(**environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        reports = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
        assert reports, f"it reported nothing: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return json.loads(reports[-1].removeprefix(_MARK))

    def variables(self, **environ: str) -> dict[str, str]:
        """The environment of a program: the three lines that switch to the broker."""
        own = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **own,
            "E2B_API_URL": f"{self.broker.url}/e2b",
            "E2B_SANDBOX_URL": self.broker.url,
            "E2B_API_KEY": self.broker.token,
            **self.environ,
            **environ,
        }
