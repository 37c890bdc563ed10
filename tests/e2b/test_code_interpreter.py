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
    """The native API names the client of an execution; the access token of a sandbox belongs to nobody."""
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
    assert {(each["client"], each["user"]) for each in executions} == {("e2b", "")}


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
