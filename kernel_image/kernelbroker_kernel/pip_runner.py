"""pip, in a process of its own, that sees what the session has installed, beside what the image has.

    python -I pip_runner.py SHOWN PREFIX SITE PIP'S ARGUMENTS...

pip removes the old version of what it upgrades only below `sys.prefix`; here that is a copy of the
session's own directory, so that it never tries to touch the image. What it says of the copy, it says of
SHOWN. Standard library and pip alone.
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
