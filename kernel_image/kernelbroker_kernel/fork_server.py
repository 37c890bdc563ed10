"""Forks gateways: a server of one template, which has imported everything that its sandboxes need.

It runs no user code, holds no secret, and has no event loop and no ZeroMQ. The broker talks to it over a
socketpair (SOCK_SEQPACKET); each message is a JSON object:

    broker: {"argv": [...], "filter": base64 text}    first, once: the gateway's arguments of Python, and
                                                      the jail's seccomp filter
    server: {"ready": true} with a descriptor of its user namespace, or {"failed": text}
    broker: {"launch": id} with `LAUNCH_DESCRIPTORS`
    server: {"launched": id, "pid": int} with a pidfd, or {"refused": id, "why": text}
    server: {"ended": id, "status": int}, negative if a signal ended it, as in `os.waitstatus_to_exitcode`

To launch, the server forks a process that enters the jail's namespaces, forks the gateway there and exits,
so that the gateway becomes a child of the server (a subreaper). The gateway waits until the broker has set
its limits and writes a byte to the gate; the end of the file means that it must not begin. The memory of
the server is visible to user code: nothing of a launch stays in it.

The server ends when the broker closes the socketpair. The gateways go on.
"""

from __future__ import annotations

import base64
import ctypes
import gc
import importlib
import importlib.util
import itertools
import json
import os
import select
import socket
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from . import confinement, early_imports, fresh_process
from .contract import EXIT_GATEWAY_FAILED, GATEWAY_MODULE, WORKSPACE
from .rehearsal import rehearse
from .unused_imports import FORMATS, left_out

Work: TypeAlias = Callable[[], int | None]
"""What a forked process does, as late as possible: with the frames of `main` only above it."""

_MESSAGE_BYTES = 128 * 1024
_PR_SET_CHILD_SUBREAPER = 36
_LISTENER, _STATUS = 3, 4
_SANDBOX_UID = 1000
_GATEWAY = (
    "jupyter_core.migrate",
    "kernelbroker_kernel.gateway",
    "kernelbroker_kernel.kernels",
    "kernelbroker_kernel.kernel_template",
    "kernelbroker_kernel.waiting_kernel",
    "tornado.options",
)
"""What the gateway imports, also while it starts."""

_SHARED = {
    "pandas": ("scipy.stats",),
    "matplotlib.pyplot": ("seaborn",),
}
"""What is loaded as well with a module of the template, since it costs a forked sandbox hardly anything."""


class Order(NamedTuple):
    """What all launches of this server have in common."""

    argv: list[str]
    filter: bytes
    home: fresh_process.HomeFiles
    """What the imports have written."""
    own_user: bool
    """Whether the gateway must become the sandbox's user; an ordinary user's jail maps it."""


def main(argv: list[str]) -> int | None:
    """Serve on the inherited descriptor `argv[0]`. Returns only in a forked process, at its end."""
    channel = socket.socket(fileno=int(argv[0]))
    channel.set_inheritable(False)
    message = json.loads(channel.recv(_MESSAGE_BYTES) or b"null")
    if message is None:
        return None
    try:
        order = _prepare(message["argv"], base64.b64decode(message["filter"]))
    except BaseException as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"[:1000]
        channel.send(json.dumps({"failed": why}).encode())
        return EXIT_GATEWAY_FAILED
    namespace = os.open("/proc/self/ns/user", os.O_RDONLY)
    socket.send_fds(channel, [b'{"ready": true}'], [namespace])
    os.close(namespace)
    work = Server(channel, order).run()
    return work()


class Server:
    """Serves the broker, from `ready` to the end of the socketpair."""

    def __init__(self, channel: socket.socket, order: Order) -> None:
        self._channel = channel
        self._order = order
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._children: dict[int, tuple[int, int]] = {}
        """The launch's id and the pid, by pidfd."""

    def run(self) -> Work:
        """Serve. Returns only in a forked process: what it has to do."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._channel.fileno():
                    self._reap(descriptor)
                elif (work := self._receive()) is not None:
                    return work

    def _receive(self) -> Work | None:
        data, descriptors, _, _ = socket.recv_fds(self._channel, _MESSAGE_BYTES, 16)
        if not data:
            os._exit(0)
        launch_id = json.loads(data)["launch"]
        reading, writing = os.pipe()
        if (helper := _fork()) == 0:
            return self._enter(descriptors, writing)
        os.close(writing)
        for descriptor in descriptors:
            os.close(descriptor)
        with os.fdopen(reading) as file:
            report = file.read()
        os.waitpid(helper, 0)
        if report.isdecimal():
            pid = int(report)
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = (launch_id, pid)
            self._poll.register(pidfd, select.POLLIN)
            answer = json.dumps({"launched": launch_id, "pid": pid}).encode()
            socket.send_fds(self._channel, [answer], [pidfd])
        else:
            self._send({"refused": launch_id, "why": report})
        return None

    def _reap(self, pidfd: int) -> None:
        launch_id, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._send({"ended": launch_id, "status": os.waitstatus_to_exitcode(status)})

    def _send(self, message: dict[str, Any]) -> None:
        self._channel.send(json.dumps(message).encode())

    def _enter(self, descriptors: list[int], report: int) -> Work:
        """In the helper: enter the jail and fork the gateway there. Returns in the gateway only."""
        try:
            self._children.clear()
            # Its number will belong to another file, which must not be closed at the end of `main`.
            self._channel.detach()
            jail, listener, output, gate, status = descriptors
            confinement.enter(jail)
            pid = _fork()
        except BaseException as error:
            os.write(report, f"{type(error).__name__}: {error}".encode())
            os._exit(EXIT_GATEWAY_FAILED)
        if pid:
            os.write(report, str(pid).encode())
            os._exit(0)
        order = self._order
        return lambda: _gateway(order, [gate, output, output, listener, status])


def _gateway(order: Order, descriptors: list[int]) -> int | None:
    """Be the gateway: wait at the gate, become confined, and serve."""
    try:
        # Before the gate opens, since the limit of descriptors is set by then.
        confinement.place_descriptors(descriptors)
        os.setsid()
        if not os.read(0, 1):
            os._exit(EXIT_GATEWAY_FAILED)
        confinement.become(_SANDBOX_UID if order.own_user else None)
        if not order.own_user:
            with Path("/dev/null").open("rb") as nothing:
                os.dup2(nothing.fileno(), 0)
        confinement.install_filter(order.filter)
        fresh_process.renew()
        fresh_process.write_home(order.home)
        run = _program if order.argv[0] == "-c" else _serve
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(EXIT_GATEWAY_FAILED)
    return run(order.argv)


def _serve(argv: list[str]) -> int | None:
    """Be our gateway, or one of its kernels. The first is forked at once, as is the template of others."""
    from . import gateway, kernel_template, kernels, waiting_kernel

    module = importlib.import_module(GATEWAY_MODULE)
    program = str(Path(str(module.__file__)).with_name("__main__.py"))
    fresh_process.set_command([sys.executable, *argv], program, WORKSPACE)
    template = kernel_template.fork(close=[_LISTENER, _STATUS])
    if not isinstance(template, kernel_template.KernelTemplate):
        waiting_kernel.run(template)
        return None
    match waiting_kernel.fork(close=[_LISTENER, _STATUS, template.descriptor]):
        case waiting_kernel.WaitingKernel() as kernel:
            kernels.Provisioner.waiting = kernel
            kernels.Provisioner.template = template
            gateway.status_pipe = _STATUS
            return gateway.main()
        case None:
            os._exit(EXIT_GATEWAY_FAILED)
        case kernel_order:
            waiting_kernel.run(kernel_order)
            return None


def _program(argv: list[str]) -> int | None:
    """Be a program in place of the gateway: `-c` and its source."""
    os.close(_STATUS)
    main_module = types.ModuleType("__main__")
    sys.modules["__main__"] = main_module
    sys.argv, sys.orig_argv = ["-c", *argv[2:]], [sys.executable, *argv]
    os.chdir(WORKSPACE)
    os.environ["PWD"] = WORKSPACE
    exec(compile(argv[1], "<string>", "exec"), vars(main_module))
    return None


def _prepare(argv: list[str], seccomp_filter: bytes) -> Order:
    """Import everything, and keep what is there by now out of the garbage collector's way."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if argv[0] != "-c":
        preload(_imports(argv))
    order = Order(argv, seccomp_filter, fresh_process.home_files(), os.geteuid() == 0)
    gc.disable()
    gc.collect()
    # A collection in a child would write to each object's header, and so copy all pages.
    gc.freeze()
    sys.stdout.flush()
    sys.stderr.flush()
    return order


def _imports(argv: list[str]) -> list[str]:
    return [after for option, after in itertools.pairwise(argv) if option == "--import"]


def preload(imports: list[str]) -> None:
    """Import what gateway and kernel need, and the template's modules as the kernel would."""
    hidden = {
        # The thread of Arrow's allocator would not survive a fork.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        # ipykernel sets it before the kernel's imports.
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    added = {name: value for name, value in hidden.items() if name not in os.environ}
    os.environ.update(added)
    try:
        kernel = importlib.import_module("kernelbroker_kernel.kernel")
        early_imports.import_early(partial(kernel.import_all, [*imports, *_shared(imports)]))
        # Filters of the gateway are none of the kernel's.
        with left_out(*FORMATS), warnings.catch_warnings():
            for name in _GATEWAY:
                importlib.import_module(name)
        rehearse()
    finally:
        for name in added:
            del os.environ[name]


def _shared(imports: list[str]) -> list[str]:
    """The installed modules that are loaded as well."""
    return [
        name
        for base, names in _SHARED.items()
        if base in imports
        for name in names
        if importlib.util.find_spec(name.partition(".")[0]) is not None
    ]


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of threads: libraries have some, which do nothing.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the working directory; -P would leave '' out of the kernels' path, too
    # Imported under its real name, so that its classes are no second copies.
    sys.exit(importlib.import_module("kernelbroker_kernel.fork_server").main(sys.argv[1:]))
