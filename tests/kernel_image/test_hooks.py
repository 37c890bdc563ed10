"""The hooks in a real IPython kernel: summary, rollback, override and report, as messages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kernelbroker.protocol import events
from kernelbroker_kernel import contract

from tests.support.real_kernel import Kernel


def test_summary_of_a_cell(kernel: Kernel) -> None:
    """The summary has the duration, the variables and the changed files."""
    ran = kernel.run("import json\na = 1\n_b = 2\nopen('f.txt', 'w').write('four')\ndef f(): pass")
    assert 0 < ran.summary["execution_time"] < 10
    assert ran.summary["variables"] == [
        {"name": "a", "type": "int"},
        {"name": "f", "type": "function"},
    ]
    assert ran.summary["variables_dropped"] == 0
    assert ran.summary["files"] == [{"path": "f.txt", "size": 4, "created": True}]
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
def test_nested_cells_give_one_summary(kernel: Kernel, code: str) -> None:
    """Every cell has exactly one summary."""
    assert len(kernel.run(code).summaries) == 1


def test_silent_cells_have_none(kernel: Kernel) -> None:
    """A silent cell has no summary."""
    assert kernel.run("silent = 1", silent=True).summaries == []


def test_only_others_are_told_that_the_kernel_is_busy(kernel: Kernel) -> None:
    """The broker's cells begin with their input; a silent cell has none, and another client's has both."""
    assert kernel.run("1").statuses == ["idle"]
    assert kernel.run("1", silent=True).statuses == ["busy", "idle"]
    assert kernel.run("1", metadata={}).statuses == ["busy", "idle"]


def test_max_variables(kernel: Kernel) -> None:
    """The summary has as many variables as asked for, and the number of the others."""
    ran = kernel.run("a = b = c = 1", max_variables=2)
    assert (ran.names, ran.summary["variables_dropped"]) == (["b", "c"], 1)
    assert kernel.run("", max_variables="2").names == ["a", "b", "c"]


FATAL_INDEX = """
import pandas
class Fatal(pandas.DataFrame):
    @property
    def index(self):
        {action}
frame = Fatal({{'a': [1]}})
"""


@pytest.mark.parametrize(
    "action", ["raise SystemExit(9)", "raise KeyboardInterrupt", "while True: pass"]
)
def test_a_table_cannot_end_the_kernel(kernel: Kernel, action: str) -> None:
    """A table that exits, interrupts or loops when it is looked at fails no cell, nor the kernel."""
    ran = kernel.run(FATAL_INDEX.format(action=action))
    assert ran.reply["status"] == "ok" and ran.errors == []
    assert {"name": "frame", "type": "Fatal"} in ran.summary["variables"]
    kernel.run("import kernelbroker_kernel.report as _report; _report.MAX_S = 0.2")
    (report,) = kernel.report("frame")
    assert report["return_value"] is None and "could not be read" in report["truncated"]
    assert kernel.run("1 + 1").reply["status"] == "ok"


def test_a_finalizer_cannot_hold_the_kernel(kernel: Kernel) -> None:
    """A `__del__` that loops while the names of a failed cell are removed is ended."""
    ran = kernel.run(
        "class Endless:\n    def __del__(self):\n        while True: pass\nit = Endless()\n1/0"
    )
    assert ran.reply["ename"] == "ZeroDivisionError"
    assert "it" not in ran.names


def test_hostile_objects(kernel: Kernel) -> None:
    """Objects that fail at every access, and shadowed builtins, do no harm."""
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
        "raise SystemExit(1)",
        "raise KeyboardInterrupt",
    ],
)
def test_rollback_removes_new_data(kernel: Kernel, failure: str) -> None:
    """New names of a failed cell are removed; earlier names keep their current values."""
    kernel.run("a = 1")
    ran = kernel.run(f"a = 2\nb = 3\n{failure}")
    assert ran.reply["status"] == "error"
    assert ran.names == ["a"]
    assert kernel.run("b").reply["ename"] == "NameError"


@pytest.mark.parametrize("waiting", ["while True: pass", "await __import__('asyncio').sleep(30)"])
@pytest.mark.parametrize("error", ["raise", "raise ValueError", "1 / 0"])
def test_an_interrupt_removes_nothing(kernel: Kernel, waiting: str, error: str) -> None:
    """What an interrupted cell has computed stays, also if it then fails with another error."""
    block = f"try:\n    {INTERRUPT}\n    {waiting}\nexcept BaseException: {error}"
    ran = kernel.run(f"a = 2\nb = 3\n{block}")
    assert ran.reply["status"] == "error"
    assert {"a", "b"} <= set(ran.names)
    assert ran.summary["removed"] == []


def test_rollback_of_display_failure(kernel: Kernel) -> None:
    """A cell whose value cannot be shown has failed."""
    ran = kernel.run("class C:\n    def _repr_html_(self): 1/0\nC()")
    assert (ran.reply["status"], ran.names) == ("error", ["C"])


def test_rollback_spares_ipythons_names(kernel: Kernel) -> None:
    """IPython's own names survive a failed cell."""
    assert kernel.run("!true\nget_ipython().run_cell('5')\n1/0").reply["status"] == "error"
    code = "assert (_exit_code, _) == (0, 5); In, Out, exit, _ih, _oh, _dh, __, ___, _i, _ii"
    assert kernel.run(code).reply.get("evalue") is None


DEFINITIONS = {
    "imports": ("import json, os.path as p, xml.dom\nfrom math import pi as e", "json p xml e"),
    "definitions": (
        "import functools\n@functools.cache\ndef f(): x = 1\nasync def g(): pass\nclass C: y = 1",
        "functools f g C",
    ),
    "within blocks": (
        "try:\n    import json\nexcept ImportError as e:\n    json = None\n"
        "for i in [1]:\n    if i:\n        with open('/dev/null') as f:\n            def g(): pass",
        "json g",
    ),
    "a star": ("from math import *\ntau = 3\nx = pi", "pi sqrt"),
    "a name that became data": ("import json\njson = json.loads('1')\ndef x(): pass\nx = 1", ""),
    "a cell that the cell runs": ("get_ipython().run_cell('import json; a = 1')", "json"),
    "timed": ("%%time\nimport json\na = 1", "json"),
    "imports in functions": ("def f():\n    global json\n    import json\nf()", "f"),
}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_rollback_keeps_definitions(kernel: Kernel, case: str) -> None:
    """Names bound by `import`, `def` and `class` survive a failed cell; data does not."""
    code, kept = DEFINITIONS[case]
    before = "set(dir())"
    kernel.run(f"before = {before}")
    assert kernel.run(f"{code}\ndata = 1\n1/0").reply["status"] == "error"
    new = kernel.run(
        "print(*sorted(n for n in set(dir()) - before if n[0] != '_' and n != 'before'))"
    ).text.split()
    if case == "a star":
        assert {"pi", "sqrt"} <= set(new)
        assert not {"tau", "x", "data"} & set(new)
    else:
        assert new == sorted(kept.split())


def test_rollback_all(kernel: Kernel) -> None:
    """With `rollback_all`, a failed cell leaves no new name."""
    code = "import json\ndef f(): pass\nclass C: pass\nb = 3\n1/0"
    assert kernel.run(code, on_error="rollback_all").names == []
    assert kernel.run("json").reply["ename"] == "NameError"


def test_keep_removes_nothing(kernel: Kernel) -> None:
    """With `keep`, the names of a failed cell stay."""
    code = "import json\ndef f(): pass\nb = 3\n1/0"
    assert kernel.run(code, on_error="keep").names == ["f", "b"]
    assert kernel.run("json").reply["status"] == "ok"


def test_override_of_one_execution(kernel: Kernel) -> None:
    """The directory and variables of an execution do not affect the next one."""
    (kernel.workspace / "sub").mkdir(exist_ok=True)
    look = "import os; print(os.getcwd(), os.environ.get('KB_A'))"
    before = kernel.run(look).text
    ran = kernel.run(look, cwd="sub", env={"KB_A": "1", "KB_B": 2})
    assert ran.text == f"{kernel.workspace / 'sub'} 1\n"
    assert kernel.run(look).text == before == f"{kernel.workspace} None\n"


def test_chdir_of_the_cell_stays(kernel: Kernel) -> None:
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
def test_cell_with_an_invalid_directory_is_not_run(
    kernel: Kernel, code: str, asked: dict[str, Any], message: str
) -> None:
    """A cell whose directory or variables cannot be set fails without being run."""
    ran = kernel.run(code, **asked)
    assert ran.text == ""
    assert (ran.reply["status"], ran.reply["ename"]) == ("error", "InvalidExecution")
    assert message in ran.reply["evalue"]
    assert len(ran.reply["traceback"]) == 1
    assert len(ran.summaries) == 1
    assert kernel.run("print(2)").text == "2\n"


def test_configure_the_session(kernel: Kernel) -> None:
    """A session's variables and directory apply to all cells, and no name is created."""
    assert kernel.configure(env={"KB_S": "s"}, cwd="session")["status"] == "ok"
    ran = kernel.run("import os; print(os.getcwd(), os.environ['KB_S'])")
    assert ran.text == f"{kernel.workspace / 'session'} s\n"
    assert ran.names == []
    assert kernel.configure(cwd="")["status"] == "ok"


def test_configure_with_invalid_settings(kernel: Kernel) -> None:
    """Invalid settings give an error reply."""
    reply = kernel.configure(env={"KB_S": 1})
    assert (reply["status"], reply["ename"]) == ("error", "ValueError")


def test_report_of_a_table(kernel: Kernel) -> None:
    """The report cell sends a table as the protocol's DataFrame."""
    kernel.run("import pandas as pd\ndf = pd.DataFrame({'a': range(20)})")
    (payload,) = kernel.report("df", preview_rows=2)
    found = msgspec.convert(payload["dataframe"], events.DataFrame)
    assert (found.shape, found.preview) == ((20, 1), [{"a": 0}, {"a": 1}])


def test_report_leaves_no_trace(kernel: Kernel) -> None:
    """The report cell creates no name and is not in the history."""
    kernel.run("x = {'a': 1}")
    look = "print(len(In), [name for name in globals() if not name.startswith('_i')])"
    before = kernel.run(look).text
    assert kernel.report("x") == [{"return_value": {"a": 1}}]
    assert kernel.report("y") == [{"return_value": None, "truncated": "no variable named 'y'"}]
    entries, _, names = before.partition(" ")
    assert kernel.run(look).text == f"{int(entries) + 1} {names}"


def test_no_report_after_a_failure(kernel: Kernel) -> None:
    """A failed cell has no report; the next successful one has."""
    kernel.run("x = 1")
    kernel.run("1/0")
    assert kernel.report("x") == []
    kernel.run("")
    assert kernel.report("x") == [{"return_value": 1}]


def test_loading_again_changes_nothing(kernel: Kernel) -> None:
    """Loading the extension again does not repeat the summary."""
    kernel.run("%reload_ext kernelbroker_kernel.hooks")
    assert len(kernel.run("a = 1").summaries) == 1


KEY = contract.METADATA_KEY


@pytest.mark.parametrize(
    "metadata",
    [
        {KEY: None},
        {KEY: [1]},
        {KEY: {"env": 5, "cwd": [], "max_variables": -1, "on_error": {}}},
        {KEY: {"report": {"result_var": "a"}, "configure": {"cwd": "/"}}},
    ],
)
def test_invalid_metadata_is_ignored(kernel: Kernel, metadata: Any) -> None:
    """Metadata of another shape, or for another cell, is ignored."""
    ran = kernel.run("a = 1", metadata=metadata)
    assert (ran.reply["status"], ran.names, ran.reports) == ("ok", ["a"], [])


def test_a_stock_client_finds_a_stock_kernel(kernel: Kernel) -> None:
    """A cell without the broker's options gets no summary, and keeps its names after an error."""
    ran = kernel.run("left = 1; 1/0", metadata={})
    assert (ran.reply["status"], ran.summaries, ran.statuses) == ("error", [], ["busy", "idle"])
    assert kernel.run("left").reply["status"] == "ok"


def test_a_notebooks_cell_has_a_summary(kernel: Kernel) -> None:
    """A notebook's cell finds a stock kernel, but for the summary in its reply."""
    ran = kernel.run("kept = 1; 1/0", notebook=True)
    assert (ran.names, ran.statuses) == (["kept"], ["busy", "idle"])
    ran = kernel.run("exit(True)", notebook=True)
    assert ran.reply["payload"] == [{"source": "ask_exit", "keepkernel": True}]


def test_interrupted_before_it_begins(kernel: Kernel) -> None:
    """An interrupt during a cell's preparation ends the cell, and not its preparation."""
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
