"""The output of programs that a cell runs, in the kernel of the image."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


class ImageKernel(KernelManager):
    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "kernelbroker_kernel.kernel", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="", language="python")


@pytest.fixture(scope="module")
def run(messages: Callable[[str], list[str]]) -> Callable[[str], str]:
    """Runs a cell; returns the text that arrived before the kernel was idle."""
    return lambda code: "".join(messages(code))


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], list[str]]]:
    """Runs a cell; returns the texts that arrived, one for each message, before the kernel was idle."""
    with kernel_in(tmp_path_factory.mktemp("kernel")) as run:
        yield run


@contextmanager
def kernel_in(directory: Path) -> Iterator[Callable[[str], list[str]]]:
    manager = ImageKernel(connection_file=str(directory / "connection.json"), transport="ipc")
    # If this variable is set, ipykernel does not redirect the descriptors.
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    manager.start_kernel(env=environ, cwd=str(directory))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)

        def run_cell(code: str) -> list[str]:
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
                    return texts

        run_cell("import os, subprocess, threading")
        yield run_cell
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_output_arrives_within_its_cell(run: Callable[[str], str], program: str) -> None:
    """A program's output arrives complete and in order before its cell ends."""
    code, expected = PROGRAMS[program]
    for _ in range(20):
        assert run(f"{code};") == expected


def test_prints_of_threads(run: Callable[[str], str]) -> None:
    """The output of threads that have ended arrives before the cell ends."""
    code = """
threads = [threading.Thread(target=print, args=("x" * 100,)) for _ in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads];
"""
    for _ in range(20):
        assert len(run(code)) == 8 * 101


def test_a_forked_process_sends_its_own_text_only(run: Callable[[str], str]) -> None:
    """What was written before a fork comes once, and what the forked process writes comes, too."""
    code = """
import os, sys
print("before")
if not (child := os.fork()):
    sys.stdout.write("child\\n")
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
print("after");
"""
    texts = [run(code) for _ in range(10)]
    texts.append(run("import time; time.sleep(0.5);"))  # what a forked process writes may come late
    assert sorted("".join(texts).split()) == sorted(["after", "before", "child"] * 10)


def test_an_exit_that_is_refused(run: Callable[[str], str]) -> None:
    """`os._exit` sends what was written before the kernel ends; with a wrong argument nothing ends."""
    code = "import os\ntry: os._exit('no number')\nexcept TypeError as error: print('refused', end='');"
    assert run(code) == "refused"
    assert run("print('on', end='');") == "on"


def test_only_text_can_be_written(run: Callable[[str], str]) -> None:
    """What is not text is refused; a subclass of `str` counts as what it holds."""
    code = """
import sys
class Text(str): pass
try: sys.stdout.write(b"bytes")
except TypeError as error: sys.stdout.write(Text(error));
"""
    assert run(code) == "write() argument must be str, not <class 'bytes'>"


def test_a_print_is_one_message(messages: Callable[[str], list[str]]) -> None:
    """A print is one message, even if its newline is written much later than its text."""
    messages("from kernelbroker_kernel.compat import streams; import sys; print(1, end='')")
    messages("streams._LINE_S = 60.0; print(1)")
    late = "import time; sys.stdout.write('2'); time.sleep(0.05); sys.stdout.write('\\n');"
    assert messages(late) == ["2\n"]


def test_an_unfinished_line_does_not_wait(
    messages: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """A text without a newline is sent while its cell runs."""
    messages("from kernelbroker_kernel.compat import streams; streams._LINE_S = 0.02; import sys")
    code = f"""
import time
sent = []
sys.stdout.session.send, send = lambda *a, **k: (sent.append(a), send(*a, **k)), sys.stdout.session.send
sys.stdout.write("unfinished")
deadline = time.monotonic() + 60
while not sent and time.monotonic() < deadline: time.sleep(0.005)
sys.stdout.session.send = send
open({str(tmp_path / "sent")!r}, "w").write(str(len(sent)))
"""
    messages(code)
    assert (tmp_path / "sent").read_text() == "1"


def test_descriptors_closed_by_user_code(tmp_path: Path) -> None:
    """A cell that closes the kernel's descriptors can still print."""
    with kernel_in(
        tmp_path
    ) as run:  # a kernel of its own, since output of programs is lost afterwards
        run("import sys; os.close(sys.stdout._fid)")
        assert run("print('here')") == ["here\n"]


def test_text_that_cannot_be_sent_holds_nobody(run: Callable[[str], str]) -> None:
    """If a text cannot be sent, for want of memory for example, the cell says so and goes on."""
    code = """
import sys
real = sys.stdout.session.send
def fails_once(*args, **kwargs):
    sys.stdout.session.send = real
    raise MemoryError
sys.stdout.session.send = fails_once
print("lost")
sys.stdout.flush()
print("sent");
"""
    assert sorted(run(code).splitlines()) == ["Some output is lost: MemoryError", "sent"]
