"""What docs/notebooks.md says of cells that mislead in a notebook, each by a cell."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, whole_system
from tests.support.requires import ROOT
from tests.support.results import cause_of

pytestmark = whole_system

MIB = 2**20
Check = Callable[[kernelbroker.Session], Awaitable[None]]
PROMISES: dict[str, Check] = {}


def promise(check: Check) -> Check:
    PROMISES[check.__name__.replace("_", "-")] = check
    return check


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        settings = {"SANDBOX__CPUS": 1, "SANDBOX__MEMORY": "1GiB", "SANDBOX__IMPORTS": '["pandas"]'}
        broker = BrokerProcess(Path(directory), **settings)
        with broker.running():
            yield broker


@pytest.fixture
async def session(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Session]:
    async with kernelbroker.connect(broker.url, broker.token) as client, client.session() as made:
        yield made


@promise
async def limits_are_told(session: kernelbroker.Session) -> None:
    for code in (
        "import os; os.system('sleep 60'); print('model saved')",
        "import time\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass\nprint('saved')",
        "!sleep 60",
    ):
        result = await session.run(code, timeout=1)
        assert (result.success, cause_of(result)) == (False, "timeout"), code


@promise
async def work_is_kept(session: kernelbroker.Session) -> None:
    code = "import time\nfound = []\nfor i in range(100): found.append(i); time.sleep(0.1)"
    assert cause_of(await session.run(code, timeout=1)) == "timeout"
    assert int((await session.run("len(found)")).text) > 3


@promise
async def failures_leave_nothing(session: kernelbroker.Session) -> None:
    result = await session.run("half = [1]\nhalf.append(1 / 0)")
    assert result.removed == ["half"]
    assert (await session.run("'half' in globals()")).text == "False"


@promise
async def clean_ends(session: kernelbroker.Session) -> None:
    result = await session.run("import sys; x = 1; sys.exit(0)")
    assert (result.success, result.exit_code) == (True, 0)
    result = await session.run("sys.exit(3)")
    assert (result.success, result.exit_code) == (False, 3)
    assert (await session.run("x")).text == "1"


@promise
async def groups_have_tracebacks(session: kernelbroker.Session) -> None:
    result = await session.run("raise ExceptionGroup('both', [ValueError(1), KeyError(2)])")
    assert result.error_detail is not None and len(result.error_detail.traceback) > 3
    assert result.outputs[-1]["output_type"] == "error"


@promise
async def own_lines_first(session: kernelbroker.Session) -> None:
    text = (await session.run("import pandas\npandas.DataFrame({'a': [1]})['b']")).text
    assert "----> 2 pandas.DataFrame" in text and "KeyError: 'b'" in text
    assert len(text) < 3_000


@promise
async def displays_are_updated(session: kernelbroker.Session) -> None:
    result = await session.run("a = display(1, display_id='k')\nb = display(2, display_id='k')")
    assert [each["data"]["text/plain"] for each in result.outputs] == ["2", "2"]


@promise
async def installs_work_or_fail(session: kernelbroker.Session) -> None:
    began = time.monotonic()
    result = await session.run("%pip install no-such-thing")
    assert time.monotonic() - began < 30  # pip itself would try for longer
    assert "network" in result.text


@promise
async def figures_are_shown(session: kernelbroker.Session) -> None:
    code = "import matplotlib; matplotlib.use('Agg')\nfrom matplotlib import pyplot\n"
    assert len((await session.run(f"{code}pyplot.plot([1, 2]); pyplot.show()")).images) == 1


@promise
async def arguments_are_empty(session: kernelbroker.Session) -> None:
    result = await session.run("import argparse; argparse.ArgumentParser().parse_args()")
    assert result.success and result.text == "Namespace()"


@promise
async def output_is_in_order(session: kernelbroker.Session) -> None:
    code = "import os\nfor i in range(20): print('a', i); os.write(1, b'b\\n'); os.system('echo c')"
    expected = "".join(f"a {number}\nb\nc\n" for number in range(20))
    assert (await session.run(f"{code};")).stdout == expected


@promise
async def streams_come_back(session: kernelbroker.Session) -> None:
    result = await session.run("import io, sys; sys.stdout = io.StringIO(); print('lost')")
    assert "sys.stdout" in result.text
    assert (await session.run("print('here')")).stdout == "here\n"


@promise
async def forks_end(session: kernelbroker.Session) -> None:
    await session.run("import os, sys, time\nif os.fork() == 0: sys.exit(0)")
    await session.run("child = os.fork()\nif child == 0: time.sleep(0.2)")
    result = await session.run("time.sleep(0.5)\nprint('one kernel')")
    assert result.stdout == "one kernel\n"


@promise
async def pictures_open(session: kernelbroker.Session) -> None:
    code = "from PIL import Image; Image.new('RGB', (9, 9)).show()"
    assert len((await session.run(code)).images) == 1


@promise
async def limits_are_seen(session: kernelbroker.Session) -> None:
    code = "import os, psutil\nseen = [os.cpu_count(), psutil.virtual_memory().total]"
    assert (await session.run(code, result_var="seen")).return_value == [1, 1024 * MIB]


@promise
async def tables_survive(session: kernelbroker.Session) -> None:
    await session.run("import os, socket, pandas\ndf = pandas.DataFrame({'a': [1, 2]})")
    await session.run("os.environ.clear()\nsocket.socket = None")
    assert (await session.table("df")).shape == (2, 1)


@promise
async def columns_without_names(session: kernelbroker.Session) -> None:
    await session.run("import pandas\ndf = pandas.DataFrame([[1, 2]], columns=['a', None])")
    assert (await session.table("df")).shape == (1, 2)


@promise
async def text_is_readable(session: kernelbroker.Session) -> None:
    await session.run("from IPython.display import HTML, Markdown")
    assert (await session.run("Markdown('# Sales\\n\\n- one')")).text == "# Sales\n\n- one"
    table = "<table><tr><th>a<th>b<tr><td>1<td>2</table>"
    assert (await session.run(f"HTML({table!r})")).text == "a | b\n1 | 2"


@promise
async def recursion_is_quick(session: kernelbroker.Session) -> None:
    began = time.monotonic()
    result = await session.run("def f(): return f()\nf()")
    assert result.error is not None and result.error.startswith("RecursionError")
    assert time.monotonic() - began < 30
    assert len(result.text) < 5_000


@promise
async def no_network_is_told(session: kernelbroker.Session) -> None:
    code = "import urllib.request\nurllib.request.urlopen('http://example.org')"
    text = (await session.run(code)).text
    assert "this sandbox has no network" in text and len(text) < 3_000


@pytest.mark.parametrize("name", PROMISES)
async def test_a_promise_is_kept(session: kernelbroker.Session, name: str) -> None:
    await PROMISES[name](session)


def test_the_page_has_all_of_them() -> None:
    """Each row of the table has a cell here, and each cell a row."""
    page = (ROOT / "docs" / "notebooks.md").read_text()
    table = page.partition("## Where a notebook misleads")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == list(PROMISES)
