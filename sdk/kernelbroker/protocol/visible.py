"""Text as a person sees it who has to decide on it: nothing hidden, nothing reordered."""

from __future__ import annotations

import re
import unicodedata

_KEPT = {0x09, 0x0A, 0x0D}  # tabs and ends of lines
_CHARACTERS = "".join(
    chr(code)
    for code in [*range(0x3000), *range(0xFE00, 0x10000), *range(0xE0000, 0xE0080)]
    if code not in _KEPT and unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")
)
_FILLERS = "\u115f\u1160\u3164\uffa0"  # of Hangul: letters without a form
_HIDDEN = re.compile(rf"[{re.escape(_CHARACTERS)}{_FILLERS}]|\r(?!\n)")


def visible(text: str) -> str:
    """The text with control, format and bidirectional characters as ⟨U+202E⟩.

    Such characters hide code, or show it in another order than it has (CVE-2021-42574).
    """
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)
