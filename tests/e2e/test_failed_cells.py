"""What a user learns of a cell that failed, and what the session keeps of it."""

from __future__ import annotations

import asyncio

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


async def test_an_error_after_an_interrupt_is_the_cells_own(session: kernelbroker.Session) -> None:
    """A cell that catches its interrupt and fails later has its own error as the cause."""
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
    assert (cause_of(last), last.error) == ("exception", "ValueError: later")


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
