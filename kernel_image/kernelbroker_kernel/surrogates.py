"""Text that every reader of JSON takes: without lone surrogates, which Python and JavaScript can have."""

from __future__ import annotations

import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")


def well_formed(value: Any) -> Any:
    """The value of JSON, with U+FFFD in the places of lone surrogates, also in the names of fields."""
    match value:
        case str():
            return _LONE.sub("\ufffd", value)
        case dict():
            return {well_formed(name): well_formed(each) for name, each in value.items()}
        case list() | tuple():
            return [well_formed(each) for each in value]
    return value
