"""The wheel of the SDK, made from what is installed: for users whom no package index serves.

A wheel is a zip file with the files of the package, its metadata, and a list of both:
https://packaging.python.org/en/latest/specifications/binary-distribution-format/
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, distribution
from importlib.resources import files
from pathlib import Path

NAME = "kernelbroker"
_METADATA = ("METADATA", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
_WHEEL = "Wheel-Version: 1.0\nGenerator: kernelbroker\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_MADE_AT = (1980, 1, 1, 0, 0, 0)  # so that the same package makes the same wheel


def file_name() -> str:
    return f"{_stem(distribution(NAME))}-py3-none-any.whl"


@cache
def wheel() -> bytes:
    """The file. Blocks for the time of compressing it once."""
    installed = distribution(NAME)
    information = f"{_stem(installed)}.dist-info"
    packed, records = io.BytesIO(), []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(name, _MADE_AT)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            records.append(f"{name},sha256={digest},{len(data)}\n")

        for name, path in _sources():
            add(name, path.read_bytes())
        for name in _METADATA:
            if (text := installed.read_text(name)) is not None:
                add(f"{information}/{name}", text.encode())
        add(f"{information}/WHEEL", _WHEEL.encode())
        record = f"{information}/RECORD"
        archive.writestr(zipfile.ZipInfo(record, _MADE_AT), "".join([*records, f"{record},,\n"]))
    return packed.getvalue()


def _stem(installed: Distribution) -> str:
    return f"{NAME}-{installed.version}"


def _sources() -> Iterator[tuple[str, Path]]:
    """The files of the package, with their names in the wheel."""
    package = Path(str(files(NAME)))
    for path in sorted(package.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{NAME}/{path.relative_to(package).as_posix()}", path
