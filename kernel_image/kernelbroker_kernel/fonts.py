"""Chinese and Japanese text on plots: the fallback font is Droid Sans Fallback (Apache-2.0)."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from .compat import warn
from .compat.fonts import add_last_resort

FALLBACK = Path(__file__).parent / "fonts" / "DroidSansFallbackFull.ttf"

ALIASES = (
    "Arial Unicode MS",
    "Heiti SC",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans CJK TC",
    "PingFang SC",
    "SimHei",
    "SimSun",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
)
"""Fonts that code names for Chinese or Japanese text. The fallback answers to these names, too."""


def install() -> None:
    """Make the fallback known to matplotlib, if matplotlib is installed. Never raises."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    try:
        if _add_font():
            add_last_resort(FALLBACK)
    except Exception as error:  # of another version of matplotlib
        warn(f"Chinese and Japanese text has no font: {type(error).__name__}: {error}")


def _add_font() -> bool:
    """Add the font. Returns whether it was not there yet."""
    font_manager: Any = importlib.import_module("matplotlib.font_manager")
    manager = font_manager.fontManager
    if any(entry.fname == str(FALLBACK) for entry in manager.ttflist):
        return False
    manager.addfont(FALLBACK)
    present = {entry.name for entry in manager.ttflist}
    manager.ttflist += [
        font_manager.FontEntry(fname=str(FALLBACK), name=alias)
        for alias in ALIASES
        if alias not in present
    ]
    return True
