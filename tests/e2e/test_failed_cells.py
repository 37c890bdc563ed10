"""What a user learns of a cell that failed, and what the session keeps of it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import DEADLINE_S, whole_system
from tests.support.results import cause_of

pytestmark = whole_system


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("raise ValueError('x' * 20_000_000)", "ValueError"),
        ("raise type('N' * 20_000_000, (Exception,), {})", "N" * 999 + "…"),
        ("raise ValueError('\U0001f600' * 5_000_000)", "ValueError"),
    ],
)
async def test_an_error_of_any_size_is_a_failure(
    session: kernelbroker.Session, code: str, name: str
) -> None:
    """An error larger than a message fails its cell, with its name, and the session goes on."""
    result = await session.run(code)
    assert not result.success
    assert result.error_detail is not None
    assert (result.error_detail.cause, result.error_detail.name) == ("exception", name)
    assert len(result.error_detail.value) <= 10_000
    assert (await session.run("1")).success


async def test_a_reply_that_is_too_large_keeps_its_status(session: kernelbroker.Session) -> None:
    """The gateway shortens a reply that it cannot pass on; a failed cell has still failed."""
    code = (
        "shell = get_ipython()\n"
        "shell.payload_manager.write_payload({'source': 'page', 'data': 'x' * 20_000_000})\n"
    )
    assert (await session.run(code)).success
    failed = await session.run(code + "1 / 0")
    assert not failed.success
    assert failed.error == "ZeroDivisionError: division by zero"


async def test_an_error_after_an_interrupt(session: kernelbroker.Session) -> None:
    """A cell that catches its interrupt and fails later was interrupted; its traceback has the error."""
    code = (
        "import time\n"
        "try:\n"
        "    print('the cell runs', flush=True)\n"
        "    time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
        "raise ValueError('later')"
    )
    last: events.Event | None = None
    async with asyncio.timeout(DEADLINE_S):
        async for event in session.stream(code, timeout=50):
            last = event
            if isinstance(event, events.Stdout):
                await session.interrupt()
    assert isinstance(last, events.Result)
    assert (cause_of(last), last.error) == ("interrupted", "KeyboardInterrupt: interrupted")
    assert last.error_detail is not None
    assert last.error_detail.traceback[-1] == "ValueError: later"


SWALLOWING = {
    "a program": "import os; os.system('sleep 60'); print('saved')",
    "a line magic": "!sleep 60",
    "captured": "%%capture\nimport time; time.sleep(60)",
    "a bare except": "import time\ntry: time.sleep(60)\nexcept: pass\nprint('saved')",
    "a context manager": (
        "import contextlib, time\nwith contextlib.suppress(BaseException): time.sleep(60)\nprint('saved')"
    ),
    "a finalizer": "class D:\n def __del__(self): __import__('time').sleep(60)\nD(); print('saved')",
    "a script": "%%bash\nsleep 60",
    "a shell": "%%sh\nsleep 60",
    "another error": "import time\ntry: time.sleep(60)\nexcept: raise ValueError('other')",
    "the text of an error": (
        "import time\nclass Slow(Exception):\n    def __str__(self): time.sleep(60); return ''\n"
        "raise Slow"
    ),
    "an exit": "import sys, time\ntry: time.sleep(60)\nexcept: sys.exit(0)",
}


@pytest.mark.parametrize("how", ["timeout", "interrupted"])
@pytest.mark.parametrize("what", SWALLOWING)
async def test_a_cell_that_swallows_its_interrupt_is_no_success(
    session: kernelbroker.Session, what: str, how: str
) -> None:
    """What ends a cell is what the broker did, whatever the cell made of it."""
    handle = await session.submit(SWALLOWING[what], timeout=1 if how == "timeout" else 50)
    if how == "interrupted":
        async with aclosing(handle.events()) as begun:
            await anext(begun)
        while (await handle.status()).state != "done":  # the cell may not have come to its wait
            await handle.interrupt()
            await asyncio.sleep(0.1)
    async with asyncio.timeout(DEADLINE_S):
        result = await handle.result()
    assert not result.success
    assert result.error_detail is not None
    assert (result.error_detail.cause, result.kernel_restarted) == (how, False)
    assert result.outputs[-1]["output_type"] == "error"
    assert result.error_detail.name in result.text


@pytest.mark.parametrize("on_error", ["rollback", "rollback_all", "keep"])
async def test_an_interrupted_cell_keeps_what_it_has_computed(
    session: kernelbroker.Session, on_error: str
) -> None:
    """The names of a cell that timed out stay, unless all are to be removed; those of a failed one go."""
    loop = "import time\ndone = []\nfor i in range(1000):\n    done.append(i); time.sleep(0.05)"
    result = await session.run(loop, timeout=1, on_error=on_error)
    assert result.error_detail is not None
    assert result.error_detail.cause == "timeout"
    is_kept = on_error != "rollback_all"
    assert ("done" in result.removed) is not is_kept
    assert ("are removed: " in result.text) is not is_kept
    assert (await session.run("len(done) > 3")).text == ("True" if is_kept else "") or not is_kept
    failed = await session.run("fresh = 1\n1 / 0", on_error=on_error)
    assert failed.removed == ([] if on_error == "keep" else ["fresh"])
    if failed.removed:
        note = "[The cell failed, so the names that it created are removed: fresh]"
        assert failed.text.endswith(note)
    await session.run("globals().pop('fresh', None), globals().pop('done', None)")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("sys.exit()", 0, None),
        ("sys.exit(0)", 0, None),
        ("exit()", 0, None),
        ("quit()", 0, None),
        ("raise SystemExit", 0, None),
        ("def main(): return None\nsys.exit(main())", 0, None),
        ("sys.exit(7)", 7, "SystemExit: 7"),
        ("exit(7)", 7, "SystemExit: 7"),
        ("sys.exit(-1)", 255, "SystemExit: -1"),
        ("sys.exit('no data')", 1, "SystemExit: no data"),
        ("raise SystemExit([])", 1, "SystemExit: []"),
    ],
)
async def test_an_exit_has_its_status(
    session: kernelbroker.Session, code: str, status: int, error: str | None
) -> None:
    """A cell that ends itself is a success with status 0, and keeps its names; else it has failed."""
    await session.run("import sys")
    result = await session.run(f"left = 1\n{code}")
    assert (result.success, result.exit_code, result.error) == (status == 0, status, error)
    assert ("left" in result.removed) is (status != 0)
    if status == 0:
        assert result.outputs == []
        assert (await session.run("left")).text == "1"
    assert (await session.run("globals().pop('left', None); 2")).exit_code is None


async def test_a_group_of_errors_is_an_error(session: kernelbroker.Session) -> None:
    """It has an error output with a traceback from the cell on, as any other exception."""
    code = (
        "import asyncio\nasync def fails(): raise ValueError('inside')\n"
        "async with asyncio.TaskGroup() as tasks: tasks.create_task(fails())"
    )
    for each in (code, "raise ExceptionGroup('several', [ValueError('inside')])"):
        result = await session.run(each)
        (output,) = result.outputs
        assert (output["output_type"], output["ename"]) == ("error", "ExceptionGroup")
        assert "ValueError: inside" in "\n".join(output["traceback"])
        assert result.error_detail is not None
        assert result.error_detail.traceback
        assert "IPython" not in result.text


OF_OURS = {
    "an interrupt": "import time; time.sleep(60)",
    "an interrupt while it awaits": "import asyncio; await asyncio.sleep(60)",
    "a representation": "class R:\n def __repr__(self): 1 / 0\nR()",
    "input": "input()",
    "an interrupt in a function": "import time\ndef f(): time.sleep(60)\nf()",
    "a chain": "import time\ntry: time.sleep(60)\nexcept BaseException as e: raise ValueError from e",
}


@pytest.mark.parametrize("what", OF_OURS)
async def test_no_traceback_shows_the_kernels_own_code(
    session: kernelbroker.Session, what: str
) -> None:
    """Tracebacks end where the user's code does."""
    result = await session.run(OF_OURS[what], timeout=1)
    assert result.error_detail is not None
    text = result.text + "\n".join(result.error_detail.traceback)
    assert "kernelbroker_kernel" not in text
    assert "_on_sigint" not in text


async def test_a_pool_of_threads_ends_by_a_second_interrupt(session: kernelbroker.Session) -> None:
    """A cell that needs more than one interrupt gets it, and the kernel keeps its variables."""
    await session.run("kept = 1")
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nimport time\n"
        "with ThreadPoolExecutor() as pool: list(pool.map(lambda i: time.sleep(20), range(2)))"
    )
    result = await session.run(code, timeout=1)
    assert result.error_detail is not None
    assert (result.error_detail.cause, result.kernel_restarted) == ("timeout", False)
    assert (await session.run("kept")).text == "1"


async def test_definitions_survive_a_failed_cell(session: kernelbroker.Session) -> None:
    """After a failure the imports and functions of the cell are there, and its data is not."""
    failed = await session.run("import fractions\ndef half(x): return x / 2\nleft = 1\n1 / 0")
    assert not failed.success
    result = await session.run("value = str(fractions.Fraction(half(3)))", result_var="value")
    assert result.return_value == "3/2"
    assert (await session.run("left")).error == "NameError: name 'left' is not defined"
    await session.run("import calendar\n1 / 0", on_error="rollback_all")
    assert (await session.run("calendar")).error == "NameError: name 'calendar' is not defined"


async def test_a_frame_in_a_dict_comes_whole(session: kernelbroker.Session) -> None:
    """A dict with 500 rows of 30 columns, as records and as markdown, is the return value."""
    result = await session.run(
        "import pandas as pd\n"
        "def column(n): return [f'项目 {n} {r}' if n % 2 else r / 7 for r in range(500)]\n"
        "frame = pd.DataFrame({f'a_longer_name_{n}': column(n) for n in range(30)})\n"
        "report = {'markdown': frame.to_markdown(), 'data': frame.to_dict('records'),\n"
        "          'shape': frame.shape, 'summary': frame.describe().to_dict()}",
        result_var="report",
    )
    assert result.success
    assert result.truncated is None
    value = result.return_value
    assert (value["shape"], len(value["data"]), len(value["data"][0])) == ([500, 30], 500, 30)
    assert len(value["markdown"].splitlines()) == 502
    assert value["data"][499]["a_longer_name_29"] == "项目 29 499"


async def test_pictures_keep_their_other_forms(session: kernelbroker.Session) -> None:
    """A figure that is the last expression is a result, with the text that stands for it."""
    code = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2]);\n"
    images = [
        event
        async for event in session.stream(code + "display(fig)\nfig")
        if isinstance(event, events.Image)
    ]
    assert [image.is_result for image in images] == [False, True]
    assert all(image.data["text/plain"].startswith("<Figure size") for image in images)
    shown = [
        event
        async for event in session.stream("display({'a': 1})\n41 + 1")
        if isinstance(event, events.Display)
    ]
    assert [(event.data["text/plain"], event.is_result) for event in shown] == [
        ("{'a': 1}", False),
        ("42", True),
    ]
    tracebacks = [
        event
        async for event in session.stream("import sys; sys.stderr.write('x'); 1 / 0")
        if isinstance(event, events.Stderr)
    ]
    assert [event.is_traceback for event in tracebacks] == [False, True]
