"""pip, in a process of its own, that sees what the session has installed, beside what the image has.

    python -I pip_runner.py PREFIX SITE PIP'S ARGUMENTS...

pip removes the old version of what it upgrades only below `sys.prefix`; here that is the session's own
directory, so that it never tries to touch the image. Standard library and pip alone.
"""

from __future__ import annotations

import runpy
import sys

if __name__ == "__main__":
    _, prefix, site, *arguments = sys.argv
    sys.path.append(site)
    sys.prefix = prefix
    sys.argv = ["pip", *arguments]
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
