"""A tree that is deeper than a path can name, as code in a sandbox makes one."""

from __future__ import annotations

import os
from pathlib import Path


def make_deep_tree(top: Path, depth: int) -> None:
    """Make so many directories "d", each within the one before."""
    directory = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
