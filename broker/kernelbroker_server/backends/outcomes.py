"""How launches and sandboxes end."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class EndCause(enum.StrEnum):
    OUT_OF_MEMORY = "out_of_memory"
    KERNEL_DIED = "kernel_died"
    SANDBOX_LOST = "sandbox_lost"


@dataclass(frozen=True, slots=True)
class SandboxEnd:
    """How a sandbox ended by itself.

    Attributes:
        detail: one line for people.
        last_line: the end of its output, if `detail` does not have it, for messages to the operator of the
            broker. If user code has run, it may have written this line.
    """

    cause: EndCause
    detail: str
    last_line: str = ""


class LaunchError(Exception):
    """A sandbox could not be launched; the message says what to look at."""


class BackendUnavailable(Exception):
    """The backend does not work on this machine; the message says what is missing."""
