"""What may follow at a place in code: names, attributes and keys, as the kernel's objects have them."""

from __future__ import annotations

from typing import Any

from .errors import Refused
from .time_limit import TimeIsUp, time_limit

MAX_MATCHES = 200
MAX_CODE_CHARS = 100_000
MAX_S = 2.0
"""The time for it, which may run code of the user's classes."""
_MATCH_CHARS = 256


def complete(shell: Any, code: Any, cursor_pos: Any) -> dict[str, Any]:
    """Return `matches` and the part of the code that they replace, in characters.

    Args:
        cursor_pos: in characters from the beginning of the code.

    Raises:
        Refused: the arguments are invalid.
    """
    if not isinstance(code, str) or type(cursor_pos) is not int or len(code) > MAX_CODE_CHARS:
        raise Refused("bad_request", "the code or the cursor's position is invalid")
    place = max(0, min(cursor_pos, len(code)))
    try:
        with time_limit(MAX_S):
            found, start, end = _matches(shell, code, place)
    except TimeIsUp:
        found, start, end = [], place, place
    except Exception:  # of a library, or of a user's class
        found, start, end = [], place, place
    return {"matches": found, "cursor_start": start, "cursor_end": end}


def _matches(shell: Any, code: str, place: int) -> tuple[list[str], int, int]:
    from IPython.core.completer import provisionalcompleter, rectify_completions

    completer = shell.Completer
    uses_jedi, completer.use_jedi = (
        completer.use_jedi,
        False,
    )  # it reads packages, which takes seconds
    try:
        with provisionalcompleter():
            found = list(rectify_completions(code, completer.completions(code, place)))
    finally:
        completer.use_jedi = uses_jedi
    if not found:
        return [], place, place
    texts = list(dict.fromkeys(each.text for each in found if len(each.text) <= _MATCH_CHARS))
    start, end = found[0].start, found[0].end
    if all(each.startswith(".") for each in texts):  # of attributes; the dot is there already
        texts, start = [each[1:] for each in texts], start + 1
    return texts[:MAX_MATCHES], start, end
