"""Measures a cell, `1`, through other people's clients, beside the SDK's cell in another session.

Each side is a process that runs cells one after the other, with the Python that has its client. The sides
take turns in blocks, so that other load affects all of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from sys import executable

from figures import Target, arguments, median_ms, report
from kernelbroker_side import running, running_broker

BLOCK = 10
WARM_UP = 20
MOST = 1.5
"""Times the SDK's round trip that a client's may take."""
E2B_CLIENTS = Path(
    os.environ.get("KERNELBROKER_TEST_E2B_CLIENTS", "/var/tmp/kernelbroker-e2b-clients")
)
JUPYTER_CLIENTS = Path(
    os.environ.get("KERNELBROKER_TEST_JUPYTER_CLIENTS", "/var/tmp/kernelbroker-jupyter-clients")
)

_LOOP = """
import json, sys, time
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    print(json.dumps(times), flush=True)
"""
SDK = "our SDK"


@dataclass(frozen=True)
class Side:
    """A client.

    Attributes:
        program: defines `run`, which runs one cell and waits for its result. URL and TOKEN are variables of
            its environment.
        python: has the client.
        environ: what the client reads; `{url}` and `{token}` are replaced.
        counts: its round trip is compared with the target.
    """

    program: str
    python: Path = Path(executable)
    environ: Mapping[str, str] = field(default_factory=dict)
    counts: bool = True


SIDES = {
    SDK: Side(
        """
import os, kernelbroker.sync
broker = kernelbroker.sync.connect(os.environ["URL"], os.environ["TOKEN"]).__enter__()
session = broker.session().__enter__()
def run():
    session.run("1").raise_for_error()
""",
        counts=False,
    ),
    "E2B's SDK": Side(
        """
from e2b_code_interpreter import Sandbox
sandbox = Sandbox.create()
def run():
    assert sandbox.run_code("1").text == "1"
""",
        E2B_CLIENTS / "venv" / "bin" / "python",
        {"E2B_API_URL": "{url}/e2b", "E2B_SANDBOX_URL": "{url}", "E2B_API_KEY": "{token}"},
    ),
    "jupyter_kernel_client": Side(
        """
import os
from jupyter_kernel_client import JupyterKernelClient
kernel = JupyterKernelClient(server_url=os.environ["URL"] + "/jupyter", token=os.environ["TOKEN"])
kernel.start()
def run():
    assert kernel.execute("1")["outputs"][0]["data"]["text/plain"] == "1"
""",
        JUPYTER_CLIENTS / "env" / "bin" / "python",
    ),
}


async def block(process: Process, count: int) -> list[float]:
    """Run some cells. Returns their times in seconds."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{count}\n".encode())
    await process.stdin.drain()
    line = await process.stdout.readline()
    assert line, "a side has ended"
    times: list[float] = json.loads(line)
    return times


async def measure(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    async with running_broker(warm=len(sides)) as broker, AsyncExitStack() as stack:
        token = broker._address.token or ""
        processes: dict[str, Process] = {}
        for name, side in sides.items():
            own = {
                key: text.format(url=broker.url, token=token) for key, text in side.environ.items()
            }
            environ = {**os.environ, "URL": broker.url, "TOKEN": token, **own}
            processes[name] = await stack.enter_async_context(
                running("-c", side.program + _LOOP, python=side.python, env=environ, stdin=PIPE)
            )
            await block(processes[name], WARM_UP)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, process in processes.items():
                times[name] += await block(process, BLOCK)
        return times


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    sides = {name: side for name, side in SIDES.items() if side.python.exists()}
    for name in SIDES.keys() - sides.keys():
        print(f"{name} is not installed: see tests/support")
    times = asyncio.run(measure(sides, options.rounds))
    medians = {name: median_ms(values) for name, values in times.items()}
    targets = [
        Target(f"{name} / {SDK}, medians", medians[name] / medians[SDK], MOST)
        for name, side in sides.items()
        if side.counts
    ]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
