"""The words of all errors."""

from __future__ import annotations

import re

import pytest

from .messages import TABLE, messages, table

ALL = sorted(set(messages()))
UNCLEAR = {
    r"at \$": "a path of the library that decodes JSON",
    r"\berrno\b|NoneType|object at 0x": "a detail of Python",
    r"(?i)\b(please|oops|sorry|fatal|illegal|malformed|abort|unable to|failed to)\b|!": "no more is said",
    r"(?i)\b(e\.g|i\.e|etc)\.": "an abbreviation",
    r"\[\^|\]\+|\\d|\\w": "a regular expression, where words say what is allowed",
    r"invalid$": "what is wrong, or what is right, is not said",
}
"""What a message does not have, and why."""
OF_OTHERS = ("InvalidClientHello", "Refused", "TransferFailed", "RuntimeError", "LoadFailed")
"""Errors between our own programs, which reach a user as the cause of another one, if at all."""


def test_the_table_is_of_now() -> None:
    """Each message is in the table: `python -m tests.documentation.messages` writes it anew."""
    assert table() == TABLE.read_text()


@pytest.mark.parametrize("pattern", UNCLEAR)
def test_no_message_is_unclear(pattern: str) -> None:
    """A message says in plain words what is wrong, or what would be right."""
    found = [
        (name, text)
        for name, text in ALL
        if name not in OF_OTHERS and re.search(pattern, re.sub(r"\{.*?\}", "{}", text))
    ]
    assert found == [], UNCLEAR[pattern]


def test_messages_end_alike() -> None:
    """Only a message of several sentences ends with a period, and none with a colon or a space."""
    for name, text in ALL:
        assert not text.endswith((":", " ", ",", ";")), (name, text)
        sentences = ". " in re.sub(r"\{.*?\}", "", text).strip(".")
        assert not text.endswith(".") or sentences, (name, text)


def test_the_check_can_fail() -> None:
    """The rules find what they are for."""
    bad = "Failed to parse at $.language: [^a-z] (errno 5), e.g. foo is invalid"
    assert all(re.search(pattern, bad) for pattern in UNCLEAR)
