"""Checkpoints and forks, over the SDK, with real sandboxes."""

from __future__ import annotations

from collections.abc import Iterator

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, call, running_broker, whole_system

pytestmark = whole_system

SETUP = """
import os, threading
from collections import Counter as C
import numpy as np, pandas as pd

rate = 2

def convert(n):
    "Reads a variable of the session."
    return n * rate

class Account:
    def __init__(self, owner): self.owner, self.lines = owner, []
    def add(self, n): self.lines.append(convert(n)); return self

accounts = {"ada": Account("ada").add(3)}
ada = accounts["ada"]
df = pd.DataFrame({"n": range(5), "city": ["Zürich", None, "a", "b", "c"]}).set_index("n")
big = np.arange(1_000_000)
lines = (line for line in "ab")
lock = threading.Lock()
os.makedirs("work", exist_ok=True)
os.chdir("work")
open("notes.txt", "w").write("draft")
open("../tools.py", "w").write("def helper(): return 'from a file'")
import sys; sys.path.insert(0, "/data")
from tools import helper
"""
USE = """
assert convert(5) == 10 and ada is accounts["ada"] and ada.lines == [6]
assert isinstance(ada, Account) and ada.add(1).lines == [6, 2]
assert df.index.name == "n" and df.loc[0, "city"] == "Zürich" and int(big[-1]) == 999_999
rate = 5
assert convert(5) == 25 and C("aa")["a"] == 2
assert os.getcwd() == "/data/work" and open("notes.txt").read() == "draft"
assert helper() == "from a file"
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One with a second template, whose pool is filled on demand."""
    other = {"TEMPLATES__OTHER__MEMORY": "1GiB", "TEMPLATES__OTHER__POOL__MIN_SIZE": 0}
    with running_broker(POOL__MIN_SIZE=2, POOL__MAX_SIZE=6, **other) as broker:
        yield broker


async def succeed(session: kernelbroker.Session, code: str) -> str:
    result = await session.run(code)
    assert result.success, result.error
    return result.stdout


async def test_a_session_goes_on_from_its_checkpoint(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """Variables, classes, functions, directory and files are there: in another session, another template,
    and after the broker was killed; what is missing is listed with its reason."""
    async with client.session(env={"API_KEY": "not-saved"}) as session:
        await succeed(session, SETUP)
        saved = await session.checkpoint("prepared")
        assert {each.name for each in saved.missing} == {"lines", "lock"}
        assert "API_KEY" in saved.env and not saved.complete
        forms = {each.name: each.form for each in saved.variables}
        assert (forms["pd"], forms["big"], forms["df"]) == ("module", "npy", "pickle")
        assert saved.size > 8_000_000
    broker.kill()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as again:
        listed = await again.checkpoints()
        assert [each.name for each in listed] == ["prepared"]
        for template in ("default", "other"):
            async with again.session(from_checkpoint="prepared", template=template) as later:
                assert later.info is not None
                missing = {each.name: each.reason for each in later.info.not_restored}
                assert set(missing) == {"lines", "lock", "$API_KEY"}
                assert "generator" in missing["lines"]
                await succeed(later, USE)
                names = [each.path for each in await later.files.list(recursive=True)]
                assert names == ["tools.py", "work", "work/notes.txt"]
        await again.delete_checkpoint("prepared")
        with pytest.raises(kernelbroker.NotFound, match="no checkpoint prepared"):
            await again.session(from_checkpoint="prepared").open()
        with pytest.raises(kernelbroker.NotFound):
            await again.checkpoint("prepared")


async def test_files_that_cannot_be_read_are_named(client: kernelbroker.Broker) -> None:
    """A checkpoint says which files and directories it lacks, and is not complete."""
    code = "import os\nos.mkdir('shut')\nopen('shut/in', 'w')\nopen('own', 'w')\nopen('out', 'w')\n"
    async with client.session() as session:
        await session.run(f"{code}os.chmod('shut', 0); os.chmod('own', 0)")
        saved = await session.checkpoint("lacking")
        await session.run("os.chmod('shut', 0o700)")
    await client.delete_checkpoint("lacking")
    assert {each.name for each in saved.missing} == {"file shut", "file own"}
    assert not saved.complete


async def test_a_fork_goes_its_own_way(client: kernelbroker.Broker) -> None:
    """After a fork, changes of variables and files in one session are not seen in the other."""
    async with client.session(env={"KEY": "k"}, secrets={"PASS": "hidden-word"}) as session:
        await succeed(session, "n = [1]\nopen('f', 'w').write('one')")
        async with await session.fork() as fork:
            assert fork.session_id != session.session_id
            assert fork.info is not None and fork.info.not_restored == []
            await succeed(fork, "n.append(2)\nopen('f', 'w').write('two')")
            check = (
                "import os\nprint(n, open('f').read(), os.environ['KEY'], len(os.environ['PASS']))"
            )
            assert await succeed(fork, check) == "[1, 2] two k 11\n"
            assert await succeed(session, check) == "[1] one k 11\n"
        await succeed(session, "n")
        assert await client.checkpoints() == []
        with pytest.raises(kernelbroker.Conflict, match="choose another session_id"):
            await session.fork(session.session_id)


async def test_cells_that_wait_are_saved_in_order(client: kernelbroker.Broker) -> None:
    """A checkpoint has what the cells before it made, and a cell that fails changes nothing."""
    async with client.session() as session:
        await succeed(session, "x = 1")
        assert not (await session.run("y = 1\n1/0")).success
        saved = await session.checkpoint("ordered")
        assert [each.name for each in saved.variables] == ["x"]
        await succeed(session, "x = 2")
        saved = await session.checkpoint("ordered")  # replaces it
        async with client.session(from_checkpoint="ordered") as later:
            assert await succeed(later, "print(x)") == "2\n"
    await client.delete_checkpoint("ordered")


async def test_a_kernel_that_ends_while_it_is_saved(client: kernelbroker.Broker) -> None:
    """If pickling ends the kernel, the caller gets an error, and the earlier checkpoint is kept."""
    async with client.session() as session:
        await succeed(session, "kept = 1")
        await session.checkpoint("kept")
        deadly = "class D:\n    def __reduce__(self): __import__('os')._exit(1)\nd = D()"
        await succeed(session, deadly)
        with pytest.raises(kernelbroker.RequestError):
            await session.checkpoint("kept")
        async with client.session(from_checkpoint="kept") as later:
            assert await succeed(later, "print(kept)") == "1\n"
    await client.delete_checkpoint("kept")


def test_without_await(broker: BrokerProcess) -> None:
    """The synchronous client has the same calls."""
    with kernelbroker.sync.connect(broker.url, broker.token) as client:
        with client.session() as session:
            session.run("x = 40")
            assert session.checkpoint("sync").complete
            with session.fork() as fork:
                assert fork.run("x + 2").text == "42"
        with client.session(from_checkpoint="sync") as later:
            assert later.run("x").text == "40"
        assert client.checkpoint("sync").variables[0].name == "x"
        assert [each.name for each in client.checkpoints()] == ["sync"]
        client.delete_checkpoint("sync")


async def test_rest(broker: BrokerProcess) -> None:
    """The routes, with their statuses."""
    status, _ = await call(broker, "POST", "/api/v1/sessions", {"session_id": "rest"})
    assert status == 201
    path = "/api/v1/sessions/rest"
    await call(broker, "POST", f"{path}/exec", {"code": "x = 1"}, accept="application/json")
    status, saved = await call(broker, "POST", f"{path}/checkpoint", {"name": "by-rest"})
    assert (status, saved["name"], saved["complete"]) == (201, "by-rest", True)
    status, _ = await call(broker, "POST", f"{path}/checkpoint", {"name": "../up"})
    assert status == 400
    status, fork = await call(broker, "POST", f"{path}/fork", {"session_id": "forked"})
    assert (status, fork["session_id"], fork["from_checkpoint"]) == (201, "forked", None)
    status, answer = await call(broker, "GET", "/api/v1/checkpoints")
    assert [each["name"] for each in answer["checkpoints"]] == ["by-rest"]
    status, answer = await call(broker, "GET", "/api/v1/checkpoints/by-rest")
    assert [each["name"] for each in answer["variables"]] == ["x"]
    assert (await call(broker, "DELETE", "/api/v1/checkpoints/by-rest"))[0] == 204
    assert (await call(broker, "DELETE", "/api/v1/checkpoints/by-rest"))[0] == 404
    for name in ("rest", "forked"):
        assert (await call(broker, "DELETE", f"/api/v1/sessions/{name}"))[0] == 204
