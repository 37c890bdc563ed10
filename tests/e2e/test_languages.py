"""Cells in shell: the same events and the same workspace as in Python."""

from __future__ import annotations

from typing import Any

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import whole_system
from tests.support.results import cause_of

pytestmark = whole_system


async def shell(
    session: kernelbroker.Session, code: str, **options: object
) -> kernelbroker.ExecutionResult:
    return await session.run(code, language="shell", **options)  # type: ignore[arg-type]


async def test_shell_cells_stream_and_exit(session: kernelbroker.Session) -> None:
    """Both streams arrive, with the exit code; the files belong to the session."""
    result = await shell(session, "echo out; echo err >&2; pwd; echo kept > from-shell.txt")
    assert (result.success, result.exit_code) == (True, 0)
    assert (result.stdout, result.stderr) == ("out\n/data\n", "err\n")
    assert [change.path for change in result.files] == ["from-shell.txt"]
    assert (await session.run("print(open('from-shell.txt').read())")).stdout == "kept\n\n"


async def test_much_output_of_a_program_without_a_newline(session: kernelbroker.Session) -> None:
    """The beginning arrives, the rest is counted, and the session goes on."""
    size = 12_000_000
    result = await session.run(f"head -c {size} /dev/zero | tr '\\0' x", language="shell")
    assert result.success
    assert result.truncated is not None
    assert len(result.stdout) + result.truncated.output_bytes == size
    assert (await session.run("1 + 1")).text == "2"


async def test_shell_is_streamed(session: kernelbroker.Session) -> None:
    """A line arrives while the shell still runs, and the shell can be interrupted."""
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
        ("kill -40 $$", 168, "ExitStatus: the shell was killed by signal 40"),
        ("if x", 2, "ExitStatus: the shell exited with status 2"),
        ("nosuchprogram", 127, "ExitStatus: the shell exited with status 127"),
    ],
)
async def test_a_shell_status_is_a_failure(
    session: kernelbroker.Session, code: str, exit_code: int, error: str
) -> None:
    """A status other than 0 is a failure in the result, without internal frames."""
    result = await shell(session, code)
    assert (result.success, result.exit_code, result.error) == (False, exit_code, error)
    assert cause_of(result) == "exception"
    assert "kernelbroker" not in result.stderr


async def test_a_shell_ends_with_its_programs(session: kernelbroker.Session) -> None:
    """A shell that runs too long ends with all its programs, and Python's state is kept."""
    await session.run("x = 41")
    for code in ("sleep 100", "trap '' INT; sleep 100; sleep 100"):
        result = await shell(session, code, timeout=1)
        assert cause_of(result) == "timeout"
        assert "kernelbroker" not in result.stderr
    assert (await shell(session, "pgrep -x sleep")).exit_code == 1
    assert (await session.run("print(x + 1)")).stdout == "42\n"


INTERRUPTED = """
import kernelbroker_kernel.{module} as module
class interrupt(KeyboardInterrupt):
    def __init__(self, *_):
        raise KeyboardInterrupt
kept, module.{name} = module.{name}, interrupt
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("languages", "request_options"),  # before the code that expects it
        ("languages", "Interrupted"),  # while another one is handled
        ("operations.cell", "request_options"),
    ],
)
async def test_no_frame_of_ours_is_shown(
    session: kernelbroker.Session, module: str, name: str
) -> None:
    """An interrupt is shown without frames, wherever in the code of the contract it comes."""
    await session.run(INTERRUPTED.format(module=module, name=name))
    try:
        if module == "languages":
            result: Any = await shell(session, "sleep 100", timeout=1)
        else:
            result = await session.code.build("exit 1")
    finally:
        await session.run(f"module.{name} = kept")
    assert not result.success
    assert "KeyboardInterrupt" in result.stderr
    assert not [word for word in ("kernelbroker", "Traceback", "handling") if word in result.stderr]


async def test_shell_takes_any_code(session: kernelbroker.Session) -> None:
    """The code is no argument: long code, quotes and variables arrive as they are written."""
    await session.run("import os; os.environ['FROM_PYTHON'] = 'a'")
    code = f"""echo "$FROM_PYTHON $GIVEN '\\$x'" `echo nested`; cat; : {"x" * 90_000}; echo é"""
    result = await shell(session, code, env={"GIVEN": "b c"})
    assert result.stdout == "a b c '$x' nested\né\n"


async def test_sh_is_used_without_bash(session: kernelbroker.Session) -> None:
    """If there is no bash, sh runs the code."""
    await session.run("import shutil; which = shutil.which")
    try:
        await session.run("shutil.which = lambda name: None")
        result = await shell(session, "echo $0; echo 'a  b'; cat; ls /proc/self/fd | wc -l")
    finally:
        await session.run("shutil.which = which")
    assert result.stdout == "/bin/sh\na  b\n4\n", result.stderr  # the fourth is the listing's own


async def test_shell_has_no_variables(session: kernelbroker.Session) -> None:
    """A `result_var` of a shell cell is reported as missing."""
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
async def test_programs_print_without_colours(
    session: kernelbroker.Session, language: str, code: str
) -> None:
    """Programs see no terminal and print without colours, unless a variable asks for them."""
    result = await session.run(code, language=language)  # type: ignore[arg-type]
    assert result.stdout == "1\n"
    result = await session.run("console.log(1)", language="javascript", env={"FORCE_COLOR": "1"})
    assert result.stdout == "\x1b[33m1\x1b[39m\n"
