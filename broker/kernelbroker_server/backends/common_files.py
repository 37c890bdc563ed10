"""The files of the broker that every sandbox of the `local` backend gets."""

from __future__ import annotations

from pathlib import Path

from . import jail
from .host import Host
from .sandbox_layout import UID


def write(run: Path, host: Host) -> None:
    """Write them below the broker's directory of sockets. Raises OSError."""
    write_etc(run / "etc")
    # Plain processes import the kernel package from here, without the rest of the broker's environment.
    (run / "lib").mkdir(exist_ok=True)
    (run / "lib" / host.package.name).unlink(missing_ok=True)  # an earlier broker's
    (run / "lib" / host.package.name).symlink_to(host.package)


def write_etc(directory: Path, uid: int = UID) -> None:
    """Write the files of `jail.ETC`, with this number of the sandbox's user. Raises OSError."""
    directory.mkdir(exist_ok=True)
    for name, content in jail.ETC.items():
        (directory / name).write_text(content.replace(f":{UID}:", f":{uid}:"))
