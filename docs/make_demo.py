"""Records the demo on a terminal and draws docs/demo.svg: its lines appear as they came, and then again.

.venv/bin/python docs/make_demo.py
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

DEMO = Path(__file__).with_name("demo.py")
KERNEL_PYTHON = Path(__file__).parents[1] / ".venv-kernel/bin/python"
PICTURE = Path(__file__).with_name("demo.svg")
COLUMNS, ROWS = 104, 30
LAST_STEP = "7."
"""It asks a model, and its code is long: the picture ends before it."""
PAUSE_S, END_S = 1.4, 5.0
"""At least between two steps, and before it begins again."""
LONGEST_WAIT_S = 1.0

_WIDTH, _HEIGHT = 8.45, 19
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_ERROR = re.compile(r"\w+Error: ")
_COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#f0c674", "36": "#79c0ff"}


@contextmanager
def broker() -> Iterator[dict[str, str]]:
    """A broker for the demo, whose log is not on the terminal. Yields the environment that finds it."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "broker.json")
        environ = os.environ | {
            "KERNELBROKER_LOCAL__KERNEL_PYTHON": str(KERNEL_PYTHON),
            "KERNELBROKER_RUNTIME_FILE": str(file),
            "KERNELBROKER_PORT": "0",
        }
        argv = [sys.executable, "-m", "kernelbroker_server"]
        nowhere = subprocess.DEVNULL
        with subprocess.Popen(argv, env=environ, stdout=nowhere, stderr=nowhere) as server:
            while not file.exists():
                assert server.poll() is None, "the broker did not start"
                time.sleep(0.1)
            yield environ
            server.terminate()


def record(environ: dict[str, str]) -> list[tuple[float, str]]:
    """Run the demo on a terminal. Returns its lines, each with the seconds at which it was whole."""
    lines: list[tuple[float, str]] = []
    rest = b""
    began = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, str(DEMO)], environ)
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # the demo has ended
            break
        *whole, rest = (rest + data).split(b"\n")
        now = time.monotonic() - began
        lines += [(now, line.decode().rstrip("\r")) for line in whole]
    _, status = os.waitpid(pid, 0)
    assert status == 0, "\n".join(text for _, text in lines)
    return lines


def shown(lines: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The lines of the picture: without frames of libraries, long waits shortened, a pause before steps."""
    found = [(0.0, "\x1b[1m$ make demo\x1b[0m")]
    before, is_library = lines[0][0], False
    for seconds, text in lines:
        plain = _SGR.sub("", text)
        if plain.startswith(LAST_STEP):
            break
        if is_library := plain.startswith("File /") or (is_library and not _ERROR.match(plain)):
            if found[-1][1] != "      …":
                found.append((found[-1][0], "      …"))
            continue
        is_step = re.match(r"\d\. ", plain) is not None
        wait = min(seconds - before, LONGEST_WAIT_S)
        found.append((found[-1][0] + max(wait, PAUSE_S if is_step else 0.02), text))
        before = seconds
    return found


def drawing(lines: list[tuple[float, str]]) -> str:
    """The picture: a window of `ROWS` lines, which moves up as a terminal does."""
    whole = lines[-1][0] + END_S
    ids = 'role="img" xmlns="http://www.w3.org/2000/svg"'
    width, height = COLUMNS * _WIDTH + 32, ROWS * _HEIGHT + 56
    rules = [
        ".l{visibility:hidden;white-space:pre;animation-iteration-count:infinite;animation-timing-function:step-end}",
        ".s{animation:scroll infinite step-end}",
        f".l,.s{{animation-duration:{whole:.1f}s}}",
        "@media(prefers-reduced-motion:reduce){.l{animation:none!important;visibility:visible}"
        f".s{{animation:none;transform:translateY(-{max(0, len(lines) - ROWS) * _HEIGHT}px)}}}}",
    ]
    texts, moves = [], ["0%{transform:translateY(0)}"]
    for number, (seconds, text) in enumerate(lines):
        share = 100 * seconds / whole
        rules.append(f"@keyframes k{number}{{{share:.2f}%{{visibility:visible}}}}")
        if number >= ROWS:
            moves.append(
                f"{share:.2f}%{{transform:translateY(-{(number - ROWS + 1) * _HEIGHT}px)}}"
            )
        y = (number + 1) * _HEIGHT
        rules.append(f"#l{number}{{animation-name:k{number}}}")
        texts.append(f'<text id="l{number}" class="l" y="{y}">{_spans(text)}</text>')
    # Without it the last keyframes would move back.
    rules.append(f"@keyframes scroll{{{''.join(moves)}100%{{{_transform(moves[-1])}}}}}")
    dots = "".join(
        f'<circle cx="{22 + 18 * number}" cy="20" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return "\n".join(
        [
            f'<svg {ids} viewBox="0 0 {width:.0f} {height}">',
            "<title>make demo: cells of one session, with their output as it comes</title>",
            f"<style>{''.join(rules)}</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="9" fill="#16191f"/>{dots}',
            f'<svg x="16" y="38" width="{width - 32:.0f}" height="{ROWS * _HEIGHT + 6}">',
            '<g class="s" font-family="ui-monospace,DejaVu Sans Mono,Menlo,monospace" font-size="14" '
            'fill="#d7dae0">',
            *texts,
            "</g></svg></svg>\n",
        ]
    )


def _transform(keyframe: str) -> str:
    return keyframe[keyframe.index("{") + 1 : -1]


def _spans(text: str) -> str:
    """A line with its colours as SVG."""
    found, style = "", ""
    for number, part in enumerate(_SGR.split(text)):
        if number % 2:
            codes = part.split(";")
            style = "" if part in ("", "0") else style
            style += "".join(f' fill="{_COLOURS[code]}"' for code in codes if code in _COLOURS)
            style += ' font-weight="bold"' if "1" in codes else ""
            style += ' opacity="0.6"' if "2" in codes else ""
        elif part:
            found += f"<tspan{style}>{escape(part)}</tspan>"
    return found


if __name__ == "__main__":
    with broker() as environ:
        PICTURE.write_text(drawing(shown(record(environ))))
    print(f"wrote {PICTURE}")
