"""Text that a person decides on."""

from __future__ import annotations

import pytest
from kernelbroker.protocol.visible import visible

HIDDEN = {
    "an override of the order": ("a\u202eb", "a⟨U+202E⟩b"),
    "an isolate": ("\u2066x\u2069", "⟨U+2066⟩x⟨U+2069⟩"),
    "no width": ("pass\u200bword", "pass⟨U+200B⟩word"),
    "an escape": ("\x1b[2K", "⟨U+001B⟩[2K"),
    "back to the start of the line": ("safe()\rrm()", "safe()⟨U+000D⟩rm()"),
    "a byte order mark": ("\ufeffx", "⟨U+FEFF⟩x"),
    "a tag": ("\U000e0041", "⟨U+E0041⟩"),
    "a line that is no line for Python": ("a\u2028b", "a⟨U+2028⟩b"),
    "a letter without a form": ("\u3164 = 1", "⟨U+3164⟩ = 1"),
    "a beam of music": ("\U0001d173", "⟨U+1D173⟩"),
    "half a character": ("\ud800", "⟨U+D800⟩"),
    "delete": ("\x7f\x85", "⟨U+007F⟩⟨U+0085⟩"),
}


@pytest.mark.parametrize(("text", "shown"), HIDDEN.values(), ids=HIDDEN)
def test_what_hides_or_reorders_is_shown(text: str, shown: str) -> None:
    """Each such character is shown as what it is."""
    assert visible(text) == shown


@pytest.mark.parametrize("text", ["if x:\r\n\ty = 'é 漢字 עברית 😀'\n", "", "résumé ∑"])
def test_the_rest_stays(text: str) -> None:
    """Letters of all scripts, tabs and lines stay."""
    assert visible(text) == text
