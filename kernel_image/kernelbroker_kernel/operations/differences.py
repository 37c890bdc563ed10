"""The diff of an edit, and the text that is nearest to one that was not found."""

from __future__ import annotations

import time
from difflib import SequenceMatcher

_CONTEXT = 3
_MAX_LINES = 5_000
"""Of the changed part, on both sides. A larger one is shown as replaced as a whole."""
_MAX_CHARS = 256 * 1024
_MAX_WINDOWS = 20_000
_NEAREST_S = 1.0
"""For finding the nearest text."""


def unified(path: str, before: str, after: str, *, is_new: bool = False) -> str:
    """The unified diff, for `git apply`; cut if it is very long."""
    old, new = _lines(before), _lines(after)
    if old == new:
        return ""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    skip = max(0, start - _CONTEXT)
    stop = max(0, end - _CONTEXT)
    a, b = old[skip : len(old) - stop], new[skip : len(new) - stop]
    name = '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    quoted = path if path.isprintable() and '"' not in path else ""
    source = "/dev/null" if is_new else (f"a/{quoted}" if quoted else f'"a/{name[1:]}')
    target = f"b/{quoted}" if quoted else f'"b/{name[1:]}'
    lines = [f"--- {source}\n", f"+++ {target}\n"]
    for group in _groups(a, b, start - skip, end - stop):
        first, last = group[0], group[-1]
        lines.append(
            f"@@ -{_range(first[1] + skip, last[2] + skip)} +{_range(first[3] + skip, last[4] + skip)} @@\n"
        )
        for tag, i, j, k, m in group:
            if tag == "equal":
                lines += [_line(" ", each) for each in a[i:j]]
                continue
            lines += [_line("-", each) for each in a[i:j]]
            lines += [_line("+", each) for each in b[k:m]]
    text = "".join(lines)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}\n[the diff is longer]\n"


def nearest(text: str, wanted: str) -> str:
    """The lines that resemble the wanted ones most, with their numbers; empty if none do."""
    lines, size = text.splitlines(), max(1, len(wanted.splitlines()))
    matcher = SequenceMatcher(b=wanted[:2_000], autojunk=False)
    best, best_ratio = -1, 0.4
    deadline = time.monotonic() + _NEAREST_S
    for number in range(min(max(1, len(lines) - size + 1), _MAX_WINDOWS)):
        matcher.set_seq1("\n".join(lines[number : number + size])[:2_000])
        if time.monotonic() > deadline:
            break
        if (
            matcher.real_quick_ratio() > best_ratio
            and matcher.quick_ratio() > best_ratio
            and (ratio := matcher.ratio()) > best_ratio
        ):
            best, best_ratio = number, ratio
    if best < 0:
        return ""
    found = lines[best : best + min(size, 40)]
    return "\n".join(f"{best + 1 + place:6d}\t{line[:500]}" for place, line in enumerate(found))


def _lines(text: str) -> list[str]:
    """The lines with their ends. Only a newline ends one, as for git."""
    *whole, rest = text.split("\n")
    return [*(f"{line}\n" for line in whole), *([rest] if rest else [])]


_Opcode = tuple[str, int, int, int, int]


def _groups(a: list[str], b: list[str], head: int, tail: int) -> list[list[_Opcode]]:
    if max(len(a), len(b)) <= _MAX_LINES:
        matcher = SequenceMatcher(None, a, b, autojunk=True)
        return [[*group] for group in matcher.get_grouped_opcodes(_CONTEXT)]
    m, n = len(a), len(b)
    return [
        [
            ("equal", 0, head, 0, head),
            ("replace", head, m - tail, head, n - tail),
            ("equal", m - tail, m, n - tail, n),
        ]
    ]


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + bool(length)},{length}"


def _line(sign: str, line: str) -> str:
    return (
        f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
    )
