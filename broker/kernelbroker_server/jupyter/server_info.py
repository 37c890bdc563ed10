"""What Jupyter's clients ask of a server itself: its version, status, user and kernelspecs."""

from __future__ import annotations

import time

from kernelbroker.protocol.errors import MethodNotAllowed, NotFound

from . import models
from .handler import JupyterApiHandler

_VERSION = "2.21.1"
"""Of the Jupyter server whose REST API this is."""


class Version(JupyterApiHandler):
    requires_token = False

    def get(self, **_path: str) -> None:
        self.reply({"version": _VERSION})


class Status(JupyterApiHandler):
    def get(self, **_path: str) -> None:
        sessions = self.tenant.sessions.list()
        started = time.time() - (time.monotonic() - self.service.started_at)
        self.reply(
            {
                "started": models.utc_text(started),
                "last_activity": models.utc_text(
                    max((s.active_at for s in sessions), default=started)
                ),
                "connections": sum(self.links.connections(each) for each in sessions),
                "kernels": len(sessions),
            }
        )


class Me(JupyterApiHandler):
    def get(self, **_path: str) -> None:
        """Tell who the token belongs to."""
        name = self.tenant.name
        identity = {
            "username": name,
            "name": name,
            "display_name": name,
            "initials": name[:2].upper(),
            "avatar_url": None,
            "color": None,
        }
        self.reply({"identity": identity, "permissions": {}})


class KernelSpecs(JupyterApiHandler):
    def get(self, **_path: str) -> None:
        """List the templates that the tenant may use, and the sessions that can be attached to."""
        named = models.kernelspecs(self.tenant.pools, self.tenant.sessions.list())
        default = models.DEFAULT_SPEC if models.DEFAULT_SPEC in named else next(iter(named), "")
        self.reply({"default": default, "kernelspecs": named})


class OneKernelSpec(JupyterApiHandler):
    def get(self, spec: str, **_path: str) -> None:
        named = models.kernelspecs(self.tenant.pools, self.tenant.sessions.list())
        if spec not in named:
            raise NotFound(f"there is no kernel {spec!r}; there are: {', '.join(sorted(named))}")
        self.reply(named[spec])


class Contents(JupyterApiHandler):
    """No files: those of a session belong to it, and clients that need some have their own."""

    def get(self, **_path: str) -> None:
        now = models.utc_text(time.time())
        self.reply(
            {
                "name": "",
                "path": "",
                "type": "directory",
                "writable": False,
                "created": now,
                "last_modified": now,
                "mimetype": None,
                "content": [],
                "format": "json",
                "size": None,
                "hash": None,
                "hash_algorithm": None,
            }
        )

    def _refuse(self, **_path: str) -> None:
        raise MethodNotAllowed("this server has kernels and no files of its own")

    post = put = patch = delete = _refuse
