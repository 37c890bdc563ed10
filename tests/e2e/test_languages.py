"""Cells in shell and JavaScript: the same events, the same workspace, and a state where there is one."""

from __future__ import annotations

import kernelbroker
import pytest
from kernelbroker import events

from tests.support.results import cause_of


async def shell(
    session: kernelbroker.Session, code: str, **options: object
) -> kernelbroker.ExecutionResult:
    return await session.run(code, language="shell", **options)  # type: ignore[arg-type]


async def javascript(
    session: kernelbroker.Session, code: str, **options: object
) -> kernelbroker.ExecutionResult:
    return await session.run(code, language="javascript", **options)  # type: ignore[arg-type]


async def test_shell(session: kernelbroker.Session) -> None:
    """Both streams come as they are, with the exit code; files are the session's."""
    result = await shell(session, "echo out; echo err >&2; pwd; echo kept > from-shell.txt")
    assert (result.success, result.exit_code) == (True, 0)
    assert (result.stdout, result.stderr) == ("out\n/data\n", "err\n")
    assert [change.path for change in result.files] == ["from-shell.txt"]
    assert (await session.run("print(open('from-shell.txt').read())")).stdout == "kept\n\n"


async def test_shell_is_streamed(session: kernelbroker.Session) -> None:
    """A line is seen while the shell still runs, and the shell can be interrupted."""
    code = "echo first; sleep 100; echo last"
    seen = []
    async for event in session.stream(code, language="shell", timeout=60):
        seen.append(event)
        if isinstance(event, events.Stdout):
            await session.interrupt()
    assert [event.content for event in seen if isinstance(event, events.Stdout)] == ["first\n"]
    assert isinstance(seen[-1], events.Result)
    assert seen[-1].error == "KeyboardInterrupt: interrupted"


@pytest.mark.parametrize(
    ("code", "exit_code", "error"),
    [
        ("exit 3", 3, "ExitStatus: the shell exited with status 3"),
        ("kill -9 $$", 137, "ExitStatus: the shell was killed by SIGKILL"),
        ("if x", 2, "ExitStatus: the shell exited with status 2"),
        ("nosuchprogram", 127, "ExitStatus: the shell exited with status 127"),
    ],
)
async def test_shell_failures(
    session: kernelbroker.Session, code: str, exit_code: int, error: str
) -> None:
    """A status that is not 0 is a failure, told in the result; no frame of ours is shown."""
    result = await shell(session, code)
    assert (result.success, result.exit_code, result.error) == (False, exit_code, error)
    assert cause_of(result) == "exception"
    assert "kernelbroker" not in result.stderr


async def test_shell_interrupted(session: kernelbroker.Session) -> None:
    """A shell that runs too long ends with its programs, deaf or not, and Python's state is kept."""
    await session.run("x = 41")
    for code in ("sleep 100", "trap '' INT; sleep 100; sleep 100"):
        result = await shell(session, code, timeout=1)
        assert cause_of(result) == "timeout"
        assert "kernelbroker" not in result.stderr
    assert (await shell(session, "pgrep -x sleep")).exit_code == 1
    assert (await session.run("print(x + 1)")).stdout == "42\n"


async def test_shell_takes_any_code(session: kernelbroker.Session) -> None:
    """The code is no argument: long code, quotes and variables arrive as they are written."""
    await session.run("import os; os.environ['FROM_PYTHON'] = 'a'")
    code = f"""echo "$FROM_PYTHON $GIVEN '\\$x'" `echo nested`; cat; : {"x" * 90_000}; echo é"""
    result = await shell(session, code, env={"GIVEN": "b c"})
    assert result.stdout == "a b c '$x' nested\né\n"


async def test_shell_has_no_variables(session: kernelbroker.Session) -> None:
    """Asked for one, the result says that there is none."""
    await session.run("y = 1")
    result = await shell(session, "y=2", result_var="y")
    assert result.success
    assert result.return_value is None
    assert result.truncated is not None
    assert result.truncated.report == "no variable named 'y'"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "console.log(1)"),
        (
            "shell",
            """python3 -c 'import os; print(len({"FORCE_COLOR", "CLICOLOR_FORCE"} & {*os.environ}) + 1)'""",
        ),
    ],
)
async def test_no_colours(session: kernelbroker.Session, language: str, code: str) -> None:
    """What programs print is for a reader that is no terminal; who wants colours sets the variables."""
    result = await session.run(code, language=language)  # type: ignore[arg-type]
    assert result.stdout == "1\n"
    result = await session.run("console.log(1)", language="javascript", env={"FORCE_COLOR": "1"})
    assert result.stdout == "\x1b[33m1\x1b[39m\n"


async def test_javascript(session: kernelbroker.Session) -> None:
    """Variables last from cell to cell, `await` stands at the top, the last value is shown."""
    await javascript(session, "const a = 20; let b; function twice(x) { return 2 * x }")
    result = await javascript(session, "b = await Promise.resolve(2); twice(a) + b")
    assert result.success, result.stderr
    assert [each.data for each in result.displays] == [{"text/plain": "42"}]
    result = await javascript(
        session,
        "console.log('out'); console.error('err');"
        "require('fs').writeFileSync('from-js.txt', process.cwd() + process.env.GIVEN); undefined",
        env={"GIVEN": "!"},
    )
    assert (result.stdout, result.stderr, result.displays) == ("out\n", "err\n", [])
    assert (await session.run("print(open('from-js.txt').read())")).stdout == "/data!\n"


async def test_javascript_value(session: kernelbroker.Session) -> None:
    """`result_var` reports what JSON can say of a variable."""
    code = "const report = {rows: [1, {x: null}], name: 'é'}; 0"
    result = await javascript(session, code, result_var="report")
    assert result.return_value == {"rows": [1, {"x": None}], "name": "é"}
    result = await javascript(session, "0", result_var="nosuch")
    assert result.truncated is not None
    assert "nosuch" in str(result.truncated.report)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("throw new TypeError('bad')", "TypeError: bad"),
        ("await Promise.reject(new RangeError('late'))", "RangeError: late"),
        ("if (", "SyntaxError: Unexpected end of input"),
        ("nosuch", "ReferenceError: nosuch is not defined"),
        ("await Promise.reject('text')", "Error: 'text'"),
    ],
)
async def test_javascript_failures(session: kernelbroker.Session, code: str, error: str) -> None:
    """An error has its own name and message, and the cell's own frames alone."""
    result = await javascript(session, code)
    assert (result.success, result.error) == (False, error)
    assert "node:" not in result.stderr
    assert "kernelbroker" not in result.stderr


async def test_javascript_interrupted(session: kernelbroker.Session) -> None:
    """Code that awaits and code that computes are interrupted, and the variables are kept."""
    await javascript(session, "const kept = 'kept'")
    for code in ("await new Promise(() => {})", "while (true) {}"):
        result = await javascript(session, code, timeout=1)
        assert cause_of(result) == "timeout"
        result = await javascript(session, "kept")
        assert [each.data for each in result.displays] == [{"text/plain": "'kept'"}], result


async def test_node_that_ends(session: kernelbroker.Session) -> None:
    """It is told with its status, and started anew; Python's variables are not concerned."""
    await session.run("z = 1")
    result = await javascript(session, "process.exit(4)")
    assert (result.success, result.exit_code) == (False, 4)
    assert (result.error or "").startswith("NodeExited: Node.js ended with status 4")
    assert (await javascript(session, "1 + 1")).success
    assert (await session.run("print(z)")).stdout == "1\n"


async def test_errors_beside_a_cell(session: kernelbroker.Session) -> None:
    """What fails in a callback, which no cell awaits, is shown, and ends nothing."""
    code = "setTimeout(() => { throw new Error('on its own') }, 1)"
    result = await javascript(session, f"{code}; await new Promise((go) => setTimeout(go, 300)); 1")
    assert result.success
    assert "on its own" in result.stderr
    assert (await javascript(session, "1 + 1")).success


async def test_without_node(client: kernelbroker.Broker) -> None:
    """Where there is no Node.js, the error says so and names what there is."""
    async with client.session(env={"PATH": "/nowhere"}) as other:
        result = await javascript(other, "1")
    assert (result.error or "").startswith("LanguageUnavailable: this template has no Node.js")
