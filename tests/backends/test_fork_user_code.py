"""User code in a sandbox behaves as in a notebook, in whichever way the sandbox was launched."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import kernelbroker.sync
import pytest
from kernelbroker import events

from tests.e2e.support import whole_system
from tests.support.requires import requires
from tests.support.results import cause_of

from .launch_ways import WAYS, broker
from .user_code import CELLS

pytestmark = whole_system

TIMEOUT_S = 120.0
"""Of a cell that should take a second: a busy machine is no failure."""
OPEN_FIGURE = (
    "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots()\n_ = axes.plot([1, 3, 2])\n"
)


RANDOM_NUMBERS = """
import email.utils, multiprocessing, os, random, secrets, ssl, tempfile, uuid
import numpy, pandas, pyarrow.compute, scipy.stats
from multiprocessing import shared_memory
from sklearn.utils import check_random_state
session = get_ipython().kernel.session
block = shared_memory.SharedMemory(create=True, size=1)
block.close(); block.unlink()
verdict = {
    "random": random.random(),
    "random.Random": random.Random().random(),
    "random.SystemRandom": random.SystemRandom().random(),
    "numpy": float(numpy.random.rand()),
    "numpy.RandomState": float(numpy.random.RandomState().rand()),
    "numpy.default_rng": float(numpy.random.default_rng().random()),
    "numpy.SeedSequence": str(numpy.random.SeedSequence().entropy),
    "numpy's state": numpy.random.get_state()[1][:4].tolist(),
    "pandas": pandas.Series(range(10**6)).sample(4).tolist(),
    "pyarrow": pyarrow.compute.random(2).to_pylist(),
    "scipy": float(scipy.stats.norm.rvs()),
    "sklearn": float(check_random_state(None).rand()),
    "secrets": secrets.token_hex(),
    "urandom": os.urandom(16).hex(),
    "getrandom": os.getrandom(16).hex(),
    "ssl": ssl.RAND_bytes(16).hex(),
    "uuid1": str(uuid.uuid1()),
    "uuid's node": uuid.getnode(),
    "uuid4": str(uuid.uuid4()),
    "authkey": multiprocessing.current_process().authkey.hex(),
    "a temporary name": next(tempfile._get_candidate_names()),
    "a temporary directory": tempfile.mkdtemp(),
    "a name of shared memory": block.name,
    "a message's id": email.utils.make_msgid(),
    "the kernel's session": session.session,
    "the kernel's identity": get_ipython().kernel.ident,
    "the runtime directory": os.environ["JUPYTER_RUNTIME_DIR"],
}
"""
"""Draws from each source of random numbers, names and keys."""


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(way: str) -> Iterator[kernelbroker.sync.Broker]:
    with broker(way) as client:
        yield client


@pytest.fixture(scope="module")
def session(client: kernelbroker.sync.Broker) -> Iterator[kernelbroker.sync.Session]:
    """A session for cells that leave it as it was."""
    with client.session() as session:
        yield session


def value_of(session: kernelbroker.sync.Session, code: str, *, is_first: bool = False) -> Any:
    """The value of `verdict` after a cell, which is the first one after a restart or not."""
    result = session.run(textwrap.dedent(code), result_var="verdict", timeout=TIMEOUT_S)
    assert result.success, result.as_text()
    assert result.kernel_restarted == is_first
    return result.return_value


def test_sandboxes_are_launched_in_this_way(
    way: str, client: kernelbroker.sync.Broker, session: kernelbroker.sync.Session
) -> None:
    """A sandbox is forked from the server, or a process of its own, and `/health` says which."""
    command = value_of(session, "verdict = open('/proc/self/cmdline').read()")
    assert ("fork_server" in command) is (way == "fork")
    launches = client.health()["backend"]["launches"]
    assert launches == "started" if way == "plain" else launches["default"]["by"] == "fork"


@pytest.mark.parametrize(("code", "expected"), CELLS.values(), ids=CELLS)
def test_a_cell_gives_its_value(
    session: kernelbroker.sync.Session, code: str, expected: Any
) -> None:
    """A cell gives the value that it gives in a notebook."""
    assert value_of(session, code) == expected


def test_random_numbers_differ(client: kernelbroker.sync.Broker) -> None:
    """No two sandboxes draw the same random numbers, names or keys, also after a restart."""
    drawn = []
    with client.session() as one, client.session() as other:
        for session in (one, other, one):
            if drawn:
                session.restart()
            drawn.append(value_of(session, RANDOM_NUMBERS, is_first=bool(drawn)))
    assert len(drawn[0]) > 20
    for source in drawn[0]:
        assert len({str(each[source]) for each in drawn}) == len(drawn), source


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "while True: time.sleep(0.05)", "await asyncio.sleep(3600)"],
    ids=["computing", "sleeping", "awaiting"],
)
def test_an_interrupt_ends_a_cell(session: kernelbroker.sync.Session, code: str) -> None:
    """An interrupt ends a cell that computes, sleeps or awaits, and the state is kept."""
    value_of(session, "import asyncio, time\nkept = verdict = 1")
    for _ in range(3):
        for event in session.stream(f"print('now', flush=True)\n{code}", timeout=TIMEOUT_S):
            if isinstance(event, events.Stdout):
                session.interrupt()
            if isinstance(event, events.Result):
                assert cause_of(event) == "interrupted"
    assert value_of(session, "verdict = kept") == 1


def test_an_interrupt_ends_a_program(session: kernelbroker.sync.Session) -> None:
    """An interrupt ends a cell that waits for a program, and the program."""
    code = "import subprocess\nsubprocess.run(['sh', '-c', 'echo $$; exec sleep 3600'])"
    pid = ""
    for event in session.stream(code, timeout=TIMEOUT_S):
        if isinstance(event, events.Stdout):
            pid = event.content.strip()
            session.interrupt()
        if isinstance(event, events.Result):
            assert cause_of(event) == "interrupted", event.error
    assert value_of(session, f"import psutil; verdict = psutil.pid_exists({pid})") is False


def test_a_timeout_keeps_the_state(session: kernelbroker.sync.Session) -> None:
    """A cell that runs too long is interrupted, and the state is kept."""
    value_of(session, "kept = verdict = 2")
    result = session.run("while True: pass", timeout=0.5)
    assert (cause_of(result), result.kernel_restarted) == ("timeout", False)
    assert value_of(session, "verdict = kept") == 2


@pytest.mark.parametrize(
    "ending", ["", "plt.show()", "figure", "plt.close(figure); display(figure)"]
)
def test_a_figure_is_shown_once(session: kernelbroker.sync.Session, ending: str) -> None:
    """A figure is shown once: at the end of its cell, by `show`, as the last value, or by `display`."""
    result = session.run(OPEN_FIGURE + ending, timeout=TIMEOUT_S)
    assert result.success, result.as_text()
    assert [image.mime for image in result.images] == ["image/png"]


def test_the_first_figure_of_a_sandbox_is_shown(client: kernelbroker.sync.Broker) -> None:
    """The very first cell of a sandbox shows its figure, and Chinese and Japanese text has its glyphs."""
    with client.session() as session:
        result = session.run(OPEN_FIGURE + "axes.set_title('销售额 売上'); None", timeout=TIMEOUT_S)
    assert result.success, result.as_text()
    assert [image.mime for image in result.images] == ["image/png"]
    assert "Glyph" not in result.stderr


def test_input_is_answered(session: kernelbroker.sync.Session) -> None:
    """`input()` and `getpass` are answered by the client."""
    code = "import getpass\nprint(input('name? ') + getpass.getpass('secret? '))"
    result = session.run(code, on_input=lambda prompt: prompt[:4], timeout=TIMEOUT_S)
    assert (result.success, result.stdout) == (True, "namesecr\n"), result.error


def test_output_goes_to_its_stream(session: kernelbroker.sync.Session) -> None:
    """Text of Python, of descriptors and of programs arrives on its stream; so do warnings and logs."""
    result = session.run(
        "import logging, os, subprocess, sys, warnings\n"
        "print('a'); print('b', file=sys.stderr)\n"
        "os.write(1, b'c\\n'); os.write(2, b'd\\n')\n"
        "subprocess.run('echo e; echo f >&2', shell=True)\n"
        "warnings.warn('careful', DeprecationWarning)\n"
        "logging.getLogger('mine').warning('logged'); logging.info('too low')\n"
        "None",
        timeout=TIMEOUT_S,
    )
    assert result.success, result.error
    assert sorted(result.stdout.split()) == ["a", "c", "e"]
    for text in ("b\n", "d\n", "f\n", "DeprecationWarning: careful", "logged"):
        assert text in result.stderr
    assert "too low" not in result.stderr


ENDS = {
    "_exit": ("import os; os._exit(3)", "the kernel exited with status 3"),
    "_exit 0": ("import os; os._exit(0)", "the kernel exited with status 0"),
    "SIGKILL": ("import os; os.kill(os.getpid(), 9)", "the kernel was killed by SIGKILL"),
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "the kernel was killed by SIGSEGV"),
    "SIGABRT": ("import os; os.abort()", "the kernel was killed by SIGABRT"),
    "SIGTERM": (
        "import os, time; os.kill(os.getpid(), 15); time.sleep(60)",
        "the kernel was killed by SIGTERM",
    ),
    "thread": (
        "import os, threading, time\n"
        "threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(60)",
        "the kernel exited with status 4",
    ),
    "memory": ("x = b'x' * 2**32", "the sandbox exceeded its limit of 1.0 GiB"),
    "numpy memory": (
        "import numpy; x = numpy.ones(2**30)",
        "the sandbox exceeded its limit of 1.0 GiB",
    ),
}
"""How a kernel can end, and how its result names that."""


@pytest.mark.parametrize(("code", "named"), ENDS.values(), ids=ENDS)
def test_an_end_is_named(client: kernelbroker.sync.Broker, code: str, named: str) -> None:
    """The result names how the kernel ended, and the next cell has a fresh sandbox with the files."""
    with client.session() as session:
        value_of(
            session, "open('/data/kept', 'w').close(); open('/tmp/lost', 'w').close(); verdict = 1"
        )
        result = session.run(code, timeout=TIMEOUT_S)
        assert not result.success
        assert result.kernel_restarted
        assert named in str(result.error)
        cause = "out_of_memory" if "exceeded" in named else "kernel_died"
        assert cause_of(result) == cause
        code = "import os; verdict = [os.path.exists(p) for p in ('/data/kept', '/tmp/lost')]"
        assert value_of(session, code) == [True, False]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import sys; sys.exit(2)", "SystemExit"),
        ("exit(1)", "SystemExit"),
        ("1/0", "ZeroDivisionError"),
    ],
)
def test_an_exception_keeps_the_kernel(
    session: kernelbroker.sync.Session, code: str, name: str
) -> None:
    """`sys.exit` and errors end their cell, not the kernel."""
    value_of(session, "kept = verdict = 3")
    result = session.run(code, timeout=TIMEOUT_S)
    assert not result.kernel_restarted
    assert result.error_detail is not None
    assert result.error_detail.name == name
    assert value_of(session, "verdict = kept") == 3


@requires("control groups")
def test_a_child_out_of_memory_dies_alone(client: kernelbroker.sync.Broker) -> None:
    """A child process that takes too much memory is killed, and the kernel keeps its state."""
    code = """
        import subprocess, sys
        bomb = "x = [b'x' * 2**20 for _ in range(4096)]"
        verdict = subprocess.run([sys.executable, "-c", bomb]).returncode"""
    with client.session() as session:
        assert value_of(session, code) == -9


def test_exit_handlers_run(client: kernelbroker.sync.Broker) -> None:
    """The exit handlers of a kernel that is shut down run, and their files are kept."""
    with client.session() as session:
        handler = "open('/data/ended', 'w').write('by its handler')"
        value_of(session, f"import atexit; atexit.register(lambda: {handler}); verdict = 1")
        code = "import asyncio\nget_ipython().kernel.do_shutdown(False)\nawait asyncio.sleep(3600)"
        ended = session.run(code, timeout=TIMEOUT_S)
        assert "the kernel exited with status 0" in str(ended.error)
        assert value_of(session, "verdict = open('/data/ended').read()") == "by its handler"


def test_a_restart_leaves_nothing(client: kernelbroker.sync.Broker) -> None:
    """After a restart there are neither processes nor temporary files of the former sandbox."""
    with client.session() as session:
        code = (
            "import subprocess; subprocess.Popen(['sleep', '3600']); open('/tmp/mine', 'w').close()"
        )
        value_of(session, f"{code}; verdict = 1")
        session.restart()
        found = value_of(
            session,
            """
            import os
            verdict = [os.path.exists("/tmp/mine"), "sleep" in [
                open(f"/proc/{name}/cmdline").read().split("\\0")[:2] for name in os.listdir("/proc")
                if name.isdigit()]]""",
            is_first=True,
        )
    assert found == [False, False]
