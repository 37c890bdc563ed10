"""Paths and users, as E2B's programs name them.

The workspace is their home directory. Other absolute paths are those of the sandbox's own file system.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
from typing import NamedTuple

from kernelbroker.protocol.errors import BadRequest
from kernelbroker_kernel.contract import HOME_OF_E2B, WORKSPACE, WORKSPACE_PATHS

_USERS = frozenset({"", "user", "sandbox"})


class Place(NamedTuple):
    """A place in a sandbox.

    Attributes:
        path: relative to the workspace, or with `system` to the root of the sandbox's own file system.
        root: what precedes `path` in an absolute path.
    """

    path: str
    system: bool
    root: str

    @property
    def absolute(self) -> str:
        return posixpath.join(self.root, self.path) if self.path else self.root

    @property
    def name(self) -> str:
        return posixpath.basename(self.absolute)

    def shown(self, path: str) -> str:
        """Return a path that the sandbox has reported, as the client named its directory."""
        return path if self.system else posixpath.join(self.root, path)

    def shown_target(self, target: str) -> str:
        """Return where a link leads, as the client named its directory."""
        inside = target == WORKSPACE or target.startswith(f"{WORKSPACE}/")
        return target if self.system or not inside else self.root + target.removeprefix(WORKSPACE)


def place_of(path: str) -> Place:
    """Return the place of a path. A relative one begins at home. Raises BadRequest."""
    if "\0" in path:
        raise BadRequest("a path has no NUL in it")
    if path == "~" or path.startswith("~/"):
        path = f".{path[1:]}"
    absolute = posixpath.normpath(posixpath.join(HOME_OF_E2B, path))
    absolute = f"/{absolute.lstrip('/')}"  # normpath keeps two leading slashes
    for root in WORKSPACE_PATHS:
        if absolute == root or absolute.startswith(f"{root}/"):
            return Place(absolute[len(root) + 1 :], system=False, root=root)
    return Place(absolute[1:], system=True, root="/")


def user_of(authorization: str) -> str:
    """Return the user that an RPC names by Basic authentication; "" if none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError):
        raise BadRequest(
            "the Authorization header must be 'Basic' and the base64 of 'USER:'"
        ) from None


def check_user(user: str) -> None:
    """Raise BadRequest unless the sandbox has this user."""
    if user not in _USERS:
        raise BadRequest(
            f"a sandbox has one user, without the rights of root: leave user={user!r} out, or name 'user'"
        )
