"""Chinese and Japanese text on plots: Droid Sans Fallback (Apache-2.0) stands behind every font.

matplotlib falls back glyph by glyph, but only among the fonts that a style names, and styles
(seaborn's, a user's rcParams) name their own. So the fallback is added where a font is resolved.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

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
"""Fonts that code names for Chinese or Japanese text and that are not there."""


def install() -> None:
    """Make the fallback known to matplotlib; does nothing where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    font_manager: Any = importlib.import_module("matplotlib.font_manager")

    manager = font_manager.fontManager
    manager.addfont(FALLBACK)
    present = {entry.name for entry in manager.ttflist}
    manager.ttflist += [
        font_manager.FontEntry(fname=str(FALLBACK), name=alias)
        for alias in ALIASES
        if alias not in present
    ]
    find_fonts = manager._find_fonts_by_props
    # The fallback has no Latin letters of its own, so where an alias led to it, the default follows.
    last_resorts = [
        font_manager.FontPath(path, 0) for path in (manager.defaultFont["ttf"], str(FALLBACK))
    ]

    def find_fonts_and_fallback(
        prop: Any, fontext: str = "ttf", *args: Any, **kwargs: Any
    ) -> list[Any]:
        found: list[Any] = find_fonts(prop, fontext, *args, **kwargs)
        if fontext != "ttf":
            return found
        return list(dict.fromkeys([*found, *last_resorts]))

    manager._find_fonts_by_props = find_fonts_and_fallback
