"""Text as a person sees it who has to decide on it: nothing hidden, nothing reordered."""

from __future__ import annotations

import re
import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that are not seen, or that change the order of others."""
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters of Hangul without a form."""
_KEPT = frozenset("\t\n\r")


def visible(text: str) -> str:
    """The text with control, format and bidirectional characters as ⟨U+202E⟩.

    Such characters hide code, or show it in another order than it has (CVE-2021-42574).
    """
    shown = {
        ord(each): f"⟨U+{ord(each):04X}⟩"
        for each in set(text) - _KEPT
        if each in _FILLERS or unicodedata.category(each) in _HIDDEN
    }
    return re.sub(r"\r(?!\n)", "⟨U+000D⟩", text).translate(shown)
