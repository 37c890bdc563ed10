"""What programs write that a cell runs, in our own kernel."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

PROGRAMS = {
    "short": ("subprocess.run(['echo', 'hi'])", "hi\n"),
    "long": ("subprocess.run(['seq', '20000'])", "".join(f"{i}\n" for i in range(1, 20_001))),
    "torn characters": ("os.write(1, ('x' + 'é' * 40_000).encode())", "x" + "é" * 40_000),
    "behind a print": ("print('a'); os.system('echo b')", "a\nb\n"),
}


class OurKernel(KernelManager):
    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "kernelbroker_kernel.kernel", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="", language="python")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Runs a cell, and gives the text that came before the cell was idle."""
    directory: Path = tmp_path_factory.mktemp("kernel")
    manager = OurKernel(connection_file=str(directory / "connection.json"), transport="ipc")
    # ipykernel leaves the descriptors alone where it believes that pytest has redirected them.
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    manager.start_kernel(env=environ, cwd=str(directory))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)

        def run_cell(code: str) -> str:
            texts: list[str] = []
            request = client.execute(code)
            while True:
                message = client.get_iopub_msg(timeout=60)
                if message["msg_type"] == "stream":
                    texts.append(message["content"]["text"])
                if (
                    message["parent_header"].get("msg_id") == request
                    and message["content"].get("execution_state") == "idle"
                ):
                    return "".join(texts)

        run_cell("import os, subprocess, threading")
        yield run_cell
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_within_the_cell(run: Callable[[str], str], program: str) -> None:
    """What a program writes arrives whole and in its order, before its cell ends; each time."""
    code, expected = PROGRAMS[program]
    for _ in range(20):
        assert run(f"{code};") == expected


def test_prints_of_threads(run: Callable[[str], str]) -> None:
    """What threads print that have ended arrives before the cell ends."""
    code = """
threads = [threading.Thread(target=print, args=("x" * 100,)) for _ in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads];
"""
    for _ in range(20):
        assert len(run(code)) == 8 * 101


def test_descriptors_closed_by_user_code(run: Callable[[str], str]) -> None:
    """A cell that closes what it does not own still prints."""
    run("import sys; os.close(sys.stdout._fid)")
    assert run("print('here')") == "here\n"
