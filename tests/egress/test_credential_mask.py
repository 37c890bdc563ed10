"""Credentials in answers: no cut between two pieces shows one, and nothing else is changed."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.egress.credential_mask import CredentialMask

SECRETS = [b"abababcab", b"abababcab-and-more", b"cabcabcabc"]
texts = st.lists(
    st.one_of(st.sampled_from(SECRETS), st.text("abc-", max_size=12).map(str.encode)), max_size=8
).map(b"".join)


@given(texts, st.lists(st.integers(0, 80), max_size=8))
def test_pieces_give_what_the_whole_gives(text: bytes, cuts: list[int]) -> None:
    """However a body is cut, no credential is in what comes out, whose length is that of the body."""
    mask = CredentialMask(SECRETS)
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(bounds)]
    found = b"".join([*map(mask.piece, pieces), mask.rest()])
    assert len(found) == len(text)
    assert not [secret for secret in SECRETS if secret in found]
    assert all(a == b for a, b in zip(text, found, strict=True) if b != ord("*"))
    if not any(secret in text for secret in SECRETS):
        assert found == text


def test_what_cannot_be_a_credential_is_sent_at_once() -> None:
    """A stream of events is not delayed, except for an end that a credential begins with."""
    mask = CredentialMask([b"sk-secret-of-the-broker"])
    assert mask.piece(b"data: hello\n\n") == b"data: hello\n\n"
    assert mask.piece(b"data: sk-sec") == b"data: "
    assert mask.piece(b"ond\n") == b"sk-second\n"
    assert (mask.piece(b"sk"), mask.rest()) == (b"", b"sk")


def test_short_texts_are_left() -> None:
    """A credential of a few characters would be found everywhere."""
    mask = CredentialMask([b"a1"])
    assert mask.piece(b"a1 a1") == b"a1 a1"
