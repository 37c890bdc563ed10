"""The console as a surface of the broker."""

from __future__ import annotations

from collections.abc import Sequence

from ..api.routes import Route
from ..supervisor import Supervisor
from .handler import console_routes


class ConsoleSurface:
    """The page for people, its files and its frame."""

    @property
    def routes(self) -> Sequence[Route]:
        """The paths, with their handlers and the handlers' options."""
        return console_routes()

    def start(self, supervisor: Supervisor) -> None:
        """Do nothing: files need no work in the background."""
