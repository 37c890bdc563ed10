"""What a cell writes belongs to it, and what it forks or takes away does no harm to later cells."""

from __future__ import annotations

import kernelbroker
import pytest

from tests.e2e.support import whole_system

pytestmark = whole_system

REPLACED = "replaced and not restored: later cells print again]"
LIBC = "import ctypes\nlibc = ctypes.CDLL(None)\n"
WRITTEN = {
    "C's output": (f"{LIBC}libc.printf(b'from c\\n');", "from c"),
    "the descriptor": ("import os\nos.write(1, b'raw\\n');", "raw"),
    "Python's own stream": ("import sys\nprint('own', file=sys.__stdout__)", "own"),
    "in order": (
        "import os, sys\nfor n in range(60):\n    print('p', n)\n    os.system(f'echo s {n}')",
        "\n".join(f"p {n}\ns {n}" for n in range(60)),
    ),
    "in order at once": (
        "import os\nfor n in range(60):\n    print('p', n)\n    os.write(1, f's {n}\\n'.encode());",
        "\n".join(f"p {n}\ns {n}" for n in range(60)),
    ),
}


@pytest.mark.parametrize(("code", "text"), WRITTEN.values(), ids=WRITTEN)
async def test_output_comes_with_its_cell(
    session: kernelbroker.Session, code: str, text: str
) -> None:
    """Nothing that is written during a cell comes with the next one."""
    assert (await session.run(code)).text == text
    assert (await session.run("pass")).text == ""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import sys\nsys.stdout = sys.__stdout__\nprint('seen')", "seen\n[sys.stdout was"),
        ("import io, sys\nsys.stdout = io.StringIO()\nprint('away')", "[sys.stdout was"),
        ("import sys\nsys.stdout = sys.stderr = None", "[sys.stdout and sys.stderr were"),
        ("import sys\ndel sys.stdout", "[sys.stdout was"),
        (
            "import sys\nclass Slow:\n    def write(self, text): pass\n    def flush(self):\n"
            "        while True: pass\nsys.stdout = Slow()",
            "[sys.stdout was",
        ),
    ],
)
async def test_replaced_streams_are_put_back(
    session: kernelbroker.Session, code: str, shown: str
) -> None:
    """One line says so, and later cells print."""
    assert (await session.run(code)).text == f"{shown} {REPLACED}"
    after = await session.run("import sys\nprint('back')\nprint('too', file=sys.stderr)")
    assert (after.stdout, after.stderr) == ("back\n", "too\n")


async def test_a_redirection_that_is_undone_is_not_told(session: kernelbroker.Session) -> None:
    """`redirect_stdout` in one cell is nobody's problem."""
    code = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as to:\n    print('a')"
    result = await session.run(f"{code}\nprint(repr(to.getvalue()))")
    assert (result.stdout, result.stderr) == ("'a\\n'\n", "")


FORKS = {
    "exits": ("sys.exit(0)", "0"),
    "exits with a status": ("sys.exit(7)", "7"),
    "fails": ("1 / 0", "1"),
    "goes on to the end": ("pass", "0"),
}


@pytest.mark.parametrize(("code", "status"), FORKS.values(), ids=FORKS)
async def test_a_forked_process_ends_with_its_cell(
    session: kernelbroker.Session, code: str, status: str
) -> None:
    """It never becomes a second kernel, and its status is that of a program."""
    result = await session.run(
        f"import os, sys\npid = os.fork()\nif pid == 0:\n    {code}\n"
        "if pid: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert result.success, result.text
    assert result.stdout.endswith(f"{status}\n")
    assert ("ZeroDivisionError" in result.text) == (code == "1 / 0")
    assert (await session.run("pid > 0")).text == "True"


async def test_what_we_need_is_taken_at_the_start(client: kernelbroker.Broker) -> None:
    """Tables come although a cell has emptied the environment and forbidden connections."""
    async with client.session() as session:
        await session.run("import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})")
        await session.run("import os, socket\nos.environ.clear()\nsocket.socket = None")
        assert (await session.table("df"))["a"].tolist() == [1, 2]
        assert (await session.run("int(df.a.sum())")).text == "3"


HANDLER = """
import os, signal
handled = 0
def handler(*_):
    global handled
    handled += 1
    print("h")
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(3000):
    print("p")
    _ = os.write(1, b"s\\n")
signal.setitimer(signal.ITIMER_REAL, 0)
"""


async def test_a_handler_prints_meanwhile(session: kernelbroker.Session) -> None:
    """A signal's handler that prints in the middle of a print neither waits for it nor loses text."""
    result = await session.run(HANDLER, timeout=30, result_var="handled")
    assert result.success, result.error
    found = [result.stdout.count(letter) for letter in "psh"]
    assert found == [3000, 3000, result.return_value]
    assert result.return_value > 0
