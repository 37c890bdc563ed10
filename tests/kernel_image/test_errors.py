"""Errors of a cell: an error of any size and class gives an error reply within bounds."""

from __future__ import annotations

import inspect
import json
import linecache
import re
import sys
import time
import traceback
from typing import Any

import pytest
from IPython.core.ultratb import AutoFormattedTB
from kernelbroker_kernel.compat.kernel import few_frames, with_left_out
from kernelbroker_kernel.contract import DROPPED_MIME, MAX_MESSAGE_BYTES
from kernelbroker_kernel.error_bounds import (
    NAME_CHARS,
    TRACEBACK_CHARS,
    VALUE_CHARS,
    bounded_error,
)
from kernelbroker_kernel.kernel import pack_json
from kernelbroker_kernel.oversize import replacement

from tests.support.real_kernel import Kernel

LARGE_ERRORS = {
    "value": "raise ValueError('x' * 20_000_000)",
    "value that grows in JSON": "raise ValueError('\U0001f600' * 5_000_000)",
    "name": "raise type('N' * 20_000_000, (Exception,), {})",
    "source line": "raise ValueError('" + "x" * 99_000 + "')",
    "chain": """
def fail(depth):
    try:
        if depth:
            fail(depth - 1)
    finally:
        raise ValueError("x" * 1_000_000)
fail(20)
""",
    "traceback of its own": """
class Shown(Exception):
    def _render_traceback_(self):
        return ["x" * 1_000_000] * 100
raise Shown
""",
    "syntax error": "exec('é' * 10_000_000 + ' ' + 'é')",
}


@pytest.mark.parametrize("name", LARGE_ERRORS)
def test_a_large_error_is_replied_within_bounds(kernel: Kernel, name: str) -> None:
    """However large the name, value or traceback is, the reply is an error and fits a message."""
    ran = kernel.run(LARGE_ERRORS[name])
    assert ran.reply["status"] == "error"
    for error in (*ran.errors, ran.reply):
        assert len(error["ename"]) <= NAME_CHARS
        assert len(error["evalue"]) <= VALUE_CHARS
        assert sum(map(len, error["traceback"])) <= TRACEBACK_CHARS + VALUE_CHARS
        assert len(json.dumps(error)) < MAX_MESSAGE_BYTES
    assert len(ran.errors) == 1
    assert kernel.run("1").reply["status"] == "ok"


def test_an_error_whose_str_raises(kernel: Kernel) -> None:
    """The cell has an error reply, whose value says that the message cannot be shown."""
    ran = kernel.run("""
class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no")
raise Mute
""")
    assert ran.reply["status"] == "error"
    assert ran.errors[0]["ename"] == "Mute"
    assert ran.errors[0]["evalue"] == "<Mute whose repr raised RuntimeError>"
    assert kernel.run("1").reply["status"] == "ok"


def test_an_exception_group_does_not_repeat_an_earlier_traceback(kernel: Kernel) -> None:
    """The reply does not contain the traceback of an earlier error."""
    kernel.run("raise ValueError('before')")
    reply = kernel.run("raise ExceptionGroup('several', [KeyError('one')])").reply
    assert (reply["status"], reply["ename"]) == ("error", "ExceptionGroup")
    assert "before" not in "".join(reply["traceback"])


def test_a_long_traceback_keeps_its_ends() -> None:
    """The first and the last entries are kept, with the number of those left out."""
    entries = ["first", *("x" * 90_000 for _ in range(20)), "last"]
    kept = bounded_error("Error", "value", entries)["traceback"]
    assert (kept[0], kept[-1]) == ("first", "last")
    assert kept[1] == "... 9 entries dropped ..."
    assert bounded_error("Error", "value", ["a", "b"])["traceback"] == ["a", "b"]
    assert bounded_error("Error", "value", [])["traceback"] == []


@pytest.mark.parametrize("strange", [None, 5, "text", {"a": 1}, b"bytes", [None, 3, ["x"]]])
def test_invalid_errors_become_text(strange: Any) -> None:
    """A name, value or traceback of an invalid type becomes text."""
    error = bounded_error(strange, strange, strange)
    assert {type(error["ename"]), type(error["evalue"])} == {str}
    assert all(type(entry) is str for entry in error["traceback"])


def parts(kind: str, content: Any) -> list[bytes]:
    return [json.dumps({"msg_type": kind}).encode(), b'{"msg_id": "p"}', b"{}", content]


REPLIES = {
    "ok": ({"status": "ok", "execution_count": 3, "payload": ["x" * 100]}, "ok"),
    "error": ({"status": "error", "ename": "E", "evalue": "v", "traceback": ["t"]}, "error"),
    "aborted": ({"status": "aborted"}, "error"),
    "no status": ({}, "error"),
    "a list": ([], "error"),
    "strange": ({"status": ["ok"], "execution_count": "x"}, "error"),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_dropped_reply_keeps_its_status(name: str) -> None:
    """The short reply that replaces one that is too large has the same status."""
    content, status = REPLIES[name]
    header, parent, _, data = replacement(
        parts("execute_reply", json.dumps(content).encode()), 10**8
    )
    short = json.loads(data)
    assert json.loads(header) == {"msg_type": "execute_reply"}
    assert parent == b'{"msg_id": "p"}'
    assert (short["status"], short["payload"]) == (status, [])
    assert ("ename" in short) is (status == "error")


@pytest.mark.parametrize("data", [b"", b"not JSON", b"[" * 100_000, b"\xff"])
def test_a_dropped_reply_that_is_not_json_is_an_error(data: bytes) -> None:
    """A reply that is too large and not JSON becomes an error reply."""
    *_, short = replacement(parts("execute_reply", data), 10**8)
    assert json.loads(short)["status"] == "error"


def test_a_dropped_error_and_a_dropped_output() -> None:
    """An error that is too large is cut; of an output without text only its size is left."""
    error = {"ename": "E", "evalue": "v" * 200_000, "traceback": ["t"]}
    header, *_, data = replacement(parts("error", json.dumps(error).encode()), 10**8)
    assert json.loads(header)["msg_type"] == "error"
    assert json.loads(data)["ename"] == "E"
    assert len(json.loads(data)["evalue"]) == VALUE_CHARS
    header, *_, data = replacement(parts("execute_result", b"{}"), 123)
    assert json.loads(header)["msg_type"] == "execute_result"
    dropped = {"bytes": 123, "text_bytes": 0, "rich": True}
    assert json.loads(data) == {"data": {DROPPED_MIME: dropped}, "metadata": {}}


@pytest.mark.parametrize("letter", ["x", "é", "\x00", "\ud800", "\\"])
def test_the_text_of_a_dropped_output_is_cut(letter: str) -> None:
    """An output that is too large keeps as much of its plain text as a message holds."""
    text = letter * 18 * 1024**2
    bundle = {"text/plain": text, "text/html": "<b>"}
    content = {"data": bundle, "execution_count": 3, "transient": {"display_id": "d"}}
    message = replacement(parts("execute_result", json.dumps(content).encode()), 60 * 1024**2)
    assert MAX_MESSAGE_BYTES * 0.9 < sum(map(len, message)) <= MAX_MESSAGE_BYTES
    kept = json.loads(message[3])
    assert (kept["execution_count"], kept["transient"]) == (3, {"display_id": "d"})
    assert kept["data"].keys() == {"text/plain", DROPPED_MIME}
    shown = kept["data"]["text/plain"]
    assert text.startswith(shown)
    lost = (len(text) - len(shown)) * len(letter.encode("utf-8", "surrogatepass"))
    assert kept["data"][DROPPED_MIME] == {"bytes": 60 * 1024**2, "text_bytes": lost, "rich": True}


@pytest.mark.parametrize("as_utf_8", [True, False])
@pytest.mark.parametrize("letter", ["x", "é", "\x00", "\\", '"', "\N{GRINNING FACE}", "\u2028"])
def test_the_beginning_of_an_enormous_text(letter: str, as_utf_8: bool) -> None:
    """A text that is too large to be parsed has its beginning; no character of it is cut."""
    each = len(json.dumps(letter, ensure_ascii=not as_utf_8).encode()) - 2
    text = letter * (80 * 1024**2 // each)
    content = {"data": {"text/plain": text}, "metadata": {}, "execution_count": 3}
    data = json.dumps(content, ensure_ascii=not as_utf_8).encode()
    message = replacement(parts("execute_result", data), len(data))
    assert sum(map(len, message)) <= MAX_MESSAGE_BYTES
    kept = json.loads(message[3])
    assert kept["execution_count"] == 3
    shown = kept["data"]["text/plain"]
    assert text.startswith(shown)
    assert len(shown) > 15 * 1024**2 // each
    dropped = kept["data"][DROPPED_MIME]
    assert (dropped["bytes"], dropped["rich"]) == (len(data), False)
    assert dropped["text_bytes"] > 60 * 1024**2


@pytest.mark.parametrize("first", ["text/plain", "text/html"])
def test_the_text_of_an_enormous_output(first: str) -> None:
    """Where another form is too large to be parsed, a text before it is whole, and one after it is lost."""
    forms = {"text/plain": 'a "text"\n', "text/html": "<b>" * 30 * 1024**2}
    data = {"data": dict(sorted(forms.items(), key=lambda form: form[0] != first))}
    message = replacement(parts("display_data", json.dumps(data).encode()), 90 * 1024**2)
    kept = json.loads(message[3])["data"]
    assert kept[DROPPED_MIME] == {"bytes": 90 * 1024**2, "text_bytes": 0, "rich": True}
    assert kept.get("text/plain") == (forms["text/plain"] if first == "text/plain" else None)


@pytest.mark.parametrize(
    "data", [b"", b'{"data": {"text/plain": "', b'{"data": {"text/plain": "\\', b"\xff"]
)
def test_an_enormous_output_that_is_not_json(data: bytes) -> None:
    """An output that user code has made up does no harm."""
    message = replacement(parts("display_data", data), 10**8)
    assert json.loads(message[3])["data"][DROPPED_MIME]["bytes"] == 10**8


@pytest.mark.parametrize("text", ["é" * 2 * 1024**2, "a\ud800é" * 1024**2, "\\ud800é" * 1024**2])
def test_large_messages_are_packed_as_utf_8(text: str) -> None:
    """A character of a large message takes the bytes of UTF-8, and lone surrogates arrive."""
    packed = pack_json({"text": text})
    assert json.loads(packed) == {"text": text}
    assert len(packed) <= len(text.replace("\\", "\\\\").encode("utf-8", "surrogatepass")) * 1.6


LONG_TRACEBACKS = {
    "recursion": "def f(): f()\nf()",
    "in turns": "def g(): h()\ndef h():\n    g()\ng()",
    "and then": "def f(): f()\ntry: f()\nexcept RecursionError: 1 / 0",
    "a method": "class Tree:\n    def walk(self): self.walk()\nTree().walk()",
}
CALLS = "\n".join(f"def f{n}(): f{n + 1}()" for n in range(60)) + "\ndef f60(): 1 / 0\nf0()"


def run_cell(code: str, depth: int = 150) -> None:
    """Run code whose lines tracebacks can show, as those of a cell."""
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(keepends=True), "<cell>")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + depth)
    try:
        exec(compile(code, "<cell>", "exec"), {"__name__": "cell"})
    finally:
        sys.setrecursionlimit(before)


def shown(error: BaseException) -> str:
    stock = AutoFormattedTB(mode="Context", theme_name="nocolor", tb_offset=0)
    lines = stock.structured_traceback(type(error), error, error.__traceback__)
    return "\n".join(lines)


@pytest.mark.parametrize("depth", [150, 151])
@pytest.mark.parametrize("name", LONG_TRACEBACKS)
def test_a_long_traceback_is_that_of_ipython(name: str, depth: int) -> None:
    """Of thousands of frames few are looked at, and the traceback is as if all of them had been."""
    with pytest.raises((RecursionError, ZeroDivisionError)) as raised:
        run_cell(LONG_TRACEBACKS[name], depth)
    error = raised.value
    expected, frames = shown(error), list(traceback.walk_tb(error.__traceback__))
    with few_frames(error) as left_out:
        few = shown(error)
    ours = "\n".join(with_left_out(few.split("\n"), left_out))
    assert sum(left_out.values()) > 100

    def counted(
        text: str,
    ) -> list[list[str]]:  # those that are called in turns may have another order
        return [sorted(re.findall(r"\w+", line)) for line in text.splitlines()]

    assert counted(ours) == counted(expected)
    assert list(traceback.walk_tb(error.__traceback__)) == frames


def test_frames_that_are_left_out_are_told() -> None:
    """A traceback without repetitions says how many of its frames are not shown."""
    with pytest.raises(ZeroDivisionError) as raised:
        run_cell(CALLS)
    with few_frames(raised.value) as left_out:
        lines = with_left_out(shown(raised.value).split("\n"), left_out)
    assert lines[1] == f"[... {sum(left_out.values())} frames in the middle are not shown ...]"
    assert sum(left_out.values()) > 40
    assert any("in f60()" in line for line in lines)


def test_a_recursion_is_told_at_once(kernel: Kernel) -> None:
    """The traceback of a recursion does not take seconds, and can be examined afterwards."""
    begun = time.process_time()
    ran = kernel.run("import sys; sys.setrecursionlimit(5_000)\ndef f(): f()\nf()")
    assert ran.reply["ename"] == "RecursionError"
    assert "frames in the middle are not shown" in str(ran.errors)
    assert len(ran.errors[0]["traceback"]) < 30
    assert time.process_time() - begun < 5
    ran = kernel.run(
        "import traceback\nprint(len(list(traceback.walk_tb(sys.last_traceback))) > 4_900)"
    )
    assert ran.text == "True\n"
    kernel.run("sys.setrecursionlimit(1000)")
