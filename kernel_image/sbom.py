"""Writes the list of an image's content, in the format CycloneDX 1.6. Runs in the build of the image.

    python sbom.py NAME VERSION FILE

The packages of Debian, those of this Python's environment and those of npm are in one list, which no
single tool makes. It has no time and no random number, so that the same content gives the same file.
Standard library only: nothing is left in the image.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

NODE_MODULES = (
    Path("/opt/coding-agent/node_modules"),
    Path("/opt/kernelbroker/env/lib/node_modules"),
)


def main() -> None:
    name, version, target = sys.argv[1:]
    found = [*debian(), *python(), *npm(), *node()]
    components = {each["bom-ref"]: each for each in found}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "container", "bom-ref": name, "name": name, "version": version}
        },
        "components": [components[key] for key in sorted(components)],
    }
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{target}: {len(components)} components")


def component(kind: str, name: str, version: str, license: str | None = None) -> dict[str, Any]:
    """One entry.

    Args:
        kind: the type of its package URL, and for Debian its vendor.
        name: with the scope, if it has one.
        license: an SPDX expression, or any other text.
    """
    purl = f"pkg:{kind}/{quote(name, safe='/')}@{quote(version, safe='')}"
    entry: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if license:
        entry["licenses"] = [{"license": {"name": license}}]
    return entry


def debian() -> Iterator[dict[str, Any]]:
    argv = ["dpkg-query", "--show", "--showformat", "${Package}\t${Version}\n"]
    listed = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        name, version = line.split("\t")
        yield component("deb/debian", name, version)


def python() -> Iterator[dict[str, Any]]:
    for each in metadata.distributions():
        name, version = each.metadata["Name"], each.version
        text = each.metadata.get("License-Expression") or each.metadata.get("License") or ""
        license = text.splitlines()[0][:100] if text else None
        yield component("pypi", name.lower().replace("_", "-"), version, license)


def npm() -> Iterator[dict[str, Any]]:
    for directory in NODE_MODULES:
        for path in directory.rglob("package.json"):
            # Only a package's own file: `node_modules/NAME` or `node_modules/@SCOPE/NAME`.
            parent = path.parent.parent
            if "node_modules" not in (
                parent.name,
                parent.parent.name if parent.name[:1] == "@" else "",
            ):
                continue
            described = json.loads(path.read_text())
            name, version = described.get("name"), described.get("version")
            if isinstance(name, str) and isinstance(version, str):
                license = described.get("license")
                yield component("npm", name, version, license if isinstance(license, str) else None)


def node() -> Iterator[dict[str, Any]]:
    """The program `node`, which is taken out of a wheel."""
    program = Path("/opt/kernelbroker/env/bin/node")
    if program.exists():
        shown = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
        yield component("generic", "node", shown.stdout.strip().removeprefix("v"), "MIT")


if __name__ == "__main__":
    main()
