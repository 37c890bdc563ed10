"""Chinese, Japanese, Korean and Hindi text on plots: fonts that are used for glyphs which others lack.

Droid Sans Fallback (Apache-2.0) has Chinese and Japanese, a part of NanumGothic (OFL-1.1) Hangul, and a
part of Noto Sans Devanagari (OFL-1.1) the script of Hindi.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

from .compat import warn
from .compat.fonts import add_last_resorts

_DIRECTORY = Path(__file__).parent / "fonts"
FALLBACKS = {
    _DIRECTORY / "DroidSansFallbackFull.ttf": (
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
    ),
    _DIRECTORY / "Hangul.ttf": (
        "AppleGothic",
        "Malgun Gothic",
        "NanumBarunGothic",
        "NanumGothic",
        "Noto Sans CJK KR",
        "Noto Sans KR",
    ),
    _DIRECTORY / "NotoSansDevanagari-Regular.ttf": ("Kohinoor Devanagari", "Mangal", "Nirmala UI"),
}
"""Files of fonts, and fonts that code names for their scripts. A file answers to these names, too."""


def install() -> None:
    """Make the fonts known to matplotlib, if matplotlib is installed. Never raises."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    try:
        if _add_fonts():
            add_last_resorts(FALLBACKS)
    except Exception as error:  # of another version of matplotlib
        warn(f"some scripts have no font: {type(error).__name__}: {error}")


def _add_fonts() -> bool:
    """Add the fonts. Returns whether they were not there yet."""
    font_manager: Any = importlib.import_module("matplotlib.font_manager")
    manager = font_manager.fontManager
    present = {entry.name for entry in manager.ttflist}
    files = {entry.fname for entry in manager.ttflist}
    if all(str(font) in files for font in FALLBACKS):
        return False
    for font, aliases in FALLBACKS.items():
        manager.addfont(font)
        manager.ttflist += [
            font_manager.FontEntry(fname=str(font), name=alias)
            for alias in aliases
            if alias not in present
        ]
    return True
