"""The command line, as a process and by its functions."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import sys

import pytest
from kernelbroker import cli, events
from kernelbroker.protocol.errors import ConfirmationRequired
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import Execute
from kernelbroker.terminal import Renderer, aligned, harmless

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\x07\x9b2J\ttab\r\n"


async def command(*args, stdin=b"", cwd=None):
    """Run the command to its end; returns status, stdout and stderr."""
    process = await start(*args, cwd=cwd)
    out, err = await asyncio.wait_for(process.communicate(stdin), 20)
    return process.returncode, out.decode("utf-8", "surrogateescape"), err.decode()


async def start(*args, cwd=None):
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "kernelbroker.cli",
        *args,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=cwd,
    )


async def test_stdout_and_stderr_are_separate(connected, scripts, tmp_path):
    """stdout and stderr of the cell go to stdout and stderr; pictures are saved to files."""
    connected.cells["c"] = scripts.emitting(
        events.Stdout(content=HOSTILE),
        events.Stdout(content="\ud800"),
        events.Stderr(content="warning\n"),
        events.Image(mime="image/png", content="AAAA"),
        events.Display(data={"text/plain": "Out"}),
    )
    (tmp_path / "figure-1.png").write_text("mine")
    status, out, err = await command("exec", "c", cwd=tmp_path)
    assert (status, out) == (0, HOSTILE.replace("\r\n", "\r\n") + "\\ud800\nOut\n")
    assert err == "warning\nkernelbroker: picture saved: figure-2.png\n"
    assert (tmp_path / "figure-2.png").read_bytes() == b"\0\0\0"
    assert (tmp_path / "figure-1.png").read_text() == "mine"


async def test_code_comes_from_a_file_or_from_stdin(connected, tmp_path):
    """Code comes from the file of `-f`, or from stdin; options reach the broker."""
    (tmp_path / "script.py").write_text("from file")
    await command("exec", "-f", str(tmp_path / "script.py"), "--timeout", "3")
    await command("exec", "--session", "work", stdin=b"from stdin")
    await command("exec", "-", stdin=b"dash")
    first, second, third = connected.ops(Execute)
    assert (first.code, first.timeout, first.on_disconnect) == ("from file", 3, "interrupt")
    assert (second.code, third.code) == ("from stdin", "dash")
    assert await connected.sessions() == ["work"]


@pytest.mark.parametrize("code", ["~nobody_x/2", "x = '/" + 300 * "a" + "'", "1/2\n", "a\0/b"])
def test_code_that_is_no_path_is_code(code):
    """Code that looks a little like a path is not looked for, and does not fail."""
    assert not cli._is_file(code, None)


async def test_json_prints_the_events(connected, scripts):
    """--json prints every event as one line of JSON."""
    connected.cells["c"] = scripts.printing("a\nb")
    status, out, _ = await command("exec", "c", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == ["started", "stdout", "result"]
    assert (status, lines[1]["content"]) == (0, "a\nb")


async def test_a_failed_cell_is_status_1(connected, scripts):
    """The traceback is printed once to stderr; an error without a traceback is one line."""
    connected.cells["c"] = scripts.failing
    assert await command("exec", "c") == (1, "", "ValueError\nno\n")
    connected.replace_result(
        success=False,
        error="OutOfMemory: 2 GiB",
        error_detail=events.ErrorDetail(name="OutOfMemory", value="", cause="out_of_memory"),
        kernel_restarted=True,
        truncated=events.Truncated(output_bytes=5),
    )
    connected.cells.clear()
    status, _, err = await command("exec", "c")
    assert (status, err.splitlines()) == (
        1,
        [
            "kernelbroker: OutOfMemory: 2 GiB",
            "kernelbroker: the kernel was restarted, and the session's state is lost",
            "kernelbroker: cut: output_bytes 5",
        ],
    )


async def test_no_broker_is_status_2_in_one_line(tmp_path):
    """An error of the connection or of a file is one line that names the problem."""
    status, out, err = await command("--url", "http://127.0.0.1:1", "exec", "c")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "Is the broker running?" in err
    status, _, err = await command("exec", "-f", str(tmp_path / "none.py"))
    assert (status, err.count("\n")) == (2, 1)


async def test_health_prints_json(connected):
    """`health` prints the broker's answer."""
    status, out, _ = await command("health")
    assert (status, json.loads(out)["status"]) == (0, "ok")


@pytest.mark.parametrize(
    ("name", "code", "status", "shown"),
    [
        ("ok.py", "print(1)", 0, "safe\n"),
        ("x.py", "import os\nos.system(x)", 1, "x.py:2:1: high: os.system runs a command known"),
        ("x.sh", "rm -rf /", 1, "x.sh:1:1: critical: rm deletes a whole system"),
        ("x.js", "fetch(x)", 0, "x.js:1:1: medium: fetch uses the network"),
    ],
)
async def test_assess_reports_the_findings_of_a_file(tmp_path, name, code, status, shown):
    """Each finding is a line with its position; high and critical findings give status 1."""
    (tmp_path / name).write_text(code)
    got, out, err = await command("assess", name, cwd=tmp_path)
    assert (got, err) == (status, "")
    assert shown in out


async def test_assess_reads_stdin_and_writes_json():
    """With `-` the code is read from stdin; `--json` prints the assessment."""
    status, out, _ = await command(
        "assess", "--json", "--language", "shell", "-", stdin=b"printenv"
    )
    assert status == 0
    assert json.loads(out)["findings"][0]["rule"] == "environment"


async def test_assess_of_a_missing_file_is_status_2():
    """A missing file is reported in one line."""
    status, out, err = await command("assess", "no-such-file.py")
    assert (status, out) == (2, "")
    assert "no-such-file.py" in err


async def test_ctrl_c_interrupts_the_cell(connected, scripts):
    """The first Ctrl-C interrupts the cell; its result is printed, and the status is 130."""
    connected.cells["c"] = scripts.forever
    process = await start("exec", "c")
    await connected.until(lambda: connected.ops(Execute))
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130
    assert b"once more to leave" in err
    assert b"KeyboardInterrupt" in err


async def test_a_second_ctrl_c_ends_the_command(connected):
    """The second Ctrl-C ends the command, even if the cell cannot be interrupted."""

    async def deaf(cell):
        await cell.interrupted.wait()
        process.send_signal(signal.SIGINT)
        await asyncio.Event().wait()

    connected.cells["c"] = deaf
    process = await start("exec", "c")
    await connected.until(lambda: connected.ops(Execute))
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130


async def test_a_closed_pipe_ends_the_command_quietly(connected, scripts):
    """`kernelbroker exec … | head` ends without an error message."""
    connected.cells["c"] = scripts.printing(*["x" * 10_000] * 200)
    process = await start("exec", "c")
    process.stdout._transport.close()
    err = await asyncio.wait_for(process.stderr.read(), 20)
    assert (await process.wait(), err) == (1, b"")


# Rendering.


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(*items, environ=None, images=None):
    out, err = Terminal(), Terminal()
    renderer = Renderer(out, err, images=images, environ=environ or {})
    for item in items:
        renderer.show(item)
    return out.getvalue(), err.getvalue()


def test_control_sequences_except_colours_are_removed():
    """On a terminal only the control sequences of colours are kept, and colours are reset."""
    out, err = shown(
        events.Stdout(content=HOSTILE),
        events.Stderr(content="\x1b[2Jx"),
        events.Display(data={"text/plain": "\x1bc"}),
        events.Result(success=False, error="\x1b[5n"),
    )
    assert out == "\x1b[31mred\x1b[0m2J\ttab\r\n\x1b[0m\n"
    assert err == "xkernelbroker: \n"


def test_colours_of_a_terminal():
    """stderr is red and remarks are yellow on a terminal with colours; NO_COLOR leaves no colour at all."""
    items = [
        events.Stdout(content="\x1b[32mgreen"),
        events.Stderr(content="warning"),
        events.Result(success=True, kernel_restarted=True),
    ]
    out, err = shown(*items, environ={"TERM": "xterm"})
    assert out == "\x1b[32mgreen\x1b[0m"
    assert err.startswith("\x1b[31mwarning\x1b[0m\x1b[33mkernelbroker: the kernel was restarted")
    for environ in ({"TERM": "xterm", "NO_COLOR": "1"}, {"NO_COLOR": "1"}):
        assert "\x1b" not in "".join(shown(*items, environ=environ))
    assert shown(*items, environ={"TERM": "dumb"})[1].startswith("warning")


async def test_a_confirmation_is_asked_on_a_terminal(monkeypatch, capsys):
    """On a terminal the command shows the findings and asks; only "y" and "yes" run the code."""
    found = Finding(rule="program", level="medium", line=2, column=1, reason="runs a program")
    asked = ConfirmationRequired("risky", findings=[found], confirmation="token", expires_in=60)
    for answer, runs in (("y", True), ("YES ", True), ("", False), ("n", False)):
        primary, replica = pty.openpty()
        with os.fdopen(replica) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            os.write(primary, f"{answer}\n".encode())
            assert await cli._confirmed(asked) is runs
        os.close(primary)
        assert capsys.readouterr().err == (
            "kernelbroker: risky\n  line 2: medium: runs a program\nRun it? [y/N] "
        )


def test_a_split_control_sequence_is_removed():
    """The halves of a sequence in two events do not form a sequence."""
    assert harmless("a\x1b") + harmless("[2Jb") == "a[2Jb"
    assert harmless("\x1b]52;c;") + harmless("AAAA\x07") == "]52;c;AAAA"


def test_a_table_is_aligned():
    """The columns of a table are aligned by the display width of their characters."""
    table = "| name | n |\n| --- | --- |\n| a\\|b | 1 |\n| 日本 | 22 |\n| x\\\\ | 3 |"
    assert aligned(table).splitlines() == [
        "| name | n   |",
        "| ---- | --- |",
        "| a\\|b | 1   |",
        "| 日本 | 22  |",
        "| x\\\\  | 3   |",
    ]
    assert aligned("no table") == "no table"


def test_the_result_shows_its_table_or_value():
    """A table is printed with its shape and size, another value as JSON."""
    frame = events.DataFrame(
        var_name="df",
        kind="pandas",
        shape=(3, 1),
        columns=["a"],
        dtypes={"a": "int64"},
        preview=[{"a": 1}],
        markdown="| a |\n| --- |\n| 1 |",
        memory_usage=24,
    )
    out, _ = shown(events.Stdout(content="x"), events.Result(success=True, dataframe=frame))
    assert out == "x\ndf: 3 rows × 1 columns (pandas)\n| a   |\n| --- |\n| 1   |\n"
    out, _ = shown(events.Result(success=True, return_value={"a": [1]}))
    assert json.loads(out) == {"a": [1]}


@pytest.mark.parametrize(
    ("environ", "start"),
    [
        ({"TERM_PROGRAM": "iTerm.app"}, "\x1b]1337;File=inline=1;size=3:AAAA\x07"),
        ({"TERM": "xterm-kitty"}, "\x1b_Ga=T,f=100,m=0;AAAA\x1b\\"),
    ],
)
def test_pictures_are_shown_inline_if_supported(environ, start):
    """iTerm2 and kitty show pictures, which are encoded again."""
    out, err = shown(events.Image(mime="image/png", content="AAAA"), environ=environ)
    assert (out, err) == (start + "\n", "")


def test_pictures_are_saved_to_the_given_directory(tmp_path):
    """`--images` always saves pictures; an invalid image type gives a safe file name."""
    for mime in ("image/png", "image/../../x"):
        shown(
            events.Image(mime=mime, content="AAAA"),
            environ={"TERM": "xterm-kitty"},
            images=tmp_path / "new",
        )
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"figure-1.png", "figure-1.bin"}
