"""Runs pip in a separate process, which sees the session's packages beside those of the image.

    python -I pip_runner.py SHOWN PREFIX SITE PIP'S ARGUMENTS...

pip removes the old version of an upgraded package only below `sys.prefix`. Here that is a copy of the
session's directory, so that pip never touches the image. Its output names SHOWN in place of the copy.
Only the standard library and pip are used.
"""

from __future__ import annotations

import io
import runpy
import sys


class Output(io.TextIOWrapper):
    def write(self, text: str) -> int:
        return super().write(text.replace(prefix.removeprefix(shown), ""))  # also in relative paths


if __name__ == "__main__":
    _, shown, prefix, site, *arguments = sys.argv
    sys.path.append(site)
    sys.prefix = prefix
    sys.argv = ["pip", *arguments]
    for name in ("stdout", "stderr"):
        plain = getattr(sys, name)
        own = Output(plain.detach(), plain.encoding, plain.errors, line_buffering=True)
        setattr(sys, name, own)
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
