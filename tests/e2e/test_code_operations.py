"""Operations on a project in a real sandbox, through the SDK and over REST."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker import (
    BadRequest,
    CodeOperationError,
    CodeOperationValidationError,
    Conflict,
    SandboxSecurityError,
    SandboxTimeoutError,
)
from kernelbroker.code import Framework

from tests.e2e.support import BrokerProcess, call, running_broker, whole_system
from tests.support.requires import requires

pytestmark = [*whole_system, requires("git", "ripgrep", "node")]

MODEL = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
"""
SERVICE = """from shop.model import Account


def transfer(source, target, amount):
    source.balance -= amount
    target.balance += amount
"""
TESTS = """from shop.model import Account
from shop.service import transfer


def test_transfer():
    a, b = Account("a", 10), Account("b")
    transfer(a, b, 4)
    assert (a.balance, b.balance) == (6, 4)
"""


def make_project(root: Path, files: dict[str, str] | None = None) -> Path:
    wanted = files or {
        "shop/__init__.py": "",
        "shop/model.py": MODEL,
        "shop/service.py": SERVICE,
        "tests/test_service.py": TESTS,
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    }
    for name, text in wanted.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def git(root: Path, *argv: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *argv]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


@pytest.fixture
async def opened(client: kernelbroker.Broker) -> AsyncIterator[kernelbroker.Session]:
    async with client.session() as session:
        yield session


async def with_files(session: kernelbroker.Session, files: dict[str, str]) -> kernelbroker.Code:
    with tempfile.TemporaryDirectory() as name:
        await session.code.upload(make_project(Path(name), files), replace=True)
    return session.code


async def test_the_story(opened: kernelbroker.Session, tmp_path: Path) -> None:
    """A project is read, edited, tested, mended and committed; its patch applies to the original."""
    project = make_project(tmp_path / "shop")
    git(project, "init", "-q", "-b", "main")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "first")
    base = git(project, "rev-parse", "HEAD").strip()
    code = opened.code
    await code.upload(project)

    read = await code.read("shop/service.py", start=4, end=5)
    assert read.result["content"].splitlines()[0] == "     4\tdef transfer(source, target, amount):"
    assert (read.result["total_lines"], read.result["truncated"]) == (6, False)
    listed = await code.list(".", glob="*.py", depth=3)
    assert [each["path"] for each in listed.result["entries"]] == [
        "shop/__init__.py",
        "shop/model.py",
        "shop/service.py",
        "tests/test_service.py",
    ]
    found = await code.search("balance [-+]= amount", glob="*.py", context=1)
    assert [(each["path"], each["line"]) for each in found.result["matches"]] == [
        ("shop/service.py", 5),
        ("shop/service.py", 6),
    ]

    await code.edit(
        "shop/model.py", old="balance = balance", new="balance = balance\n        self.log = []"
    )
    await code.edit(
        "shop/service.py", old="def transfer", new="class Broke(Exception): ...\n\n\ndef transfer"
    )
    extra = "\n\ndef test_no_debt():\n    import pytest\n    from shop.service import Broke\n"
    extra += "    with pytest.raises(Broke):\n        transfer(Account('a', 1), Account('b'), 4)\n"
    await code.edit("tests/test_service.py", TESTS + extra)
    ran = await code.run_tests()
    assert (ran.success, ran.result["passed"], ran.result["failed"]) == (False, 1, 1)
    (failure,) = ran.result["failures"]
    assert failure["test"].endswith("test_no_debt")
    assert (failure["file"], failure["line"]) == ("tests/test_service.py", 14)
    assert "DID NOT RAISE" in failure["message"]
    assert "test_no_debt" in failure["output"]
    assert "1 failed, 1 passed" in ran.stdout

    mended = "    if source.balance < amount:\n        raise Broke\n    source.balance"
    edited = await code.edit("shop/service.py", old="    source.balance", new=mended)
    assert "+        raise Broke" in edited.result["diff"]
    ran = await code.run_tests()
    assert (ran.success, ran.result["passed"], ran.result["framework"]) == (True, 2, "pytest")
    await code.git_branch("no-debt")
    committed = await code.git_commit("service: refuse debts")
    assert committed.result["branch"] == "no-debt"
    assert sorted(committed.result["files"]) == [
        "shop/model.py",
        "shop/service.py",
        "tests/test_service.py",
    ]
    assert (await code.git_status()).result["clean"] is True
    assert (await code.git_log()).result["commits"][0]["subject"] == "service: refuse debts"

    patch = tmp_path / "out.patch"
    patch.write_text((await code.git_diff(base)).result["diff"])
    git(project, "apply", str(patch))
    assert "raise Broke" in (project / "shop/service.py").read_text()


async def test_tests_are_streamed(opened: kernelbroker.Session) -> None:
    """The outcomes of tests come as `test_output` while the tests run, which are an execution."""
    tests = "import time\n\n" + "".join(f"def test_{n}(): time.sleep(0.1)\n" for n in range(8))
    code = await with_files(opened, {"test_slow.py": tests})
    events = [event async for event in code.stream("run_tests", {})]
    outputs = [event for event in events if event["type"] == "test_output"]
    assert len(outputs) > 1
    assert sum(len(event["tests"]) for event in outputs) == 8
    assert outputs[0]["passed"] < 8 == outputs[-1]["passed"]
    assert events[0]["type"] == "started"
    assert events[-1]["result"]["passed"] == 8
    assert [each.execution_id for each in await opened.executions()] == [events[-1]["execution_id"]]


EARLY = {
    "the setup of pytest": {
        "conftest.py": "import os; os._exit(0)\n",
        "test_a.py": "def test_x(): assert 0\n",
    },
    "a test of pytest": {
        "test_a.py": "import os\ndef test_a(): pass\ndef test_x(): os._exit(0)\ndef test_z(): assert 0\n"
    },
    "pytest.exit": {
        "conftest.py": "import pytest\ndef pytest_sessionstart(): pytest.exit('bye', 0)\n",
        "test_a.py": "def test_x(): assert 0\n",
    },
    "pytest.exit in a test": {
        "test_a.py": "import pytest\ndef test_x(): pytest.exit('bye', 0)\ndef test_y(): assert 0\n"
    },
    "tests that are taken away": {
        "conftest.py": "def pytest_collection_modifyitems(items): items.clear()\n",
        "test_a.py": "def test_x(): assert 0\n",
    },
    "a test of unittest": {
        "test_u.py": "import unittest, os\nclass A(unittest.TestCase):\n"
        "    def test_a(self): os._exit(0)\n    def test_b(self): self.fail()\n"
    },
    "a test of Node": {
        "package.json": '{"type": "module", "scripts": {"test": "node --test"}}',
        "a.test.js": "import test from 'node:test';\ntest('x', () => process.exit(0));\n"
        "test('y', () => { throw 1 });\n",
    },
}
"""Programs of tests that end with status 0 before they have run them all."""


@pytest.mark.parametrize("kind", EARLY)
async def test_tests_that_leave_early_are_a_failure(
    opened: kernelbroker.Session, kind: str
) -> None:
    """Without the record of its end, a run is no success, and a note says so."""
    code = await with_files(opened, EARLY[kind])
    response = await code.run_tests(framework="unittest" if "unittest" in kind else "auto")
    assert not response.success
    assert response.result["finished"] is False
    assert "ended before all tests had been run" in response.result["note"]
    assert response.error == response.result["note"]


LEFT_OUT = {
    "a conftest": {
        "conftest.py": "def pytest_collection_modifyitems(items):\n"
        "    items[:] = [each for each in items if 'slow' not in each.name]\n",
        "test_a.py": "def test_slow(): assert 0\ndef test_fast(): pass\n",
    },
    "a class of unittest": {
        "test_u.py": "import unittest\nclass A(unittest.TestCase):\n    @classmethod\n"
        "    def setUpClass(cls): raise unittest.SkipTest('not here')\n    def test_a(self): self.fail()\n"
        "    def test_b(self): self.fail()\nclass B(unittest.TestCase):\n    def test_c(self): pass\n",
    },
    "a program beside node's tests": {
        "package.json": '{"type": "module", "scripts": {"test": "node --test"}}',
        "a.test.js": "import test from 'node:test';\ntest('x', () => {});\n",
        "b.test.js": "import assert from 'node:assert';\nassert(1);\n",
    },
}


@pytest.mark.parametrize("kind", LEFT_OUT)
async def test_what_a_project_leaves_out_is_not_missing(
    opened: kernelbroker.Session, kind: str
) -> None:
    """A run without some tests, by the project's own choice, is whole."""
    code = await with_files(opened, LEFT_OUT[kind])
    response = await code.run_tests(framework="unittest" if "unittest" in kind else "auto")
    assert response.success, response
    assert response.result["finished"] is True


FAILING = {
    "helper.py": "def check(test):\n    test.assertIn(1, [2])\n",
    "test_classes.py": """import unittest
from helper import check
class T(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(1, 2)
    def test_helper(self):
        check(self)
    def test_subs(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)
    @unittest.expectedFailure
    def test_expected(self):
        self.fail()
""",
    "test_functions.py": """import json
import pytest
def test_library():
    json.loads("{")
def test_raises():
    with pytest.raises(ValueError):
        pass
@pytest.mark.xfail
def test_expected():
    assert 0
@pytest.mark.xfail
def test_unexpected():
    pass
@pytest.fixture
def broken():
    raise OSError("no")
def test_broken(broken):
    pass
def test_fine():
    pass
""",
}


@pytest.mark.parametrize("framework", ["pytest", "unittest"])
async def test_failures_are_in_the_project(
    opened: kernelbroker.Session, framework: Framework
) -> None:
    """A failure is where the project's own code stands, and tests are counted as their runner does."""
    code = await with_files(opened, FAILING)
    ran = await code.run_tests(framework=framework)
    result = ran.result
    found = {
        each["test"].replace("::", ".").rpartition(".")[2]: (each["file"], each["line"])
        for each in result["failures"]
    }
    classes = {
        "test_equal": ("test_classes.py", 5),
        "test_helper": ("helper.py", 2),
        "test_subs" if framework == "pytest" else "test_subs (number=1)": ("test_classes.py", 11),
    }
    functions = {
        "test_library": ("test_functions.py", 4),
        "test_raises": ("test_functions.py", 6),
        "test_broken": ("test_functions.py", 16),
    }
    counts = {name: result[name] for name in ("passed", "failed", "errors", "skipped", "xfailed")}
    if framework == "unittest":
        assert found == classes
        assert counts == {"passed": 0, "failed": 3, "errors": 0, "skipped": 0, "xfailed": 1}
    else:
        assert found == classes | functions
        assert counts == {"passed": 2, "failed": 5, "errors": 1, "skipped": 0, "xfailed": 2}
        assert result["xpassed"] == 1
        assert "5 failed, 2 passed, 2 xfailed, 1 xpassed, 1 error" in ran.stdout


@pytest.mark.parametrize("framework", ["pytest", "unittest"])
async def test_tests_that_hang(opened: kernelbroker.Session, framework: Framework) -> None:
    """A run that takes too long keeps what it has counted, and names the test that hangs."""
    lines = ["import time, unittest", "class T(unittest.TestCase):"]
    for name, body in (
        ("a", "pass"),
        ("b", "self.fail('\\udcff')"),
        ("c", "time.sleep(100)"),
        ("d", "pass"),
    ):
        lines.append(f"    def test_{name}(self): {body}")
    code = await with_files(opened, {"test_hangs.py": "\n".join(lines)})
    with pytest.raises(kernelbroker.SandboxTimeoutError, match="test_c") as caught:
        await code.run_tests("test_hangs.py", framework=framework, timeout=3)
    result = caught.value.result
    assert (result["passed"], result["failed"], result["finished"]) == (1, 1, False)
    assert "test_c" in result["running"]
    assert "test_b" in result["failures"][0]["test"]
    json.dumps(result, ensure_ascii=False).encode()
    assert (await opened.run("1 + 1")).success


@requires("control groups")
async def test_a_run_out_of_memory() -> None:
    """It says so, keeps what it has counted, and the session goes on; who kills itself is no such run."""
    hog = "import os\nsize = 2**20\nkept = []\nwhile True: kept.append(os.urandom(size))\n"
    tests = f"def test_a(): pass\ndef test_b():\n    exec({hog!r})\n"
    with running_broker(SANDBOX__MEMORY="400MiB", POOL__MIN_SIZE=0) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session() as session,
        ):
            code = await with_files(session, {"test_a.py": tests, "hog.py": hog})
            with pytest.raises(kernelbroker.SandboxResourceError, match="memory") as caught:
                await code.run_tests(timeout=60)
            assert caught.value.code == "out_of_memory"
            assert (caught.value.result["passed"], caught.value.result["finished"]) == (1, False)
            with pytest.raises(kernelbroker.SandboxResourceError, match="memory"):
                await code.build("python hog.py", timeout=60)
            for command in ("python hog.py", "kill -9 $$"):
                killed = await code.run(command, timeout=60)
                assert (killed.code, killed.result["exit_code"]) == ("failed", 137)
            killed = await code.build("kill -9 $$", timeout=60)
            assert (killed.code, killed.result["exit_code"]) == ("failed", 137)
            (await session.run("1 + 1")).raise_for_error()


async def test_a_risky_operation_is_confirmed() -> None:
    """A policy that asks does so by ConfirmationRequired, and the token lets the operation run, once."""
    templates = {"careful": {"policy": "confirm", "pool": {"min_size": 0}}}
    risky = "rm -rf ~/x /etc/x; echo gone"
    with running_broker(TEMPLATES=json.dumps(templates), POOL__MIN_SIZE=0) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session(template="careful") as session,
        ):
            code = await with_files(session, {"a.sh": "echo a"})
            with pytest.raises(kernelbroker.ConfirmationRequired) as asked:
                await code.run(risky)
            assert isinstance(asked.value, kernelbroker.CodeOperationError)
            assert asked.value.findings and asked.value.operation == "run"
            token = asked.value.confirmation
            assert (await code.run(risky, confirm=token)).stdout == "gone\n"
            with pytest.raises(kernelbroker.ConfirmationRequired):
                await code.run(risky, confirm=token)
            assert (await code.run("echo fine")).stdout == "fine\n"
            with pytest.raises(kernelbroker.ConfirmationRequired) as asked:
                await code.build(risky)
            assert (await code.build(risky, confirm=asked.value.confirmation)).success


async def test_git_stays_in_the_project(opened: kernelbroker.Session) -> None:
    """Neither a patch nor the project's own configuration leads git elsewhere, or to other files."""
    code = await with_files(opened, {"a.txt": "one\n"})
    for name in ("/etc/x", "/data/project/a.txt", "/a.txt"):
        for head in (f"--- /dev/null\n+++ {name}\n", f"--- {name}\n+++ {name}\t2026\n"):
            with pytest.raises(kernelbroker.SandboxSecurityError, match="from the project's root"):
                await code.apply_patch(f"{head}@@ -0,0 +1 @@\n+hi\n")
    new = "--- /dev/null\n+++ b/new.diff\n@@ -0,0 +1,3 @@\n+--- /etc/x\n++++ /etc/x\n+@@ -1 +1 @@\n"
    assert (await code.apply_patch(new)).result["files"] == ["new.diff"], "it is text of a file"
    assert (await code.run("git init -q . && git config core.worktree /etc")).success
    status = (await code.git_status()).result
    assert {each["path"] for each in status["files"]} == {"a.txt", "new.diff"}
    assert (await code.git_commit("first")).result["files"] == ["a.txt", "new.diff"]
    assert (await code.apply_patch("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+two\n")).success
    assert "+two" in (await code.git_diff()).result["diff"]


async def test_texts_of_other_forms_are_searched(
    opened: kernelbroker.Session, tmp_path: Path
) -> None:
    """A line may end with CRLF, and a text may be Latin-1: what is read is what is found."""
    (tmp_path / "crlf.txt").write_bytes(b"one\r\nneedle here\r\nthree\r\n")
    (tmp_path / "latin.py").write_bytes("# caf\xe9\nx = 'caf\xe9'\n".encode("latin-1"))
    (tmp_path / "utf.py").write_text("y = 'caf\xe9'\n")
    (tmp_path / "utf16.txt").write_text("caf\xe9\n", encoding="utf-16")
    code = opened.code
    await code.upload(tmp_path)

    async def found(pattern: str, **options: Any) -> list[tuple[str, int, str]]:
        answer = await code.search(pattern, **options)
        return [(each["path"], each["line"], each["text"]) for each in answer.result["matches"]]

    assert await found("needle here$") == [("crlf.txt", 2, "needle here")]
    everywhere = [("latin.py", 1, "# caf\xe9"), ("latin.py", 2, "x = 'caf\xe9'")]
    everywhere += [("utf.py", 1, "y = 'caf\xe9'"), ("utf16.txt", 1, "caf\xe9")]
    assert await found("caf\xe9") == await found("caf\xe9", regex=False) == everywhere
    assert await found("caf\xe9", max=2) == everywhere[:2]
    assert (await found("x = "))[0] == everywhere[1]
    assert await found("Ã") == [], "the bytes of one encoding are no text of another"


async def test_a_part_of_a_large_file_is_read(opened: kernelbroker.Session, tmp_path: Path) -> None:
    """A file that is too large to be edited is read in parts, each with what a small file's have."""
    text = "".join(f"line {number}\n" for number in range(1, 2_000_001)) + "the end"
    (tmp_path / "large.txt").write_text(text)
    code = opened.code
    await code.upload(tmp_path)
    with pytest.raises(kernelbroker.SandboxResourceError, match="read a part by `start`"):
        await code.read("large.txt")
    part = (await code.read("large.txt", 1_999_999, 2_000_005)).result
    assert part["content"].splitlines() == [
        "1999999\tline 1999999",
        "2000000\tline 2000000",
        "2000001\tthe end",
    ]
    assert (part["start"], part["end"], part["total_lines"]) == (1_999_999, 2_000_001, 2_000_001)
    assert (part["size"], part["truncated"], part["encoding"]) == (len(text), False, "utf-8")
    assert part["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert (await code.read("large.txt", 2_000_000, numbers=False)).result["content"] == (
        "line 2000000\nthe end"
    )
    many = (await code.read("large.txt", 5)).result
    assert (many["end"], many["truncated"]) == (2004, True)


async def test_long_lines_of_a_large_file(opened: kernelbroker.Session, tmp_path: Path) -> None:
    """A line is cut where the answer has no room for it; the lines behind it keep their numbers."""
    long = "é" * 10_000_000
    (tmp_path / "long.txt").write_text(f"\ufeff{long}\nshort\r\n{long}")
    code = opened.code
    await code.upload(tmp_path)
    part = (await code.read("long.txt", 1, 3)).result
    first, second, third = part["content"].split("\n")
    assert first == f"     1\t{'é' * 4000} [cut]" and third == f"     3\t{'é' * 4000} [cut]"
    assert second == "     2\tshort"
    assert (part["encoding"], part["total_lines"], part["truncated"]) == ("utf-8-sig", 3, False)
    assert (await code.read("long.txt", 2, 2, numbers=False)).result["content"] == "short\r\n"
    cut = (await code.read("long.txt", 1, 2, numbers=False)).result
    assert (cut["content"], cut["truncated"]) == ("", True)
    (tmp_path / "zeros.bin").write_bytes(bytes(20 * 2**20))
    await code.upload(tmp_path, replace=True)
    assert (await code.read("zeros.bin", 1, 2)).result["binary"] is True


async def test_all_links_that_lead_out_are_named(
    opened: kernelbroker.Session, tmp_path: Path
) -> None:
    """Whoever uploads a project learns at once which links to remove."""
    (tmp_path / "inside").symlink_to("a.txt")
    (tmp_path / "password").symlink_to("/etc/passwd")
    (tmp_path / "above").symlink_to("../../x")
    with pytest.raises(kernelbroker.BadRequest, match="the links lead out") as refused:
        await opened.code.upload(tmp_path)
    assert "above" in str(refused.value) and "password" in str(refused.value)
    assert "inside" not in str(refused.value)


async def test_a_text_is_read_as_it_is(opened: kernelbroker.Session) -> None:
    """Without numbers the content is that of the file, with its ends of lines, and can be edited."""
    text = "one\r\n\ttwo\r\nthree"
    code = await with_files(opened, {"a.txt": ""})
    await opened.files.write("project/a.txt", text.encode())
    assert (await code.read("a.txt", numbers=False)).result["content"] == text
    assert (await code.read("a.txt", 2, 2, numbers=False)).result["content"] == "\ttwo\r\n"
    assert (await code.read("a.txt", 2, 2)).result["content"] == "     2\t\ttwo"
    await code.edit("a.txt", old="\ttwo\r\n", new="")
    assert (await code.read("a.txt", numbers=False)).result["content"] == "one\r\nthree"


async def test_tests_that_are_deselected(opened: kernelbroker.Session) -> None:
    """What a project leaves out by its own settings is not missing, nor is what is skipped or xfails."""
    files = {
        "pytest.ini": "[pytest]\naddopts = -k 'not slow'\n",
        "test_a.py": "import pytest\ndef test_slow(): assert 0\ndef test_fast(): pass\n"
        "@pytest.mark.skip\ndef test_skipped(): assert 0\n@pytest.mark.xfail\ndef test_x(): assert 0\n",
    }
    code = await with_files(opened, files)
    response = await code.run_tests()
    assert response.success, response
    assert (response.result["finished"], response.result["passed"]) == (True, 1)


async def test_lone_surrogates_in_results(opened: kernelbroker.Session) -> None:
    """What is no text in UTF-8 is U+FFFD in a result, not an error."""
    tests = "def test_it():\n    print('\\ud800')\n    assert 0, '\\udcff'\n"
    code = await with_files(opened, {"test_odd.py": tests})
    result = (await code.run_tests()).result
    assert result["failed"] == 1
    assert "\ufffd" in json.dumps(result, ensure_ascii=False)
    json.dumps(result, ensure_ascii=False).encode()


async def test_unittest_and_node(opened: kernelbroker.Session) -> None:
    """Tests of unittest and of Node's runner have the same structure."""
    python = "import unittest\nclass T(unittest.TestCase):\n"
    python += "    def test_a(self): self.assertEqual(1, 2)\n    def test_b(self): pass\n"
    python += (
        "    @unittest.skip('later')\n    def test_c(self): pass\n    def test_d(self): 1 / 0\n"
    )
    node = 'const test = require("node:test"); const assert = require("node:assert");\n'
    node += 'test("good", () => {});\ntest("bad", () => assert.equal(1, 2));\n'
    node += 'test("later", {skip: true}, () => {});\n'
    code = await with_files(opened, {"test_a.py": python, "some.test.js": node})
    ran = await code.run_tests(framework="unittest")
    counts = {name: ran.result[name] for name in ("passed", "failed", "errors", "skipped")}
    assert counts == {"passed": 1, "failed": 1, "errors": 1, "skipped": 1}
    failures = {each["test"].rpartition(".")[2]: each for each in ran.result["failures"]}
    assert (failures["test_a"]["file"], failures["test_a"]["line"]) == ("test_a.py", 3)
    assert "ZeroDivisionError" in failures["test_d"]["message"]
    ran = await code.run_tests("some.test.js")
    counts = {name: ran.result[name] for name in ("framework", "passed", "failed", "skipped")}
    assert counts == {"framework": "node", "passed": 1, "failed": 1, "skipped": 1}
    assert (ran.result["failures"][0]["test"], ran.result["failures"][0]["file"]) == (
        "bad",
        "some.test.js",
    )


async def test_commands_and_builds(opened: kernelbroker.Session) -> None:
    """A command runs in the project; a failed one is an answer, and a slow one an error."""
    code = await with_files(opened, {"Makefile": "all:\n\t@echo built > out.txt\n"})
    ran = await code.run('echo "$PROJECT_PATH $SANDBOX_ID"; pwd; echo oops >&2; exit 3')
    assert (ran.success, ran.code, ran.result["exit_code"]) == (False, "failed", 3)
    path, sandbox = ran.stdout.splitlines()[0].split()
    assert path == "/workspace/project"
    assert sandbox
    assert ran.stderr == "oops\n"
    assert (await code.build()).result == {"command": "make", "exit_code": 0}
    assert (await code.read("out.txt")).result["content"].endswith("built")
    with pytest.raises(SandboxTimeoutError) as caught:
        await code.run("sleep 60", timeout=1)
    assert (caught.value.sandbox_id, caught.value.operation) == (opened.session_id, "run")
    assert (await code.run("true")).success


async def test_edits_are_exact(opened: kernelbroker.Session) -> None:
    """An edit that does not match, or of a file that has changed, changes nothing and says why."""
    code = await with_files(opened, {"a.txt": "one\ntwo\ntwo\n", "crlf.txt": "x\r\ny\r\n"})
    with pytest.raises(CodeOperationError, match=r"occurs 2 times, not 1 \(lines 2, 3\)"):
        await code.edit("a.txt", old="two", new="2")
    with pytest.raises(CodeOperationError, match="nearest text:\n     1\tone"):
        await code.edit("a.txt", old="onne", new="1")
    await code.edit("a.txt", old="two", new="2", count=2)
    await opened.run("open('/data/project/a.txt', 'a').write('by a cell')")
    with pytest.raises(CodeOperationError, match="has changed since it was read") as caught:
        await code.edit("a.txt", "mine")
    assert caught.value.code == "stale"
    await code.read("a.txt")
    await code.edit("a.txt", "mine")
    await code.edit("crlf.txt", old="x\ny", new="x\nz")
    assert await opened.files.read("project/crlf.txt") == b"x\r\nz\r\n"
    with pytest.raises(
        CodeOperationError, match="does not apply, and nothing was changed"
    ) as caught:
        await code.apply_patch("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-other\n+text\n")
    assert caught.value.code == "stale"
    applied = await code.apply_patch(
        "--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-mine\n\\ No newline at end of file\n+text\n"
    )
    assert applied.result["files"] == ["a.txt"]
    assert await opened.files.read("project/a.txt") == b"text\n"


async def test_binaries_and_encodings(opened: kernelbroker.Session) -> None:
    """A binary is told as such, and an edit keeps the encoding and the permissions of a file."""
    code = await with_files(opened, {"a.sh": "x\n"})
    await opened.files.write("project/b.bin", b"\0\1\2")
    await opened.files.write("project/l.txt", "für\n".encode("latin-1"))
    await opened.run("import os; os.chmod('/data/project/a.sh', 0o750)")
    binary = await code.read("b.bin")
    assert (binary.result["binary"], binary.result["content"], binary.result["size"]) == (
        True,
        None,
        3,
    )
    assert (await code.read("l.txt")).result["encoding"] == "latin-1"
    await code.edit("l.txt", old="für", new="öl")
    assert await opened.files.read("project/l.txt") == "öl\n".encode("latin-1")
    await code.edit("a.sh", "y\n")
    assert (await code.run("stat -c %a a.sh")).stdout == "750\n"


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "/sys/x",
        "/proc/self/environ",
        "~/.ssh/id_rsa",
        "/data/x",
        "link",
        "dir/passwd",
    ],
)
async def test_paths_outside_are_refused(session: kernelbroker.Session, path: str) -> None:
    """Paths that leave the project, and links, lead nowhere, with the reason."""
    code = await with_files(session, {"a.txt": "a"})
    await session.run(
        "import os; os.chdir('/data/project'); os.symlink('/etc/passwd', 'link'); os.symlink('/etc', 'dir')"
    )
    with pytest.raises(SandboxSecurityError, match=r"system|outside|'\.\.'|home|link"):
        await code.read(path)
    with pytest.raises((SandboxSecurityError, CodeOperationError)):
        await code.edit(path.replace("link", "dir/link"), "mine")
    with pytest.raises(SandboxSecurityError):
        await code.search("root", path)


async def test_invalid_parameters(session: kernelbroker.Session, broker: BrokerProcess) -> None:
    """Unknown operations and parameters of a wrong kind are refused with a clear error."""
    code = await with_files(session, {"a.txt": "a"})
    for operation, parameters, message in [
        ("read", {}, "'path' is missing"),
        ("read", {"path": 1}, "path must be a text"),
        ("read", {"path": "a.txt", "start": 0}, "line numbers"),
        ("read", {"path": "a.txt", "x": 1}, "no parameter 'x'"),
        ("search", {"pattern": "("}, "regex parse error"),
        ("list", {"depth": 1000}, "depth"),
        ("edit", {"path": "a.txt"}, "either content, or old and new"),
        ("run", {}, "command"),
        ("run_tests", {"framework": "x"}, "framework is"),
        ("run_tests", {"target": "--collect-only"}, "not an option"),
        ("run", {"command": "true", "timeout": "soon"}, "timeout"),
    ]:
        with pytest.raises(CodeOperationValidationError, match=message):
            await code.execute(operation, parameters)
    with pytest.raises(CodeOperationError, match="there is no operation") as caught:
        await code.execute("unpack", {"archive": "x"})
    assert caught.value.code == "not_found"
    with pytest.raises(CodeOperationError, match="no git repository"):
        await code.git_status()


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for entry, content in entries:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return file.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


async def test_hostile_archives(opened: kernelbroker.Session, tmp_path: Path) -> None:
    """An archive with an entry that would leave the project is refused, and changes nothing."""
    code = await with_files(opened, {"kept.txt": "kept"})
    hostile = [
        archive((entry("../evil"), b"x")),
        archive((entry("/data/evil"), b"x")),
        archive((entry("l", tarfile.SYMTYPE, "/etc"), b"")),
        archive((entry("a/l", tarfile.SYMTYPE, "../../evil"), b"")),
        archive((entry("h", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        archive((entry("fifo", tarfile.FIFOTYPE), b"")),
        b"no archive at all",
        archive((entry("a"), b"x" * 100_000))[:-20],
    ]
    for number, data in enumerate(hostile):
        file = tmp_path / f"{number}.tar"
        file.write_bytes(data)
        with pytest.raises(BadRequest):
            await code.upload(file, replace=True)
    with pytest.raises(Conflict, match="replace=true"):
        await code.upload(tmp_path / "0.tar")
    ran = await opened.run("import os; sorted(os.listdir('/data')), os.listdir('/data/project')")
    assert ran.text.strip() == "(['project'], ['kept.txt'])"
    good = tmp_path / "good.tar"
    good.write_bytes(archive((entry("b", tarfile.SYMTYPE, "a"), b""), (entry("a"), b"x")))
    await code.upload(good, replace=True)
    assert (await code.run("readlink b; ls")).stdout.split() == ["a", "a", "b"]


async def test_hostile_git(opened: kernelbroker.Session) -> None:
    """Hooks, monitors, filters and submodules of a project run nothing on a look or a commit."""
    code = await with_files(
        opened,
        {
            "a.txt": "a\n",
            "with\nnewline.txt": "b\n",
            ".gitattributes": "*.txt filter=evil diff=evil\n",
        },
    )
    await code.run(
        "git init -q; for h in pre-commit post-commit post-checkout post-index-change commit-msg;"
        " do printf '#!/bin/sh\\ntouch /data/pwned-hook\\n' > .git/hooks/$h; chmod +x .git/hooks/$h; done;"
        " git config core.fsmonitor 'touch /data/pwned-monitor';"
        " git config filter.evil.clean 'touch /data/pwned-clean; cat';"
        " git config filter.evil.required true;"
        " git config diff.evil.textconv 'touch /data/pwned-textconv; cat';"
        " git config diff.evil.command 'touch /data/pwned-diff';"
        " git config core.pager 'touch /data/pwned-pager';"
        " git config core.sshCommand 'touch /data/pwned-ssh';"
        " printf '[submodule \"s\"]\\n path = s\\n url = ext::sh -c touch% /data/pwned-u\\n' > .gitmodules"
    )
    committed = await code.git_commit("all of it")
    assert "with\nnewline.txt" in committed.result["files"]
    await code.edit("a.txt", "changed\n")
    status = (await code.git_status()).result
    assert [each["path"] for each in status["files"]] == ["a.txt"]
    assert "+changed" in (await code.git_diff()).result["diff"]
    await code.git_branch("other")
    await code.git_log()
    listed = await opened.run(
        "import os; [n for n in os.listdir('/data') if n.startswith('pwned')]"
    )
    assert listed.text.strip() == "[]"
    found = await code.search("^b$")
    assert [each["path"] for each in found.result["matches"]] == ["with\nnewline.txt"]
    with pytest.raises(SandboxSecurityError, match="git's own files"):
        await code.edit(".git/hooks/pre-commit", "x")


async def test_tests_that_kill_their_parent(opened: kernelbroker.Session) -> None:
    """A conftest.py that kills its parent fails the tests, and neither the kernel nor its variables."""
    await opened.run("kept = 42")
    code = await with_files(
        opened,
        {
            "conftest.py": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
            "test_a.py": "def test_a(): pass\n",
        },
    )
    try:
        ran = await code.run_tests()
        assert not ran.success
    except CodeOperationError as exc:
        assert exc.code == "failed"
    assert (await opened.run("kept")).text.strip() == "42"


async def test_gigabytes_of_output(opened: kernelbroker.Session) -> None:
    """Output without end is cut, and the session goes on."""
    code = await with_files(opened, {"a.txt": "a"})
    ran = await code.run("head -c 300000000 /dev/zero | tr '\\0' x; exit 7", timeout=60)
    assert (ran.code, ran.result["exit_code"]) == ("failed", 7)
    assert len(ran.stdout) < 50_000_000
    assert (await code.read("a.txt")).success


async def test_reading_beside_a_cell(opened: kernelbroker.Session) -> None:
    """A file is read and edited while a cell runs."""
    code = await with_files(opened, {"a.txt": "a"})
    async for event in opened.stream(
        "import time\nprint('runs', flush=True)\ntime.sleep(600)", on_disconnect="interrupt"
    ):
        if isinstance(event, kernelbroker.events.Stdout):
            assert (await code.edit("a.txt", "b")).success
            assert (await code.read("a.txt")).result["content"].endswith("b")
            await opened.interrupt()
    assert isinstance(event, kernelbroker.events.Result)
    assert event.error_detail is not None


async def test_rest(session: kernelbroker.Session, broker: BrokerProcess) -> None:
    """Over REST an operation answers with one JSON object, or with events."""
    await with_files(session, {"a.txt": "a"})
    path = f"/api/v1/sessions/{session.session_id}/operations"
    status, answer = await call(broker, "POST", f"{path}/read", {"path": "a.txt"})
    assert (status, answer["success"], answer["result"]["total_lines"]) == (200, True, 1)
    status, answer = await call(broker, "POST", f"{path}/read", {"path": "/etc/passwd"})
    assert (status, answer["success"], answer["code"]) == (200, False, "security")
    status, answer = await call(broker, "POST", f"{path}/run", {"command": "echo hi"})
    assert (status, answer["stdout"], answer["result"]["exit_code"]) == (200, "hi\n", 0)
    status, answer = await call(broker, "POST", f"{path}/nonsense", {})
    assert (status, answer["error"]["code"]) == (404, "not_found")
    status, answer = await call(
        broker, "POST", "/api/v1/sessions/nobodys/operations/read", {"path": "a"}
    )
    assert status == 404


async def test_audit(client: kernelbroker.Broker) -> None:
    """See tests/telemetry; here a refused file access reaches the caller with its session and operation."""
    async with client.session() as session:
        await with_files(session, {"a.txt": "a"})
        with pytest.raises(SandboxSecurityError) as caught:
            await session.code.read("/etc/shadow")
        assert (caught.value.sandbox_id, caught.value.operation) == (session.session_id, "read")


def test_sync(broker: BrokerProcess, tmp_path: Path) -> None:
    """The client without `await` has the same operations."""
    with kernelbroker.sync.connect(broker.url, broker.token) as client, client.session() as session:
        session.code.upload(make_project(tmp_path))
        assert session.code.run_tests().result["passed"] == 1
        assert session.code.search("Account").result["matches"]
        assert [e["type"] for e in session.code.stream("run", {"command": "echo a"})][
            -1
        ] == "result"
