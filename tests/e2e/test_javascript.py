"""Cells in JavaScript: one Node.js process for the session, with its variables."""

from __future__ import annotations

import asyncio

import kernelbroker
import pytest

from tests.e2e.support import whole_system
from tests.support.requires import requires
from tests.support.results import cause_of

pytestmark = [*whole_system, requires("node")]


async def javascript(
    session: kernelbroker.Session, code: str, **options: object
) -> kernelbroker.ExecutionResult:
    return await session.run(code, language="javascript", **options)  # type: ignore[arg-type]


async def test_javascript_keeps_variables(session: kernelbroker.Session) -> None:
    """Variables last from cell to cell, top-level `await` works, the last value is shown."""
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


async def test_javascript_result_var(session: kernelbroker.Session) -> None:
    """`result_var` reports the JSON form of a variable."""
    code = "const report = {rows: [1, {x: null}], name: 'é'}; 0"
    result = await javascript(session, code, result_var="report")
    assert result.return_value == {"rows": [1, {"x": None}], "name": "é"}
    result = await javascript(session, "0", result_var="nosuch")
    assert result.truncated is not None
    assert "nosuch" in str(result.truncated.report)


async def test_javascript_value_that_is_too_large(session: kernelbroker.Session) -> None:
    """It is summarized, as Python's are, and what else the session holds stays; so with an error."""
    await javascript(session, "const kept = 'kept'")
    for code, type_, length in (
        ("const big = 'x'.repeat(2e7)", "String", 20_000_000),
        ("const big = Array(3e6).fill(70)", "Array", 3_000_000),
    ):
        result = await javascript(session, code, result_var="big")
        assert result.success, result.error
        assert isinstance(result.return_value, dict)
        assert (result.return_value["type"], result.return_value["length"]) == (type_, length)
        assert result.truncated is not None and "summarized" in str(result.truncated.report)
    result = await javascript(session, "throw new Error('x'.repeat(2e7))")
    assert (result.error or "").startswith("Error: xxx")
    await expect_shown(session, "kept", "'kept'")


async def expect_shown(session: kernelbroker.Session, code: str, value: str) -> None:
    result = await javascript(session, code)
    assert [each.data for each in result.displays] == [{"text/plain": value}], result


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("const data = JSON.parse('{bad')", "const data = JSON.parse('{}'); data", "{}"),
        ("let data = await Promise.reject(1)", "let data = 2; data", "2"),
        ("const {a, b: [c]} = null", "const {a, b: [c]} = {a: 1, b: [2]}; a + c", "3"),
        ("const fs = require('fs'), crypto = require('crypto')",) * 2 + (None,),
        ("class Cell { x = 1 }", "class Cell { x = 2 }\n(new Cell()).x", "2"),
        ("let n = 1", "let n, m = 2\n;[n, m]", "[ undefined, 2 ]"),
        ("function f() { return 1 }", "const f = 2 // no more\nf", "2"),
    ],
)
async def test_names_can_be_declared_again(
    session: kernelbroker.Session, first: str, second: str, value: str | None
) -> None:
    """A cell can declare a name of an earlier cell again, even if that cell failed."""
    await javascript(session, first)
    result = await javascript(session, second)
    assert result.success, result.error
    assert [each.data["text/plain"] for each in result.displays] == ([value] if value else [])


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("{a: 1}", "{ a: 1 }"),
        ("{ let z = 5; z }", "5"),
        ("1, (2, 3); // the last", "3"),
        ("for (const i of [1, 2]) i", "2"),
        ("'text'", "'text'"),
        ("null", "null"),
        ("(await import('os')).platform()", "'linux'"),
        ("import os from 'os'\nos.platform()", "'linux'"),
        ("import * as os from 'node:os'; import 'fs'; os.platform()", "'linux'"),
        (
            "import fs, { existsSync as exists, readFileSync } from 'fs'\n"
            "[fs.existsSync, exists('/'), typeof readFileSync].slice(1)",
            "[ true, 'function' ]",
        ),
    ],
)
async def test_the_last_value_is_shown(
    session: kernelbroker.Session, code: str, value: str
) -> None:
    """The shown value is the last value of the original code."""
    await expect_shown(session, code, value)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("throw new TypeError('bad')", "TypeError: bad"),
        ("await Promise.reject(new RangeError('late'))", "RangeError: late"),
        ("if (", "SyntaxError: Unexpected end of input"),
        ("nosuch", "ReferenceError: nosuch is not defined"),
        ("await Promise.reject('text')", "Error: 'text'"),
        ("throw null", "Error: null"),
        ("throw 0", "Error: 0"),
        ("(() => { throw undefined })()", "Error: undefined"),
        ("await Promise.reject()", "Error: undefined"),
        ("await Promise.reject(null)", "Error: null"),
    ],
)
async def test_javascript_errors(session: kernelbroker.Session, code: str, error: str) -> None:
    """An error has its own name and message, and only the cell's own frames."""
    result = await javascript(session, code)
    assert (result.success, result.error) == (False, error)
    assert "node:" not in result.stderr
    assert "kernelbroker" not in result.stderr


async def test_computing_javascript_is_interrupted(session: kernelbroker.Session) -> None:
    """Code that computes is interrupted, and the variables are kept."""
    await javascript(session, "const kept = 'kept'")
    result = await javascript(session, "while (true) {}", timeout=1)
    assert cause_of(result) == "timeout"
    await expect_shown(session, "kept", "'kept'")


@pytest.mark.parametrize(
    "code",
    [
        "while (true) { await new Promise((go) => setTimeout(go, 50)); console.log('ticks') }",
        "require('child_process').spawn('sleep', ['100']); await new Promise(() => {})",
        "setTimeout(() => { while (true) {} }, 1); await new Promise(() => {})",
        "while (true) await null",
    ],
)
async def test_awaiting_javascript_ends_node(session: kernelbroker.Session, code: str) -> None:
    """If code cannot be interrupted, Node.js ends, and the result says so."""
    await session.run("x = 41")
    await javascript(session, "var lost = 1")
    result = await javascript(session, code, timeout=1)
    assert cause_of(result) == "timeout"
    assert result.exit_code is not None and result.exit_code >= 128
    assert "Node.js was ended, and its variables are lost" in result.stderr
    assert "Python's state is kept" in (result.error or "")
    assert (await session.run("sleep 0.3; pgrep -x 'node|sleep'", language="shell")).stdout == ""
    await expect_shown(session, "typeof lost", "'undefined'")
    assert (await session.run("print(x + 1)")).stdout == "42\n"


async def test_interrupts_at_any_moment(session: kernelbroker.Session) -> None:
    """An interrupt right after the end of the code costs no variables."""
    await javascript(session, "var alive = 1")
    for number in range(12):
        code = "for (let i = 0; i < 2e6; i++) {}"
        running = asyncio.create_task(javascript(session, code))
        await asyncio.sleep(number * 0.003)
        await session.interrupt()
        await running
        await expect_shown(session, "alive", "1")


async def test_a_node_that_ends_is_restarted(session: kernelbroker.Session) -> None:
    """The exit status of Node.js is reported, and it is started again; Python is not affected."""
    await session.run("z = 1")
    result = await javascript(session, "process.exit(4)")
    assert (result.success, result.exit_code) == (False, 4)
    assert (result.error or "").startswith("NodeExited: Node.js ended with status 4")
    assert (await javascript(session, "1 + 1")).success
    assert (await session.run("print(z)")).stdout == "1\n"


async def test_node_that_ends_between_cells(session: kernelbroker.Session) -> None:
    """If Node.js ends between cells, the next cell has a new one, and says so."""
    await javascript(session, "setTimeout(() => process.exit(3), 10); 0")
    ended = await session.run("get_ipython().kernelbroker_hooks.node._process.wait(20)")
    assert ended.success, ended.error
    result = await javascript(session, "1 + 1")
    assert result.success
    assert result.stderr == "Node.js had ended with status 3; its variables are lost\n"


async def test_node_does_not_change_other_output(session: kernelbroker.Session) -> None:
    """Node.js leaves the output of other programs unchanged."""
    await javascript(session, "console.log(1)")
    # Its first output makes the pipe non-blocking; the file says that this has happened.
    code = "console.log(2); fs.writeFileSync('written', ''); setTimeout(() => {}, 1e6)"
    await session.run(f'import subprocess; node = subprocess.Popen(["node", "-e", "{code}"])')
    try:
        seen = await session.run(
            "until [ -e written ]; do sleep 0.05; done", language="shell", timeout=20
        )
        assert seen.success
        numbers = "".join(f"{number}\n" for number in range(1, 100_001))
        result = await session.run("seq 100000", language="shell")
        assert (result.success, result.stdout.removeprefix("2\n")) == (True, numbers)
        result = await session.run("_ = subprocess.run(['seq', '100000'])")
        assert result.stdout == numbers
    finally:
        await session.run("node.kill(); node.wait()")


async def test_errors_beside_a_cell(session: kernelbroker.Session) -> None:
    """An error in a callback that no cell awaits is shown, and ends nothing."""
    code = "setTimeout(() => { throw new Error('on its own') }, 1)"
    result = await javascript(session, f"{code}; await new Promise((go) => setTimeout(go, 300)); 1")
    assert result.success
    assert "on its own" in result.stderr
    assert (await javascript(session, "1 + 1")).success


async def test_javascript_needs_node(client: kernelbroker.Broker) -> None:
    """Without Node.js the error names the available languages."""
    async with client.session(env={"PATH": "/nowhere"}) as other:
        result = await javascript(other, "1")
    assert (result.error or "").startswith("LanguageUnavailable: this template has no Node.js")
