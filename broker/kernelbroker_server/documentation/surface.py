"""The documentation as a surface of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..api.routes import Route
from ..supervisor import Supervisor
from .handler import documentation_routes

SITE = Path(__file__).parent / "site"


class DocumentationSurface:
    """The pages of the documentation, with their pictures, styles and search index."""

    def __init__(self, site: Path = SITE) -> None:
        self._site = site

    @property
    def routes(self) -> Sequence[Route]:
        """The paths, with their handlers and the handlers' options."""
        return documentation_routes(self._site)

    def start(self, supervisor: Supervisor) -> None:
        """Do nothing: files need no work in the background."""
