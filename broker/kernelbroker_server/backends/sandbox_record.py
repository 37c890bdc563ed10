"""What the next broker must know of a sandbox to adopt it: a file beside the sandbox's workspace.

No sandbox sees the file. Each change is on the disk before the sandbox is used for what it says.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import msgspec
from kernelbroker.protocol.codec import decode_json

from .added_field import ADDED
from .base import LaunchError, SandboxSpec

_NAME = "record.json"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_WORKSPACE_FILES = 100_000


class ProcessId(msgspec.Struct, frozen=True):
    """A process; its pid may be used again, but not with the same start time (clock ticks since boot)."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Raises OSError if there is no such process."""
        # The process name may contain spaces and parentheses, so parse what follows it (proc(5)).
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return cls(pid, int(fields[19]))

    @property
    def lives(self) -> bool:
        try:
            return ProcessId.of(self.pid) == self
        except OSError:
            return False


class SandboxRecord(msgspec.Struct, kw_only=True):
    """The content of the file.

    Attributes:
        boot: the boot of the machine in which the pids are valid.
        spec: the digest of the spec.
        leader: the first process of its jail; None for a container, which its labels identify.
        gateway: the gateway, if it is forked and therefore no descendant of the leader.
        grace: seconds that it lives without a broker.
        kernel_id: of its kernel; None until it is warm.
        session: the key of the session that has it or gets it; None while nobody had it.
        is_ready: the session has all of it: its files, its environment.
    """

    boot: str
    spec: str
    leader: ProcessId | None = None
    gateway: ProcessId | None = None
    host_uid: int | None = None
    grace: float
    kernel_id: str | None = None
    session: str | None = None
    is_ready: bool = False

    def remember(
        self, directory: Path, kernel_id: str | None, session: str | None, is_ready: bool
    ) -> None:
        """Change what `Sandbox.remember` gives, on the disk as well. Raises LaunchError."""
        self.kernel_id = kernel_id or self.kernel_id
        self.session = self.session if session is None else session
        self.is_ready = is_ready or self.is_ready
        try:
            self.write(directory)
        except OSError as error:
            raise LaunchError(f"the sandbox's record cannot be written: {error}") from error

    def write(self, directory: Path) -> None:
        """Replace the file in the sandbox's directory. Raises OSError."""
        new = directory / f"{_NAME}.new"
        new.touch(0o600)
        new.write_bytes(msgspec.json.encode(self))
        new.replace(directory / _NAME)


def read(directory: Path) -> SandboxRecord | None:
    """Return the record of the sandbox with this directory; None if there is none of this version."""
    try:
        return decode_json((directory / _NAME).read_bytes(), SandboxRecord)
    except (OSError, msgspec.DecodeError):
        return None


def digest(spec: SandboxSpec, *launched_by: str) -> str:
    """Two sandboxes of the same template and settings have the same digest.

    Args:
        launched_by: settings of the backend on which a launch depends.
    """
    # The broker alone enforces this limit: it makes no other sandbox. 0.1.0 had it here, with its default.
    limits = dataclasses.replace(spec.limits, workspace_files=_WORKSPACE_FILES)
    texts = [_text(dataclasses.replace(spec, limits=limits)), *map(repr, launched_by)]
    comma = "," if len(texts) == 1 else ""  # as in the representation of a tuple, which 0.1.0 used
    return hashlib.sha256(f"({', '.join(texts)}{comma})".encode()).hexdigest()


def _text(spec: SandboxSpec) -> str:
    """The representation of a spec, without added fields that have their defaults."""
    shown = [
        f"{each.name}={getattr(spec, each.name)!r}"
        for each in dataclasses.fields(spec)
        if each.repr and not (each.metadata == ADDED and getattr(spec, each.name) == each.default)
    ]
    return f"{type(spec).__qualname__}({', '.join(shown)})"


def boot_id() -> str:
    return _BOOT_ID.read_text().strip()
