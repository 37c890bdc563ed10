"""Kernels over HTTP: list, start, get, shut down, interrupt, restart."""

from __future__ import annotations

import contextlib

import msgspec
from kernelbroker.protocol.errors import BadRequest, NotFound, SessionGone
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import WORKSPACE

from ..api.disconnect import Disconnectable
from ..api.other_brokers import items_elsewhere
from ..service import files
from ..service.kernels import attached_id, new_kernel_id
from . import models
from .handler import JupyterApiHandler


class NewKernel(msgspec.Struct):
    """The body of a request for a kernel. What else a client sends has no effect here."""

    name: str | None = None
    env: dict[str, str] = {}
    kernel_id: str | None = None


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
            session_id=new_kernel_id(asked.kernel_id),
            template=models.template_of(asked.name, self.tenant.pools),
            env=asked.env,
        )
        async with self.until_disconnected():  # no client would know the kernel
            session, _ = await self.tenant.sessions.open(options)
            self.set_header("Location", f"/jupyter/api/kernels/{session.id}")
            self.reply(models.kernel(session, self.links), 201)


class ResolvePath(JupyterApiHandler):
    """Resolves a path that a kernel shows, for example in a traceback, to a file of its session."""

    async def get(self, **_path: str) -> None:
        path, asked = self.get_query_argument("path"), self.get_query_argument("kernel", "")
        answer: dict[str, list[dict[str, str]]] = {"resolved": []}
        try:
            session = await self.tenant.kernels.find(asked) if asked else None
        except (NotFound, SessionGone):
            session = None
            reason = f"Kernel {asked} could not be found"
            answer["unresolved"] = [{"scope": "kernel", "reason": reason}]
        if session is not None:
            inside = path.removeprefix(f"{WORKSPACE}/")
            with contextlib.suppress(NotFound, BadRequest):
                await files.list_(session, inside, recursive=False)
                answer["resolved"].append({"scope": "kernel", "path": f"{WORKSPACE}/{inside}"})
        self.reply(answer)


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
