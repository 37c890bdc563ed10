"""A result as text for a model, and as the outputs of a notebook cell."""

from __future__ import annotations

import pytest
from kernelbroker import ExecutionFailed, ExecutionResult
from kernelbroker.collector import Collector
from kernelbroker.protocol import events
from kernelbroker.result_text import output_texts, useful_traceback


def collect(*found: events.Event, **result: object) -> ExecutionResult:
    collector = Collector()
    for event in (*found, events.Result(**{"success": True, **result})):
        collector.add(event)
    return collector.result()


VALUE = events.Display(data={"text/plain": "2", "text/html": "<b>2</b>"}, is_result=True)
TRACEBACK = ["Traceback (most recent call last):", "  1/0", "ZeroDivisionError: division by zero"]
FAILED = {
    "success": False,
    "error": "ZeroDivisionError: division by zero",
    "error_detail": events.ErrorDetail(
        name="ZeroDivisionError", value="division by zero", cause="exception", traceback=TRACEBACK
    ),
}


def test_printing_a_result_shows_the_value_of_the_last_expression() -> None:
    """The text of the cell `1+1` is 2."""
    assert str(collect(VALUE)) == "2"


def test_outputs_keep_their_order() -> None:
    """Printed text, a picture, a display and the value are in the order of the cell."""
    result = collect(
        events.Stdout(content="a"),
        events.Stdout(content="b\n"),
        events.Stderr(content="warned\n"),
        events.Image(
            mime="image/png",
            content="AAAA",
            data={"text/plain": "<Figure>"},
            metadata={"image/png": {"width": 1}},
        ),
        events.Stdout(content="c"),
        VALUE,
        execution_count=7,
    )
    assert result.text == "ab\nwarned\n<Figure>\nc\n2"
    assert result.outputs == [
        {"output_type": "stream", "name": "stdout", "text": "ab\n"},
        {"output_type": "stream", "name": "stderr", "text": "warned\n"},
        {
            "output_type": "display_data",
            "data": {"image/png": "AAAA", "text/plain": "<Figure>"},
            "metadata": {"image/png": {"width": 1}},
        },
        {"output_type": "stream", "name": "stdout", "text": "c"},
        {
            "output_type": "execute_result",
            "execution_count": 7,
            "data": {"text/plain": "2", "text/html": "<b>2</b>"},
            "metadata": {},
        },
    ]
    assert result.displays[0].is_result
    assert (result.stdout, result.stderr) == ("ab\nc", "warned\n")


def test_a_traceback_stands_in_the_text_once() -> None:
    """The broker sends it as stderr too; the outputs have it as an error."""
    text = "\n".join(TRACEBACK)
    result = collect(
        events.Stderr(content="before\n"),
        events.Stderr(content=f"{text}\n", is_traceback=True, error_name="ZeroDivisionError"),
        **FAILED,
    )
    assert result.text == f"before\n{text}"
    assert result.stderr == f"before\n{text}\n"
    assert [output["output_type"] for output in result.outputs] == ["stream", "error"]
    assert result.outputs[1]["ename"] == "ZeroDivisionError"


@pytest.mark.parametrize("traceback", [[], ["KeyboardInterrupt: "]])
def test_a_timeout_is_told_even_where_the_traceback_does_not(traceback: list[str]) -> None:
    """The cause of the end stands in the text."""
    detail = events.ErrorDetail(
        name="TimeoutError", value="after 3 s", cause="timeout", traceback=traceback
    )
    result = collect(success=False, error="TimeoutError: after 3 s", error_detail=detail)
    assert result.text == "\n".join([*traceback, "TimeoutError: after 3 s"])


def test_notes_follow_the_output() -> None:
    """The value of `result_var`, a lost state and missing output are reported after the output."""
    result = collect(
        events.Stdout(content="x"),
        return_value={"a": 1},
        kernel_restarted=True,
        truncated=events.Truncated(output_bytes=12),
    )
    assert result.text.split("\n") == [
        "x",
        "{",
        '  "a": 1',
        "}",
        "[The kernel was restarted: all variables are gone.]",
        "[Cut: output_bytes 12]",
    ]


def test_text_is_what_a_terminal_shows() -> None:
    """Only the last state of a progress bar is shown, and colours are removed."""
    result = collect(events.Stdout(content="10%\r 50%\r100%\n\x1b[31mred\x1b[0m\r\nend\n"))
    assert result.text == "100%\nred\nend"


@pytest.mark.parametrize("max_chars", [0, 1, 50, 100, 999, 1000, 1001, 20_000])
def test_text_is_bounded(max_chars: int) -> None:
    """The beginning and the end are kept within `max_chars`."""
    result = collect(events.Stdout(content="a" * 500 + "z" * 500))
    text = result.as_text(max_chars=max_chars)
    assert len(text) == min(1000, max_chars)
    if max_chars >= 100:
        assert text[0] == "a"
        assert text[-1] == "z"
        assert ("1,000 characters in all" in text) == (max_chars < 1000)


def test_the_default_bound_fits_a_model() -> None:
    """`text` has at most 20,000 characters."""
    assert len(collect(events.Stdout(content="x" * 10**6)).text) == 20_000


def test_clear_and_update_change_the_outputs() -> None:
    """Cleared output is removed, and an update replaces its display."""
    result = collect(
        events.Stdout(content="gone"),
        events.Clear(),
        events.Display(data={"text/plain": "1 of 2"}, display_id="bar"),
        events.Stdout(content="after"),
        events.Display(data={"text/plain": "2 of 2"}, display_id="bar", update=True),
    )
    assert result.text == "2 of 2\nafter"


def test_execution_failed_has_the_result() -> None:
    """The exception of `raise_for_error` has the result, with the output before the error."""
    result = collect(events.Stdout(content="so far"), **FAILED)
    with pytest.raises(ExecutionFailed, match="division by zero") as info:
        result.raise_for_error()
    assert info.value.result is result
    assert info.value.result.stdout == "so far"


LIBRARY = "/opt/kernelbroker/env/lib/python3.11"
LONG = f"""\
---------------------------------------------------------------------------
KeyError                                  Traceback (most recent call last)
File {LIBRARY}/site-packages/pandas/core/indexes/base.py:3812, in Index.get_loc(self, key)
   3811 try:
-> 3812     return self._engine.get_loc(casted_key)
   3813 except KeyError as err:

File pandas/_libs/index.pyx:167, in pandas._libs.index.IndexEngine.get_loc()

KeyError: 'missing'

The above exception was the direct cause of the following exception:

KeyError                                  Traceback (most recent call last)
Cell In[3], line 2
      1 import mine
----> 2 mine.pick()

File /workspace/project/mine.py:5, in pick()
      4 def pick():
----> 5     frame['missing']

File {LIBRARY}/site-packages/pandas/core/frame.py:4113, in DataFrame.__getitem__(self, key)
   4112     return self._getitem_multilevel(key)
-> 4113 indexer = self.columns.get_loc(key)

File {LIBRARY}/json/decoder.py:12, in other(x)
     11 x = 1
---> 12 raise Error

File <frozen importlib._bootstrap>:1206, in _gcd_import(name)

File {LIBRARY}/site-packages/pandas/core/indexes/base.py:3819, in Index.get_loc(self, key)
   3818         raise InvalidIndexError(key)
-> 3819     raise KeyError(key) from err

KeyError: 'missing'

and its second line"""


def test_frames_inside_of_libraries_are_left_out() -> None:
    """The user's frames, the place of the last one of a library, and each whole message are kept."""
    text = useful_traceback(LONG)
    assert text.count("KeyError: 'missing'") == 2
    assert text.endswith("KeyError: 'missing'\n\nand its second line")
    assert "----> 5     frame['missing']" in text and "----> 2 mine.pick()" in text
    assert "[... frames inside of libraries: 3 ...]\n\nFile" in text
    assert text.index("[... frames inside of libraries: 2") < text.index("direct cause")
    assert "File pandas/_libs" not in text
    assert "base.py:3819, in Index.get_loc" in text and "raise KeyError(key) from err" not in text
    error = {
        "output_type": "error",
        "ename": "KeyError",
        "evalue": "'missing'",
        "traceback": LONG.split("\n"),
    }
    assert list(output_texts([error])) == [text]


@pytest.mark.parametrize(
    "text", ["", "ValueError: 1", "Cell In[1], line 1\n----> 1 1/0\n\nZeroDivisionError: x"]
)
def test_a_short_traceback_is_unchanged(text: str) -> None:
    """A traceback without frames of libraries is as it was."""
    assert useful_traceback(text) == text
