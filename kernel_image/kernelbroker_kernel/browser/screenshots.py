"""Pictures of the current window."""

from __future__ import annotations

import asyncio
import base64

from playwright.async_api import Error

from .chromium import Chromium

_MAX_BYTES = 3 * 1024**2
"""Of a picture, so that it fits into an event."""
_MAX_PIXELS = 12_000
"""Of the height of a whole page."""
_SMALL_S, _WHOLE_S = 3.0, 30.0
_QUALITY = 60


async def picture_of(
    chromium: Chromium, *, full_page: bool = False, small: bool = False
) -> dict[str, str] | None:
    """Return ``{"mime", "data"}``; None if the page shows nothing in time.

    Args:
        full_page: all of the page, up to a height; otherwise what the window shows.
        small: as a JPEG, for the record of an action.
    """
    page = chromium.page
    try:
        async with asyncio.timeout(_SMALL_S if small else _WHOLE_S):
            if small:
                data = await page.screenshot(type="jpeg", quality=_QUALITY)
                return _encoded("image/jpeg", data)
            clip = None
            if full_page:
                width, height = await page.evaluate(
                    "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
                )
                clip = {
                    "x": 0.0,
                    "y": 0.0,
                    "width": float(max(1, min(width, _MAX_PIXELS))),
                    "height": float(max(1, min(height, _MAX_PIXELS))),
                }
            data = await page.screenshot(full_page=full_page, clip=clip)  # type: ignore[arg-type]
            if len(data) <= _MAX_BYTES:
                return _encoded("image/png", data)
            data = await page.screenshot(
                type="jpeg",
                quality=_QUALITY,
                full_page=full_page,
                clip=clip,  # type: ignore[arg-type]
            )
            return _encoded("image/jpeg", data) if len(data) <= _MAX_BYTES else None
    except (Error, TimeoutError):
        return None


def _encoded(mime: str, data: bytes) -> dict[str, str]:
    return {"mime": mime, "data": base64.b64encode(data).decode()}
