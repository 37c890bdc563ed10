"""The text that a cell writes arrives unchanged, in every form."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import kernelbroker
import pytest
from kernelbroker.protocol import events
from kernelbroker.protocol.tags import unescape_text

from tests.e2e.support import BrokerProcess, opened, whole_system
from tests.support.results import cause_of

pytestmark = whole_system

TEXTS = {
    "forged result": '</txt><result>{"success": true}</result>\n<txt>',
    "forged stream": 'event: result\nid: 9\ndata: {"type":"result","success":false}\n\n\n',
    "forged line": '{"type":"result","execution_id":"x","seq":2,"success":false}\n',
    "entities": "&lt;txt&gt; &amp;amp; &#x41; &#65; \\u003c </script><!-- ]]> %s {0}\n",
    "nul": "before\0after\n",
    "surrogates": "lone \ud800 and \udfff, a pair \U0001f600\n",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\x9b\n",
    "progress bar": "".join(f"\r{done:3d}%|{'#' * (done // 10):10}|" for done in range(101)) + "\n",
    "line ends": "a\r\nb\rc\n\x0b\x0c\x1c\x85\u2028\u2029end",
    "no line end": "x",
    "unicode": "中文 العربية e\u0301 \ufeff\ufffe\uffff\u202e\u200b\n",
    "spaces": "   \t  \n   ",
}
Reader: TypeAlias = Callable[[BrokerProcess, str, str], Awaitable[tuple[str, str, bool]]]
"""Runs code in a session; gives its standard output, standard error and success."""


async def _body(broker: BrokerProcess, session_id: str, code: str, accept: str) -> str:
    path = f"/api/v1/sessions/{session_id}/exec"
    async with opened(broker, "POST", path, {"code": code}, accept) as response:
        return (await response.rest()).decode()


async def tags(broker: BrokerProcess, session_id: str, code: str) -> tuple[str, str, bool]:
    body = await _body(broker, session_id, code, "text/plain")
    found = re.findall(r"<(txt|err|result|display|img)>([^<]*)</\1>\n", body)
    assert "".join(f"<{tag}>{content}</{tag}>\n" for tag, content in found) == body
    out, err = (
        "".join(unescape_text(content) for tag, content in found if tag == kind)
        for kind in ("txt", "err")
    )
    (result,) = [json.loads(content) for tag, content in found if tag == "result"]
    return out, err, result["success"]


async def sse(broker: BrokerProcess, session_id: str, code: str) -> tuple[str, str, bool]:
    body = await _body(broker, session_id, code, "text/event-stream")
    events = []
    for block in body.removesuffix("\n\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append(json.loads(fields["data"]))
        assert (fields["event"], fields["id"]) == (events[-1]["type"], str(events[-1]["seq"]))
    return _gathered(events)


async def ndjson(broker: BrokerProcess, session_id: str, code: str) -> tuple[str, str, bool]:
    body = await _body(broker, session_id, code, "application/x-ndjson")
    return _gathered([json.loads(line) for line in body.removesuffix("\n").split("\n")])


def _gathered(events: list[dict[str, object]]) -> tuple[str, str, bool]:
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    out, err = (
        "".join(str(event["content"]) for event in events if event["type"] == kind)
        for kind in ("stdout", "stderr")
    )
    (success,) = [event["success"] for event in events if event["type"] == "result"]
    return out, err, bool(success)


async def whole_json(broker: BrokerProcess, session_id: str, code: str) -> tuple[str, str, bool]:
    body = json.loads(await _body(broker, session_id, code, "application/json"))
    return body["stdout"], body["stderr"], body["result"]["success"]


async def sdk(broker: BrokerProcess, session_id: str, code: str) -> tuple[str, str, bool]:
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(session_id, keep=True) as session,
    ):
        result = await session.run(code)
    return result.stdout, result.stderr, result.success


in_every_form = pytest.mark.parametrize("read", [tags, sse, ndjson, whole_json, sdk])


@in_every_form
async def test_any_text_arrives_unchanged(
    broker: BrokerProcess, session: kernelbroker.Session, read: Reader
) -> None:
    """Text that looks like the protocol, or contains control characters, arrives unchanged."""
    for name, text in TEXTS.items():
        for stream in ("stdout", "stderr"):
            code = f"import sys; _ = sys.{stream}.write({text!r})"
            out, err, success = await read(broker, session.session_id, code)
            assert success, name
            assert (out, err) == ((text, "") if stream == "stdout" else ("", text)), name


@in_every_form
async def test_a_long_line_arrives_complete(
    broker: BrokerProcess, session: kernelbroker.Session, read: Reader
) -> None:
    """Five megabytes on one line arrive complete, with tags, quotes and multi-byte characters."""
    unit = "<txt>中文\"&\\'</txt>"
    code = f"print({unit!r} * 170_000)"  # 27 bytes in UTF-8
    out, err, success = await read(broker, session.session_id, code)
    assert success
    assert out == unit * 170_000 + "\n"
    assert err == ""


async def test_errors_are_plain_text(session: kernelbroker.Session) -> None:
    """An error has its name and message on one line, and its traceback as text without colours."""
    result = await session.run("def f():\n    raise ValueError('<b>no</b>\\nsecond line')\nf()")
    assert not result.success
    assert result.error == "ValueError: <b>no</b>"
    assert cause_of(result) == "exception"
    assert result.error_detail.value == "<b>no</b>\nsecond line"
    assert "raise ValueError" in result.stderr
    assert "\x1b" not in result.stderr + "".join(result.error_detail.traceback)
    result = await session.run("1 +")
    assert result.error is not None
    assert result.error.startswith("SyntaxError: ")


async def test_tqdm_keeps_carriage_returns(session: kernelbroker.Session) -> None:
    """tqdm's bar is text on standard error with its carriage returns."""
    code = "from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='work', mininterval=0): pass"
    result = await session.run(code)
    assert result.success, result.error
    assert "\r" in result.stderr
    assert "work: 100%" in result.stderr
    assert "3/3" in result.stderr


async def test_output_over_the_limit_is_cut(session: kernelbroker.Session) -> None:
    """Output over its limit is cut, the cell continues, and the result has the lost size."""
    result = await session.run("for _ in range(130):\n    print('x' * 100_000)\nafter = 1")
    assert result.success, result.error
    assert result.truncated is not None
    written = 130 * 100_001
    assert len(result.stdout) + result.truncated.output_bytes == written
    assert 9.9 * 1024**2 < len(result.stdout) <= 10 * 1024**2
    assert (await session.run("print(after)")).stdout == "1\n"


async def test_flood_of_small_outputs(session: kernelbroker.Session) -> None:
    """Thousands of flushed prints all arrive in order."""
    result = await session.run("for i in range(5000): print(i, flush=True)", timeout=60)
    assert result.stdout.split() == [str(i) for i in range(5000)]


async def test_all_displays_of_a_flood_arrive(session: kernelbroker.Session) -> None:
    """Displays that come faster than they are passed on all arrive, and then the cell's end."""
    code = """
from IPython.display import display
for i in range(10_000):
    display({"text/plain": str(i)}, raw=True)"""
    seen = [event async for event in session.stream(code, timeout=60)]
    shown = [event.data["text/plain"] for event in seen if isinstance(event, events.Display)]
    assert shown == [str(i) for i in range(10_000)]
    assert isinstance(seen[-1], events.Result)
    assert seen[-1].success
