"""Kernels over HTTP: list, start, get, shut down, interrupt, restart."""

from __future__ import annotations

import uuid

import msgspec
from kernelbroker.protocol.messages import SessionOptions

from ..api.disconnect import Disconnectable
from ..api.other_brokers import items_elsewhere
from ..service.kernels import attached_id
from . import models
from .handler import JupyterApiHandler


class NewKernel(msgspec.Struct):
    """The body of a request for a kernel. What else a client sends has no effect here."""

    name: str | None = None
    env: dict[str, str] = {}


class Kernels(Disconnectable, JupyterApiHandler):
    async def get(self, **_path: str) -> None:
        """List the tenant's sessions as kernels."""
        own = [models.kernel(each, self.links) for each in self.tenant.sessions.list()]
        self.reply([*own, *await items_elsewhere(self.service.cluster, self.request)])

    async def post(self, **_path: str) -> None:
        """Open a session, or attach to the one that the kernelspec names."""
        asked = self.body_as(NewKernel)
        found = models.attachable(self.tenant.sessions.list()).get(asked.name or "")
        if found is not None and asked.name not in self.tenant.pools:
            kernel = models.kernel(found, self.links, attached_id(found.id))
            self.set_header("Location", f"/jupyter/api/kernels/{kernel['id']}")
            self.reply(kernel, 201)
            return
        options = SessionOptions(
            session_id=str(uuid.uuid4()),
            template=models.template_of(asked.name, self.tenant.pools),
            env=asked.env,
        )
        async with self.until_disconnected():  # no client would know the kernel
            session, _ = await self.tenant.sessions.open(options)
            self.set_header("Location", f"/jupyter/api/kernels/{session.id}")
            self.reply(models.kernel(session, self.links), 201)


class OneKernel(JupyterApiHandler):
    async def get(self, kernel_id: str, **_path: str) -> None:
        session = await self.tenant.kernels.find(kernel_id)
        self.reply(models.kernel(session, self.links, kernel_id))

    async def delete(self, kernel_id: str, **_path: str) -> None:
        """Close the session, unless the client has only attached to it."""
        await self.tenant.kernels.shut_down(kernel_id)
        self.set_status(204)


class InterruptKernel(JupyterApiHandler):
    async def post(self, kernel_id: str, **_path: str) -> None:
        session = await self.tenant.kernels.find(kernel_id)
        await self.tenant.kernels.interrupt(session)
        self.set_status(204)


class RestartKernel(JupyterApiHandler):
    async def post(self, kernel_id: str, **_path: str) -> None:
        """Replace the kernel. Its id and the files stay; variables are lost."""
        session = await self.tenant.kernels.find(kernel_id)
        await session.restart()
        self.reply(models.kernel(session, self.links, kernel_id))
