"""Slow imports that libraries try and can do without, and that nothing here needs.

`with left_out(*names):` makes them fail like those of packages that are not installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FORMATS = (
    *("fqdn", "isoduration", "jsonpointer", "rfc3339_validator", "rfc3986_validator"),
    *("rfc3987_syntax", "uri_template", "webcolors"),
)
"""With these jsonschema checks formats of text, such as IRIs, which no schema of the gateway needs. The
largest of them compiles a grammar at import, which takes two thirds of the gateway's start."""

DEBUGGER = ("debugpy",)
"""The kernel imports it to serve a debugger's requests, which the broker never sends."""


@contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Let the import of these modules fail in the block, unless they have been imported before."""
    modules: dict[str, Any] = sys.modules
    added = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(added))
    try:
        yield
    finally:
        for name in added:
            modules.pop(name, None)
