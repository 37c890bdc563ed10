"""The code interpreter, through E2B's own clients."""

from __future__ import annotations

import json
from urllib.request import Request, urlopen

from tests.e2b.support import E2bClients
from tests.e2e.support import BrokerProcess, whole_system

pytestmark = whole_system


def test_cells_share_a_state(e2b: E2bClients) -> None:
    """Cells share their state; each gives its output, its value, its error and its number."""
    first, second, third = e2b.python("""
        from e2b_code_interpreter import Sandbox
        def run(code):
            ran = sandbox.run_code(code)
            error = ran.error and [ran.error.name, ran.error.value]
            return [ran.logs.stdout, ran.logs.stderr, ran.text, ran.execution_count, error]
        with Sandbox.create() as sandbox:
            report(
                run("import sys; x = 20; print('out'); print('err', file=sys.stderr); x + 1"),
                run("y = x\\n1/0"),
                run("y"),
            )
    """)
    assert first == [["out\n"], ["err\n"], "21", 1, None]
    assert second == [[], [], None, 2, ["ZeroDivisionError", "division by zero"]]
    assert third == [[], [], "20", 3, None], (
        "what a failed cell has created stays, as in a notebook"
    )


def test_executions_say_that_they_came_through_e2b(
    e2b: E2bClients, e2b_broker: BrokerProcess
) -> None:
    """The native API names the client of an execution; the access token of a sandbox is its opener's."""
    listed = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.run_code("1")
            report(sandbox.sandbox_id)
    """)
    request = Request(
        f"{e2b_broker.url}/api/v1/sessions/{listed}/executions",
        headers={"Authorization": f"Bearer {e2b_broker.token}"},
    )
    with urlopen(request) as answer:
        executions = json.load(answer)["executions"]
    assert {(each["client"], each["user"]) for each in executions} == {("e2b", "default")}


def test_a_killed_sandbox_is_gone(e2b: E2bClients) -> None:
    """`kill` ends a sandbox: what follows is an error of E2B's own kind."""
    killed, again, running, run, info = e2b.python("""
        from e2b_code_interpreter import Sandbox
        sandbox = Sandbox.create()
        report(
            sandbox.kill(), sandbox.kill(), sandbox.is_running(),
            kind_of(sandbox.run_code, "1"), kind_of(sandbox.get_info),
        )
    """)
    assert (killed, again, running) == (True, False, False)
    assert run[0] == "TimeoutException" and "closed" in run[1]
    assert info[0] == "SandboxNotFoundException"


def test_what_runs_in_a_sandbox_that_is_killed(e2b: E2bClients) -> None:
    """A cell and a command end with E2B's own errors, in its own words."""
    errors = e2b.python("""
        from e2b_code_interpreter import Sandbox
        found = []
        for name in ("cell", "command", "background"):
            sandbox = Sandbox.create()
            kill = lambda _: sandbox.kill()  # as soon as it runs
            try:
                if name == "cell":
                    code = "import time; print(1, flush=True); time.sleep(60)"
                    found.append(repr(sandbox.run_code(code, on_stdout=kill)))
                elif name == "command":
                    found.append(repr(sandbox.commands.run("echo 1; sleep 60", on_stdout=kill)))
                else:
                    command = sandbox.commands.run("sleep 60", background=True)
                    sandbox.kill()
                    found.append(repr(command.wait()))
            except Exception as error:
                found.append([type(error).__name__, str(error)])
        report(*found)
    """)
    assert len(errors) == 3
    for name, text in errors:
        assert name in ("TimeoutException", "SandboxNotRunningException"), errors
        assert "killed" in text, errors


def test_contexts_have_their_own_variables(e2b: E2bClients) -> None:
    """Contexts are listed, have their own variables, language and directory, and end and restart alone."""
    made, seen, listed, restarted, removed = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            sandbox.run_code("x = 1")
            other = sandbox.create_code_context(cwd="/tmp")
            script = sandbox.create_code_context(language="js")
            shell = sandbox.create_code_context(language="bash")
            made = [[each.language, each.cwd] for each in (other, script, shell)]
            seen = [
                sandbox.run_code("import os; x = 2; os.getcwd()", context=other).text,
                sandbox.run_code("let x = 3; x", context=script).text,
                "".join(sandbox.run_code("pwd", context=shell).logs.stdout),
                sandbox.run_code("x").text,
                sandbox.run_code("x", context=other).text,
            ]
            ids = [each.id for each in sandbox.list_code_contexts()]
            listed = ids[2:] == [each.id for each in (other, script, shell)]
            first = sandbox.list_code_contexts()[1]
            sandbox.run_code("let y = 4", language="javascript")
            first = [first.language, sandbox.run_code("y", context=first).text,
                     kind_of(sandbox.restart_code_context, first)]
            sandbox.restart_code_context(other)
            restarted = [sandbox.run_code("x", context=other).error.name, sandbox.run_code("x").text]
            sandbox.remove_code_context(other)
            removed = [
                kind_of(sandbox.run_code, "x", context=other),
                kind_of(sandbox.create_code_context, language="cobol"),
                len(sandbox.list_code_contexts()),
            ]
            report(made, seen, [listed, ids[0], first], restarted, removed)
    """)
    assert made == [["python", "/tmp"], ["javascript", "/home/user"], ["bash", "/home/user"]]
    assert seen == ["/tmp", "3", "/home/user\n", "1", "2"]
    assert listed[:2] == [True, "default"]
    assert listed[2][:2] == ["javascript", "4"]
    assert "part of context default" in listed[2][2][1]
    assert restarted == ["NameError", "1"]
    assert removed[0][0] == "NotFoundException"
    assert removed[1][0] == "SandboxException" and "cobol" in removed[1][1]
    assert removed[2] == 4


def test_pictures_and_tables_come_as_results(e2b: E2bClients) -> None:
    """A figure is a PNG, a table is HTML and text, and `display` is no main result."""
    figure, table, shown = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            figure = sandbox.run_code("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
            table = sandbox.run_code("import pandas as pd; pd.DataFrame({'a': [1]})")
            shown = sandbox.run_code("from IPython.display import *; display(Markdown('*m*')); 'end'")
            report(*[
                [[sorted(each.formats()), each.is_main_result] for each in ran.results]
                for ran in (figure, table, shown)
            ])
    """)
    assert all("png" in forms and not is_main for forms, is_main in figure if "png" in forms)
    assert any("png" in forms for forms, _ in figure)
    ((forms, is_main),) = table
    assert is_main and {"html", "text"} <= set(forms)
    assert [is_main for _, is_main in shown] == [False, True]
    assert "markdown" in shown[0][0]


def test_values_come_as_data(e2b: E2bClients) -> None:
    """A table has its columns, a list and a dictionary are JSON, and a picture of Pillow is a PNG."""
    table, values, large, picture, chart, known = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            run = lambda code: sandbox.run_code(code).results[0]
            table = run("import pandas as pd; pd.DataFrame({'a': [1, None], 'd': "
                        "pd.to_datetime(['2024-01-02', None]), 3: ['x', 'y']})").data
            values = [run(code).json for code in
                      ("{'a': [1, 2.5, None]}", "[1, 'x']", "{'x': {1}}", "(1, 2)", "'text'")]
            large = run("list(range(10**6))").json
            picture = run("from PIL import Image; Image.new('RGB', (3, 3))").png
            chart = sandbox.run_code("import matplotlib.pyplot as plt; plt.imshow([[1, 2]]); "
                                     "plt.title('T'); plt.show()").results[0].chart
            known = run("import os; [os.environ[each] for each in "
                        "('E2B_SANDBOX', 'E2B_SANDBOX_ID', 'E2B_TEMPLATE_ID')]").json
            report(table, values, large, picture[:8], [chart.type.value, chart.title],
                   [known[0], known[1] == sandbox.sandbox_id, known[2]])
    """)
    assert table == {"a": [1.0, None], "d": ["2024-01-02T00:00:00", None], "3": ["x", "y"]}
    assert values == [{"a": [1, 2.5, None]}, [1, "x"], {"x": "{1}"}, None, None]
    assert large is None
    assert picture == "iVBORw0K"
    assert chart == ["unknown", "T"]
    assert known == ["true", True, "code-interpreter-v1"]


def test_a_cell_that_takes_too_long(e2b: E2bClients) -> None:
    """At the client's timeout its error comes, the cell is interrupted, and the next one runs."""
    error, text = e2b.python("""
        from e2b_code_interpreter import Sandbox
        with Sandbox.create() as sandbox:
            loop = "import time\\nfor i in range(600): time.sleep(.1)"
            error = kind_of(sandbox.run_code, loop, timeout=1)
            report(error, sandbox.run_code("i < 500").text)
    """)
    assert error[0] == "TimeoutException"
    assert text == "True"


def test_a_figure_has_its_data(e2b: E2bClients) -> None:
    """A figure of matplotlib comes with its data, in the form that E2B's client reads."""
    kind, title, label, points = e2b.python("""
        from e2b_code_interpreter import Sandbox
        code = (
            "import matplotlib.pyplot as plt\\n"
            "plt.plot([1, 2, 3], [4, 5, 6], label='mine')\\n"
            "plt.title('Title'); plt.xlabel('X'); plt.show()"
        )
        with Sandbox.create() as sandbox:
            chart = next(each.chart for each in sandbox.run_code(code).results if each.png)
            (line,) = chart.elements
            report(chart.type.value, [chart.title, chart.x_label], line.label, line.points)
    """)
    assert (kind, title, label) == ("line", ["Title", "X"], "mine")
    assert [[float(x), float(y)] for x, y in points] == [[1, 4], [2, 5], [3, 6]]
