"""Secrets are masked however output is split, and other text is unchanged."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import (
    Display,
    ErrorDetail,
    Event,
    FileChange,
    Image,
    Result,
    Started,
    Stderr,
    Stdout,
    Truncated,
)
from kernelbroker_server.kernels.redaction import MASK, Redactor

from tests.support.generated import repeatable


def run(secrets: list[str], events: list[Event]) -> list[Event]:
    redactor = Redactor(secrets)
    return [clean for event in events for clean in redactor.events(event)]


def text_of(events: list[Event], kind: type[Stdout] | type[Stderr]) -> str:
    return "".join(event.content for event in events if isinstance(event, kind))


def test_secrets_in_split_text() -> None:
    """A value is masked in one piece and in many, in each stream separately."""
    events: list[Event] = [
        Stdout(content="key hunter2, hun"),
        Stderr(content="ter2 hun"),
        Stdout(content="ter2 and hunt"),
        Stdout(content="ing"),
        Result(success=True),
    ]
    clean = run(["hunter2"], events)
    assert text_of(clean, Stdout) == "key ***, *** and hunting"
    assert text_of(clean, Stderr) == "ter2 hun"
    assert isinstance(clean[-1], Result)


def test_secrets_in_other_events() -> None:
    """A value is masked in errors, displays and results, also where JSON escapes it."""
    secret = 'pa"ss\\wörd\n'
    detail = ErrorDetail(name="E", value=secret, cause="exception", traceback=[f"x {secret} y"])
    events: list[Event] = [
        Display(data={"application/json": {secret: [secret]}, "text/plain": repr(secret)}),
        Result(
            success=False, error=f"E: {secret}", error_detail=detail, return_value={"a": secret}
        ),
    ]
    display, result = run([secret], events)
    assert isinstance(display, Display)
    assert isinstance(result, Result)
    assert display.data["application/json"] == {"***": ["***"]}
    assert (result.error, result.return_value) == ("E: ***", {"a": "***"})
    assert result.error_detail is not None
    assert result.error_detail.traceback == ["x *** y"]


@pytest.mark.parametrize("secret", ["1234", "null", "true", "name", "result", "exception", "type"])
def test_other_values_are_unchanged(secret: str) -> None:
    """Numbers and the protocol's own words are unchanged."""
    detail = ErrorDetail(name="E", value=f"a {secret}", cause="exception")
    result = Result(
        execution_id=f"e-{secret}",
        success=True,
        execution_time=0.12345,
        error_detail=detail,
        return_value=[12345, None, True, f"a {secret}"],
        files=[FileChange(path="x", size=12345)],
    )
    (clean,) = run([secret], [result])
    assert isinstance(clean, Result)
    assert clean.return_value == [12345, None, True, "a ***"]
    assert clean.error_detail == ErrorDetail(name="E", value="a ***", cause="exception")
    for name in ("execution_id", "execution_time", "files"):
        assert getattr(clean, name) == getattr(result, name)


def test_binary_data_is_not_masked() -> None:
    """Base64 is not masked: a short value can occur in it by chance."""
    data = "iVBORw0KGgoabcd"
    events: list[Event] = [
        Image(mime="image/png", content=data, data={"text/plain": "abcd", "image/gif": data}),
        Image(mime="image/svg+xml", content="<svg>abcd</svg>"),
        Display(data={"image/png": data, "text/plain": "abcd", "application/json": {"abcd": 1}}),
    ]
    png, svg, display = run(["abcd"], events)
    assert png == Image(
        mime="image/png", content=data, data={"text/plain": "***", "image/gif": data}
    )
    assert svg == Image(mime="image/svg+xml", content="<svg>***</svg>")
    assert isinstance(display, Display)
    assert display.data["image/png"] == data
    assert display.data["text/plain"] == "***"
    assert display.data["application/json"] == {"***": 1}


def test_secret_of_several_lines() -> None:
    """A secret of several lines is masked as a whole, quoted, and line by line, as in a traceback."""
    key = "-----BEGIN KEY-----\nMIIEvQ+/\n'hunter2=\n"
    events: list[Event] = [
        Stdout(content=key + repr(key) + json.dumps(key)),
        Stdout(content="one line MIIEvQ+/, and another\n'hunter2="),
        Result(success=True),
    ]
    text = text_of(run([key], events), Stdout)
    assert (
        text == "***" + f"'{'***'}'".replace("'", '"') + '"***"' + "one line ***, and another\n***"
    )


def test_cut_within_a_secret() -> None:
    """If output was cut, an end that may begin a secret is dropped."""
    cut = Result(success=True, truncated=Truncated(output_bytes=1))
    assert text_of(run(["hunter2"], [Stdout(content="key hunt"), cut]), Stdout) == "key "
    whole = Result(success=True)
    assert text_of(run(["hunter2"], [Stdout(content="key hunt"), whole]), Stdout) == "key hunt"


def test_values_nested_too_deep() -> None:
    """A value that is nested too deep is dropped."""
    deep: list[object] = ["hunter2"]
    for _ in range(2000):
        deep = [deep]
    (clean,) = run(["hunter2"], [Result(success=True, return_value=deep)])
    assert isinstance(clean, Result)
    assert clean.return_value == []


def test_without_secrets() -> None:
    """Events without a secret are unchanged."""
    events: list[Event] = [Started(execution_count=1), Stdout(content="abc"), Result(success=True)]
    assert run([], events) == events
    assert run(["other"], events) == events
    assert run(["abc"], [Stdout(content="abc")]) == [Stdout(content="abc")]  # too short


def test_secret_within_another() -> None:
    """The longer of two overlapping secrets is masked as a whole."""
    assert text_of(run(["token", "token-of-mine"], [Stdout(content="token-of-mine token")]), Stdout)
    clean = run(["token", "token-of-mine"], [Stdout(content="<token-of-mine><token>")])
    assert text_of(clean, Stdout) == "<***><***>"


@given(
    secret=st.text(st.sampled_from("abAB1é\ud800"), min_size=4, max_size=6),
    pieces=st.lists(st.text(st.sampled_from("abAB1é\ud800"), max_size=8), max_size=12),
)
def test_text_split_anywhere(secret: str, pieces: list[str]) -> None:
    """However text is split, the value does not appear, and nothing else is lost."""
    events: list[Event] = [Stdout(content=piece) for piece in pieces]
    clean = run([secret], [*events, Result(success=True)])
    text = text_of(clean, Stdout)
    assert secret not in text
    assert text == "".join(pieces).replace(secret, "***")
    assert all(encode(event) for event in clean)


def test_the_time_does_not_grow_with_the_secrets() -> None:
    """A secret of many lines is found about as fast as one of one line, however the output tempts it."""
    lines = [f"{number:012d}" for number in range(2000)]
    text = "0" * 1_000_000

    def seconds(secret: str, text: str = text) -> float:
        redactor = Redactor([secret])
        times = []
        for _ in range(5):
            begun = time.process_time()
            redactor.events(Stdout(content=text))
            times.append(time.process_time() - begun)
        return min(times)

    one = seconds(lines[1])
    assert seconds("\n".join(lines)) < 100 * one
    # Each place in the output may be the beginning, but for its end.
    assert seconds("0" * 60_000 + "1", "0" * 60_000 + "2") < 100 * one


@repeatable
@given(st.lists(st.text("ab\ud800é\n", min_size=4, max_size=9), min_size=1), st.text("ab\ud800é\n"))
def test_masked_text_is_that_of_a_search_one_by_one(secrets: list[str], text: str) -> None:
    """At each place the longest value is masked, as by a search for one after the other."""
    values = {line for secret in secrets for line in [secret, *secret.splitlines()]}
    values = {each for value in values for each in (value, value.strip()) if len(each) >= 4}
    expected, place = "", 0
    while place < len(text):
        longest = max((len(v) for v in values if text.startswith(v, place)), default=0)
        expected += MASK if longest else text[place]
        place += longest or 1
    forms = [s for s in secrets if repr(s)[1:-1] == s]
    if len(forms) == len(secrets):
        assert Redactor(secrets).clean(text) == expected
    (clean,) = [*Redactor(secrets).events(Result(success=True, return_value=text))]
    for secret in secrets:
        assert secret not in clean.return_value


def test_a_long_secret_is_masked_however_it_is_split() -> None:
    """A value that is searched for in parts is gone from the text, wherever the text is cut."""
    secret = "".join(chr(0x61 + number * number % 25) for number in range(2500))
    for cut in (1, 500, 1023, 1024, 1700, 2499):
        clean = run(
            [secret], [Stdout(content="a " + secret[:cut]), Stdout(content=secret[cut:] + " b")]
        )
        assert text_of(clean, Stdout).replace(MASK, "") == "a  b"
