"""Secrets do not come out, however output is cut into pieces; everything else comes out as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import (
    Display,
    ErrorDetail,
    Event,
    Result,
    Started,
    Stderr,
    Stdout,
)
from kernelbroker_server.kernels.redaction import Redactor


def run(secrets: list[str], events: list[Event]) -> list[Event]:
    redactor = Redactor(secrets)
    return [clean for event in events for clean in redactor.events(event)]


def text_of(events: list[Event], kind: type[Stdout] | type[Stderr]) -> str:
    return "".join(event.content for event in events if isinstance(event, kind))


def test_whole_and_cut() -> None:
    """A value is masked in one piece and in many, in both streams, each on its own."""
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


def test_everywhere_else() -> None:
    """A value is masked in errors, displays and results, also where JSON has to escape it."""
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


def test_nothing_to_hide() -> None:
    """Without a secret in them, events are the very same."""
    events: list[Event] = [Started(execution_count=1), Stdout(content="abc"), Result(success=True)]
    assert run([], events) == events
    assert run(["other"], events) == events
    assert run(["abc"], [Stdout(content="abc")]) == [Stdout(content="abc")]  # too short


def test_one_within_another() -> None:
    """The longer one is masked as a whole."""
    assert text_of(run(["token", "token-of-mine"], [Stdout(content="token-of-mine token")]), Stdout)
    clean = run(["token", "token-of-mine"], [Stdout(content="<token-of-mine><token>")])
    assert text_of(clean, Stdout) == "<***><***>"


@given(
    secret=st.text(st.sampled_from("abAB1é\ud800"), min_size=4, max_size=6),
    pieces=st.lists(st.text(st.sampled_from("abAB1é\ud800"), max_size=8), max_size=12),
)
def test_any_cut(secret: str, pieces: list[str]) -> None:
    """However text is cut, the value is nowhere in it, and nothing but the value is missing."""
    events: list[Event] = [Stdout(content=piece) for piece in pieces]
    clean = run([secret], [*events, Result(success=True)])
    text = text_of(clean, Stdout)
    assert secret not in text
    assert text == "".join(pieces).replace(secret, "***")
    assert all(encode(event) for event in clean)
