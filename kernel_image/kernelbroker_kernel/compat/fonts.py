"""Adds fallback fonts behind every font that matplotlib finds.

matplotlib falls back glyph by glyph, but only among the fonts that a style names, and styles (seaborn's,
a user's rcParams) name other ones. So they are added where matplotlib resolves a font.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import missing, warn


def add_last_resorts(fonts: Iterable[Path]) -> None:
    """Make matplotlib look for a glyph in its default font and in these after all others."""
    font_manager: Any = importlib.import_module("matplotlib.font_manager")
    if missing(font_manager.FontManager, "_find_fonts_by_props"):
        warn("matplotlib is not supported: some glyphs have no font")
        return
    manager = font_manager.fontManager
    find_fonts = manager._find_fonts_by_props
    # The fallbacks have no Latin letters, so the default font comes before them.
    paths = (manager.defaultFont["ttf"], *map(str, fonts))
    last_resorts = [font_manager.FontPath(path, 0) for path in paths]

    def find_fonts_and_last_resorts(
        prop: Any, fontext: str = "ttf", *args: Any, **kwargs: Any
    ) -> list[Any]:
        found: list[Any] = find_fonts(prop, fontext, *args, **kwargs)
        if fontext != "ttf":
            return found
        return list(dict.fromkeys([*found, *last_resorts]))

    manager._find_fonts_by_props = find_fonts_and_last_resorts
