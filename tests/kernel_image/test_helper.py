"""The helper in a real IPython kernel: summary, rollback, override and report, as messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from kernelbroker.protocol import events
from kernelbroker_kernel import contract

START = """
import sys
from kernelbroker_kernel import contract
contract.WORKSPACE = sys.argv.pop()
from kernelbroker_kernel.kernel import KernelApp
app = KernelApp.instance()
app.initialize(sys.argv[1:])
app.start()
"""


class Workspace(KernelManager):
    """Starts the kernel with a directory in the place of /data."""

    path: Path

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-c", START, "-f", "{connection_file}", str(self.path)]
        return KernelSpec(argv=argv, display_name="", language="python")


@dataclass
class Ran:
    reply: dict[str, Any]
    summaries: list[dict[str, Any]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""

    @property
    def summary(self) -> dict[str, Any]:
        (summary,) = self.summaries
        msgspec.convert(summary["variables"], list[events.Variable])
        msgspec.convert(summary["files"], list[events.FileChange])
        return summary

    @property
    def names(self) -> list[str]:
        return [variable["name"] for variable in self.summary["variables"]]


class Kernel:
    """Runs cells and gathers what they produced until the kernel is idle."""

    def __init__(self, client: BlockingKernelClient, workspace: Path) -> None:
        self._client = client
        self.workspace = workspace

    def run(self, code: str, *, silent: bool = False, metadata: Any = None, **asked: Any) -> Ran:
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        metadata = metadata if metadata is not None else {contract.METADATA_KEY: asked}
        request = self._client.session.msg("execute_request", content, metadata=metadata)
        self._client.shell_channel.send(request)
        request_id = request["header"]["msg_id"]
        ran = Ran({})
        while True:
            message = self._client.get_iopub_msg(timeout=30)
            if message["parent_header"].get("msg_id") != request_id:
                continue
            content = message["content"]
            if message["msg_type"] == "display_data":
                for mime, payload in content["data"].items():
                    if mime == contract.SUMMARY_MIME:
                        ran.summaries.append(payload)
                    elif mime == contract.REPORT_MIME:
                        ran.reports.append(payload)
            elif message["msg_type"] == "stream":
                ran.text += content["text"]
            elif content.get("execution_state") == "idle":
                break
        while True:  # replies to what `wait_for_ready` asked may still be there
            reply = self._client.get_shell_msg(timeout=30)
            if reply["parent_header"].get("msg_id") == request_id:
                ran.reply = reply["content"]
                return ran

    def configure(self, **settings: Any) -> dict[str, Any]:
        return self.run(contract.CONFIGURE_CODE, silent=True, configure=settings).reply

    def report(self, name: str, **asked: Any) -> list[dict[str, Any]]:
        ran = self.run(contract.REPORT_CODE, silent=True, report={"result_var": name, **asked})
        assert ran.reply["status"] == "ok"
        assert ran.summaries == []
        return ran.reports


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    manager = Workspace(transport="ipc")
    manager.path = tmp_path_factory.mktemp("data")
    manager.ip = str(tmp_path_factory.mktemp("sockets") / "kernel")
    manager.start_kernel(cwd=str(manager.path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=30)
        yield Kernel(client, manager.path)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture
def kernel(started: Kernel) -> Kernel:
    """The kernel, with an empty namespace."""
    started.run("%reset -f")
    return started


def test_summary(kernel: Kernel) -> None:
    """A cell's end tells its duration, the variables and the changed files, once."""
    ran = kernel.run("import json\na = 1\n_b = 2\nopen('f.txt', 'w').write('four')\ndef f(): pass")
    assert 0 < ran.summary["execution_time"] < 10
    assert ran.summary["variables"] == [
        {"name": "a", "type": "int"},
        {"name": "f", "type": "function"},
    ]
    assert ran.summary["variables_dropped"] == 0
    assert ran.summary["files"] == [{"path": "f.txt", "size": 4}]
    assert ran.summary["files_truncated"] is False


@pytest.mark.parametrize(
    "code",
    [
        "",
        "get_ipython().run_cell('a = 1'); get_ipython().run_cell('')",
        "import asyncio\nawait asyncio.sleep(0)",
        "%%capture\nprint(1)",
        "%timeit -n1 -r1 pass",
        "1/0",
        "a b",
        "%nonsense",
        "raise SystemExit",
    ],
)
def test_one_summary(kernel: Kernel, code: str) -> None:
    """Whatever the cell is, its end is told exactly once."""
    assert len(kernel.run(code).summaries) == 1


def test_silent_cells_have_none(kernel: Kernel) -> None:
    """A silent cell is not summarized."""
    assert kernel.run("silent = 1", silent=True).summaries == []


def test_max_variables(kernel: Kernel) -> None:
    """As many variables are told as asked for; the rest is counted."""
    ran = kernel.run("a = b = c = 1", max_variables=2)
    assert (ran.names, ran.summary["variables_dropped"]) == (["b", "c"], 1)
    assert kernel.run("", max_variables="2").names == ["a", "b", "c"]


def test_hostile_objects(kernel: Kernel) -> None:
    """Objects that fail at every touch, and shadowed builtins, do no harm."""
    ran = kernel.run(
        "class H:\n"
        "    def __getattribute__(self, name): raise SystemExit\n"
        "    __len__ = __repr__ = lambda self: 1/0\n"
        "h = H()\n"
        "len = type = isinstance = str = list = dict = set = None\n"
        "globals()[5] = 5"
    )
    assert ran.reply["status"] == "ok"
    assert ran.summary["variables"][:2] == [
        {"name": "H", "type": "type"},
        {"name": "h", "type": "H"},
    ]
    assert kernel.report("h") == [
        {
            "return_value": {
                "type": "H",
                "length": None,
                "preview": None,
                "repr": "<H whose repr raised ZeroDivisionError>",
            }
        }
    ]


INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    "failure",
    [
        "1/0",
        "a b",
        "await __import__('asyncio').sleep('x')",
        "raise SystemExit",
        f"{INTERRUPT}\nwhile True: pass",
        f"{INTERRUPT}\nawait __import__('asyncio').sleep(30)",
    ],
)
def test_rollback(kernel: Kernel, failure: str) -> None:
    """The names that a failed cell made are removed; those of before keep their present objects."""
    kernel.run("a = 1")
    ran = kernel.run(f"a = 2\nb = 3\nimport json\n{failure}")
    assert ran.reply["status"] == "error"
    assert ran.names == ["a"]
    assert kernel.run("json" if failure != "a b" else "b").reply["ename"] == "NameError"


def test_rollback_of_display_failure(kernel: Kernel) -> None:
    """A cell whose value cannot be shown has failed, too."""
    ran = kernel.run("class C:\n    def _repr_html_(self): 1/0\nC()")
    assert (ran.reply["status"], ran.names) == ("error", [])


def test_rollback_spares_ipythons_names(kernel: Kernel) -> None:
    """IPython's own names survive a failed cell."""
    assert kernel.run("!true\nget_ipython().run_cell('5')\n1/0").reply["status"] == "error"
    code = "assert (_exit_code, _) == (0, 5); In, Out, exit, _ih, _oh, _dh, __, ___, _i, _ii"
    assert kernel.run(code).reply.get("evalue") is None


def test_keep(kernel: Kernel) -> None:
    """With `keep`, a failed cell's names stay."""
    assert kernel.run("b = 3\n1/0", on_error="keep").names == ["b"]


def test_override(kernel: Kernel) -> None:
    """An execution's directory and variables are its own."""
    (kernel.workspace / "sub").mkdir(exist_ok=True)
    look = "import os; print(os.getcwd(), os.environ.get('KB_A'))"
    before = kernel.run(look).text
    ran = kernel.run(look, cwd="sub", env={"KB_A": "1", "KB_B": 2})
    assert ran.text == f"{kernel.workspace / 'sub'} 1\n"
    assert kernel.run(look).text == before == f"{kernel.workspace} None\n"


def test_own_chdir_stays(kernel: Kernel) -> None:
    """A directory that the cell itself enters stays, as in a notebook."""
    kernel.run("import os; os.chdir('/')")
    assert kernel.run("import os; print(os.getcwd())").text == "/\n"
    assert kernel.configure(cwd="")["status"] == "ok"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"cwd": "absent"}, "No such file or directory"),
        ({"env": {"KB=": ""}}, "environment variable 'KB='"),
    ],
)
@pytest.mark.parametrize("code", ["print(1)", "print(1)\nawait None"])
def test_refused(kernel: Kernel, code: str, asked: dict[str, Any], message: str) -> None:
    """A cell whose directory or variables cannot be had fails without being run."""
    ran = kernel.run(code, **asked)
    assert ran.text == ""
    assert (ran.reply["status"], ran.reply["ename"]) == ("error", "InvalidExecution")
    assert message in ran.reply["evalue"]
    assert len(ran.reply["traceback"]) == 1
    assert len(ran.summaries) == 1
    assert kernel.run("print(2)").text == "2\n"


def test_configure(kernel: Kernel) -> None:
    """A session's variables and directory hold for all cells, and leave no name behind."""
    assert kernel.configure(env={"KB_S": "s"}, cwd="session")["status"] == "ok"
    ran = kernel.run("import os; print(os.getcwd(), os.environ['KB_S'])")
    assert ran.text == f"{kernel.workspace / 'session'} s\n"
    assert ran.names == []
    assert kernel.configure(cwd="")["status"] == "ok"


def test_configure_refuses(kernel: Kernel) -> None:
    """Bad settings are an error reply."""
    reply = kernel.configure(env={"KB_S": 1})
    assert (reply["status"], reply["ename"]) == ("error", "ValueError")


def test_report_of_a_table(kernel: Kernel) -> None:
    """The report cell sends a table as the protocol's DataFrame."""
    kernel.run("import pandas as pd\ndf = pd.DataFrame({'a': range(20)})")
    (payload,) = kernel.report("df", preview_rows=2)
    found = msgspec.convert(payload["dataframe"], events.DataFrame)
    assert (found.shape, found.preview) == ((20, 1), [{"a": 0}, {"a": 1}])


def test_report_leaves_no_trace(kernel: Kernel) -> None:
    """The report cell makes no names and stands in no history."""
    kernel.run("x = {'a': 1}")
    look = "print(len(In), [name for name in globals() if not name.startswith('_i')])"
    before = kernel.run(look).text
    assert kernel.report("x") == [{"return_value": {"a": 1}}]
    assert kernel.report("y") == [{"return_value": None, "truncated": "no variable named 'y'"}]
    entries, _, names = before.partition(" ")
    assert kernel.run(look).text == f"{int(entries) + 1} {names}"


def test_no_report_after_a_failure(kernel: Kernel) -> None:
    """After a failed cell nothing is reported; after the next good one it is."""
    kernel.run("x = 1")
    kernel.run("1/0")
    assert kernel.report("x") == []
    kernel.run("")
    assert kernel.report("x") == [{"return_value": 1}]


def test_loading_again_changes_nothing(kernel: Kernel) -> None:
    """A user who loads the extension again still gets one summary a cell."""
    kernel.run("%reload_ext kernelbroker_kernel.helper")
    assert len(kernel.run("a = 1").summaries) == 1


KEY = contract.METADATA_KEY


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {KEY: None},
        {KEY: [1]},
        {KEY: {"env": 5, "cwd": [], "max_variables": -1, "on_error": {}}},
        {KEY: {"report": {"result_var": "a"}, "configure": {"cwd": "/"}}},
    ],
)
def test_odd_metadata(kernel: Kernel, metadata: Any) -> None:
    """Metadata of another shape, or meant for another cell, is ignored."""
    ran = kernel.run("a = 1", metadata=metadata)
    assert (ran.reply["status"], ran.names, ran.reports) == ("ok", ["a"], [])


def test_interrupted_before_it_begins(kernel: Kernel) -> None:
    """An interrupt among a cell's preparations ends the cell, not what prepares it."""
    kernel.run(
        "import os, signal\n"
        "def interrupt(_info): os.kill(os.getpid(), signal.SIGINT)\n"
        "get_ipython().events.register('pre_run_cell', interrupt)"
    )
    ran = kernel.run("never = 1", cwd="..")
    kernel.run("get_ipython().events.unregister('pre_run_cell', interrupt)", silent=True)
    assert ran.reply["ename"] == "KeyboardInterrupt"
    assert "never" not in ran.names
    assert "KeyboardInterrupt" not in ran.text
