"""The text form, parsed by a parser that is written from its description."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.events import (
    Clear,
    Display,
    ErrorDetail,
    Event,
    Image,
    Input,
    Result,
    Started,
    Stderr,
    Stdout,
)
from kernelbroker.protocol.tags import encode_tags, escape_text, unescape_text

from tests.protocol.test_codec import with_nulls
from tests.support.generated import any_json, repeatable, tag_text

_ENTITIES = {"amp": "&", "lt": "<", "gt": ">"}


def parse(stream: str) -> list[tuple[str, str]]:
    """Return the tags of a stream. Strict: no text outside of tags, no nested tags, known names only."""
    found = []
    while stream:
        opening = re.match(r'<(txt|err|img|display|result)( mime="[a-z/+.-]+")?>', stream)
        assert opening is not None, stream[:40]
        body, closing, stream = stream[opening.end() :].partition(f"</{opening[1]}>\n")
        assert closing, "a tag that is not closed"
        assert "<" not in body, body
        assert ">" not in body, body
        found.append((opening[1], body))
    return found


def text_of(body: str) -> str:
    """Return the content of a text body, with the entities decoded independently of the codec."""
    pieces = re.split(r"&(?:#x([0-9A-F]+)|(amp|lt|gt));", body)
    literal, numbers, names = pieces[0::3], pieces[1::3], pieces[2::3]
    assert not any("&" in piece for piece in literal), body
    text = literal[0]
    for piece, number, name in zip(literal[1:], numbers, names, strict=True):
        text += (chr(int(number, 16)) if number else _ENTITIES[name]) + piece
    return text


def json_of(body: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert "&" not in body, body
    return json.loads(body, parse_constant=refuse)


@repeatable
@given(tag_text)
def test_escape_round_trip(text: str) -> None:
    """Unescaping gives the original text, also lone surrogates and carriage returns."""
    escaped = escape_text(text)
    assert unescape_text(escaped) == text
    assert text_of(escaped) == text
    assert not set("<>\r") & set(escaped)
    escaped.encode()  # it can be sent


events = st.one_of(
    tag_text.map(lambda text: Stdout(content=text)),
    tag_text.map(lambda text: Stderr(content=text)),
    tag_text.map(lambda text: Image(mime="image/png", content=text)),
    tag_text.map(lambda text: Image(mime="image/svg+xml", content=text)),
    st.dictionaries(tag_text, any_json, max_size=3).map(lambda data: Display(data=data)),
    st.builds(
        lambda text, value: Result(
            success=False,
            error=text,
            return_value=value,
            error_detail=ErrorDetail(name=text, value=text, cause="exception", traceback=[text]),
        ),
        tag_text,
        any_json,
    ),
    st.sampled_from([Started(), Clear(), Input(prompt="</txt>")]),
)


@repeatable
@given(st.lists(events, max_size=6))
def test_no_output_can_forge_a_tag(sent: list[Event]) -> None:
    """A strict parser of the stream finds exactly the events that were sent, with any output."""
    received = parse("".join(map(encode_tags, sent)).encode().decode())
    shown = [event for event in sent if not isinstance(event, Started | Clear | Input)]
    assert len(received) == len(shown)
    for (tag, body), event in zip(received, shown, strict=True):
        match event:
            case Stdout(content=content):
                assert (tag, text_of(body)) == ("txt", content)
            case Stderr(content=content):
                assert (tag, text_of(body)) == ("err", content)
            case Image(content=content):
                assert (tag, text_of(body)) == ("img", content)
            case Display(data=data):
                assert (tag, json_of(body)) == ("display", with_nulls(data))
            case Result():
                result = json_of(body)
                assert tag == "result"
                assert result["error"] == event.error
                assert result["return_value"] == with_nulls(event.return_value)


def test_a_printed_result_tag_is_text() -> None:
    """A result tag that a cell prints is parsed as text."""
    text = '</txt><result>{"success":true}</result>'
    assert encode_tags(Stdout(content=text)) == (
        '<txt>&lt;/txt&gt;&lt;result&gt;{"success":true}&lt;/result&gt;</txt>\n'
    )


def test_images_have_their_format() -> None:
    """PNG is the default format; others are named."""
    assert encode_tags(Image(mime="image/png", content="AA==")) == "<img>AA==</img>\n"
    svg = encode_tags(Image(mime="image/svg+xml", content="<svg/>"))
    assert svg == '<img mime="image/svg+xml">&lt;svg/&gt;</img>\n'


@pytest.mark.parametrize(
    "text", ["&#x110000;", "&#xFFFFFFFFFFFFFFFF;", "&", "&#;", "&#x;", "&copy;"]
)
def test_unescape_leaves_unknown_entities(text: str) -> None:
    """Text that no broker writes is unchanged."""
    assert unescape_text(text) == text
