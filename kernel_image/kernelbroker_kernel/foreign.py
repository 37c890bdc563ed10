"""How a cell in another language fails: by the names and words of its own, without Python's frames."""

from __future__ import annotations


class ForeignError(Exception):
    """Shown as `name: message`; `trace` is what stands on standard error, if there is more to say."""

    def __init__(self, name: str, message: str, trace: str = "") -> None:
        super().__init__(message)
        # IPython tells an error's name by its class.
        self.__class__ = type(name if name.isidentifier() else "Error", (ForeignError,), {})
        self._trace = trace or f"{name}: {message}"

    def _render_traceback_(self) -> list[str]:
        return self._trace.splitlines()


class Interrupted(KeyboardInterrupt):
    def _render_traceback_(self) -> list[str]:
        return [KeyboardInterrupt.__name__]


Interrupted.__name__ = KeyboardInterrupt.__name__
