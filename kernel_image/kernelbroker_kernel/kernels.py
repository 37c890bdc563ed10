"""The kernels of a gateway: how they are started, and what their ends mean.

The first kernel is the sandbox's: when it ends, so does the gateway. Further kernels are contexts: they
share the sandbox, and the end of one closes only its own connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, ClassVar

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from .compat.gateway import Connection
from .contract import KERNELS_PATH
from .errors import Refused
from .file_server import Handler
from .kernel_template import FurtherKernel, KernelTemplate
from .process_family import end_family
from .waiting_kernel import WaitingKernel

_LAST_MESSAGES_S = 0.3
"""The time to read a dead kernel's last messages if a process that it has forked keeps its sockets open."""
_END_S = 10.0
"""The time that a kernel has to end by SIGKILL."""


class KernelSpecs(KernelSpecManager):
    """Provides one kind of kernel, ours, under any name."""

    imports: tuple[str, ...] = ()

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        argv = [sys.executable, "-m", "kernelbroker_kernel.kernel", "-f", "{connection_file}"]
        argv += [f"--import={name}" for name in self.imports]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


class Provisioner(LocalProvisioner):
    """Starts kernels, and notices their ends at once.

    The stock restarter polls every 3 s, and a request to a dead kernel never gets a reply. A thread
    that waits for the kernel notices within a millisecond, also without pidfds (gVisor).
    """

    waiting: ClassVar[WaitingKernel | None] = None
    """A kernel that was forked in advance, if the gateway was forked."""
    template: ClassVar[KernelTemplate | None] = None
    """Forks further kernels, if the gateway was forked."""
    on_first_exit: ClassVar[Callable[[int], Coroutine[Any, Any, None]]]
    """Called with the status when the first kernel has ended."""
    first: ClassVar[Provisioner | None] = None
    further: ClassVar[dict[str, Provisioner]] = {}
    """The further kernels that live, by id."""
    _numbers: ClassVar[itertools.count[int]] = itertools.count(1)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        if Provisioner.first is not None:
            # The stock way to choose the names of the sockets fails if two kernels start at once.
            manager: Any = self.parent
            directory = os.environ["JUPYTER_RUNTIME_DIR"]
            manager.ip = f"{directory}/{next(self._numbers)}"
        return await super().pre_launch(**kwargs)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        if Provisioner.first is None:
            Provisioner.first = self
        else:
            self.further[str(self.kernel_id)] = self
        env, cwd = kwargs.get("env"), kwargs.get("cwd")
        process: Any = None
        if self.waiting is not None and self.waiting.can_run(cmd):
            process = self.waiting.start(cmd, env, cwd)
        elif self.template is not None and self.template.can_run(cmd):
            with contextlib.suppress(OSError):
                process = await self.template.fork(cmd, env, cwd)
        if process is None:
            info = await super().launch_kernel(cmd, **kwargs)
            process = self.process
        else:
            self.process = process
            self.pid = self.pgid = process.pid
            self.cwd = cwd or Path.cwd()
            info = self.connection_info
        assert process is not None, "the kernel was launched just now"
        self._watch(process)
        return info

    def _watch(self, process: Any) -> None:
        loop = asyncio.get_running_loop()

        def on_exit(status: int) -> None:
            is_first = Provisioner.first is self
            work = self._finish_first(status) if is_first else self._finish(status)
            self.exiting: asyncio.Task[None] = loop.create_task(work)

        def wait() -> None:
            status = process.wait()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the gateway ends as well
                loop.call_soon_threadsafe(on_exit, status)

        if isinstance(process, FurtherKernel):
            process.ended.add_done_callback(lambda ended: on_exit(ended.result()))
        else:
            # A daemon thread does not keep the gateway from exiting.
            threading.Thread(target=wait, name="kernel exit", daemon=True).start()

    async def _finish_first(self, status: int) -> None:
        await Connection.receive_rest(str(self.kernel_id), _LAST_MESSAGES_S)
        await Provisioner.on_first_exit(status)

    async def _finish(self, status: int) -> None:
        """Pass on a further kernel's last messages, forget it, and close its connection."""
        kernel_id = str(self.kernel_id)
        if self.pid:
            end_family(self.pid)
        await Connection.receive_rest(kernel_id, _LAST_MESSAGES_S)
        await Connection.delivered(kernel_id)
        manager: Any = self.parent
        kernels = manager.parent
        with contextlib.suppress(KeyError):
            kernels.stop_watching_activity(kernel_id)
        kernels.remove_kernel(kernel_id)
        manager.cleanup_connection_file()
        manager.cleanup_ipc_files()
        self.further.pop(kernel_id, None)
        Connection.give_up(manager)
        Connection.end(kernel_id, exit_status(status))


def exit_status(status: int) -> int:
    """A status of `Popen`, in the form of a shell: the code, or 128 and the number of the signal."""
    return 128 - status if status < 0 else status


class Kernel(Handler):
    """DELETE: end a further kernel with its processes."""

    async def delete(self, kernel_id: str) -> None:
        provisioner = Provisioner.further.get(kernel_id)
        if provisioner is None or not provisioner.pid:
            raise Refused("not_found", "there is no further kernel with this id")
        Connection.forsake(kernel_id)
        end_family(provisioner.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(provisioner.pid, signal.SIGKILL)
        async with asyncio.timeout(_END_S):
            while kernel_id in Provisioner.further:  # noqa: ASYNC110  it takes a moment
                await asyncio.sleep(0.005)
        self.set_status(204)


ROUTES = [(f"{KERNELS_PATH}/([0-9a-f-]{{36}})", Kernel)]
