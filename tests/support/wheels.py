"""Wheels made by tests: each has a module, metadata, and any other files of the test."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    requires: tuple[str, ...] = (),
    files: Mapping[str, str | bytes] | None = None,
    record: tuple[str, ...] = (),
) -> Path:
    """A wheel of one module of the package's name, with the version as `VERSION`.

    Args:
        files: more of them, by the names that they have in the archive.
        record: what the RECORD claims to have installed besides.
    """
    info = f"{name}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {requirement}" for requirement in requires),
    ]
    contents: dict[str, str | bytes] = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": "\n".join([*metadata, ""]),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(files or {}),
    }
    contents[f"{info}/RECORD"] = "".join(
        f"{path},,\n" for path in [*contents, f"{info}/RECORD", *record]
    )
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for inside, content in contents.items():
            wheel.writestr(inside, content)
    path.chmod(0o644)
    return path
