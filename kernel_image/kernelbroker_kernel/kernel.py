"""The kernel of a sandbox: ipykernel, set up for streaming, with the hooks loaded.

It differs from the stock kernel: text is sent after 5 ms instead of 200, and in pieces; the output of
programs arrives within their cell (see `compat.streams`); text with lone surrogates arrives; a figure
that is a cell's last expression is shown once; Chinese and Japanese labels have a font; errors are
bounded (see `compat.kernel`); and an interrupt reaches only the user's code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import zmq
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from jupyter_client.jsonutil import json_clean, json_default
from traitlets import List, Type, Unicode

from . import charts, early_imports, fonts, last_words, machine, package_path
from .compat import named_like, streams
from .compat.figures import show_those_of_agg, show_those_of_pillow
from .compat.kernel import BoundedErrorKernel, BoundedErrorShell, PromptKernelApp
from .compat.threads import keep_alive, send_without_threads
from .contract import (
    CONFIGURE_CODE,
    INTERNAL_CELL_CODE,
    METADATA_KEY,
    REPORT_CODE,
    WAITING_MESSAGES,
)
from .error_bounds import bounded_error
from .history import SessionHistory
from .hooks import configure, exit_status, installed, is_ours
from .rehearsal import rehearse
from .unused_imports import DEBUGGER, left_out

_ascii = json.JSONEncoder(default=json_default, allow_nan=False)
_unicode = json.JSONEncoder(default=json_default, allow_nan=False, ensure_ascii=False)
_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGE_CHARS = 1024**2
"""An escape takes up to three times the bytes of its character: too much for large messages."""


def pack_json(value: Any) -> bytes:
    """A message as JSON: in ASCII, which is faster, or a large one in UTF-8, which is shorter.

    The stock packer writes UTF-8. It fails on lone surrogates, and loses the whole message.
    """
    try:
        text = _ascii.encode(value)
    except (
        TypeError,
        ValueError,
    ):  # values of libraries, NaN: cleaned as the stock packer does
        value = json_clean(value)
        text = _ascii.encode(value)
    if len(text) > _LARGE_CHARS and "\\u" in text:
        # A surrogate can stand only within a string.
        text = _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", _unicode.encode(value))
    return text.encode()


@named_like(ZMQShellDisplayHook)
class DisplayHook(ZMQShellDisplayHook):
    """Shows the value of a cell's last expression."""

    def compute_format_data(self, result: Any) -> Any:
        """The value in its formats. A figure is closed, since it has been shown.

        The inline backend shows all open figures after the cell, so this one would come twice.
        """
        data, metadata = super().compute_format_data(result)
        if not is_ours(self.shell):
            return data, metadata
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and isinstance(result, pyplot.Figure) and "image/png" in data:
            pyplot.close(result)
        return data, metadata


@named_like(ZMQInteractiveShell)
class Shell(BoundedErrorShell):
    displayhook_class = Type(DisplayHook)
    _pid_of_cell: int | None = None
    """The process in which the latest cell began."""

    def init_history(self) -> None:
        history: Any = SessionHistory(shell=self, parent=self)
        self.history_manager = history
        self.configurables.append(history)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        if not (exit_status(evalue) == 0 and is_ours(self)):  # `sys.exit()` is no error
            super()._showtraceback(etype, evalue, stb)

    def ask_exit(self) -> None:
        """End the cell; `exit` and `quit` call this. The stock method ends the kernel a moment later."""
        if not is_ours(self):
            super().ask_exit()
            return
        argument = self.keepkernel_on_exit  # ipykernel stores the argument there
        raise SystemExit(*filter(None, [argument]))

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> bool:
        """Run the user's code: all preparations are done. A process that it forks ends with it."""
        self._pid_of_cell = pid = os.getpid()
        self.kernel.code_begins()
        failed: bool = await super().run_ast_nodes(*args, **kwargs)
        if os.getpid() != pid:
            _end_fork(int(failed))
        return failed

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        if self._pid_of_cell not in (None, os.getpid()):
            error = sys.exc_info()[1] if exc_tuple is None else exc_tuple[1]
            if (status := exit_status(error)) is None or isinstance(getattr(error, "code", 0), str):
                traceback.print_exception(error)
            _end_fork(1 if status is None else status)
        super().showtraceback(exc_tuple, *args, **kwargs)


def _end_fork(status: int) -> NoReturn:
    """End a process that a cell has forked: it must not become a second kernel."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # of user code, or closed
            stream.flush()  # type: ignore[union-attr]
    os._exit(status)


@named_like(IPythonKernel)
class Kernel(BoundedErrorKernel):
    """Runs the cells. An interrupt reaches only the user's code.

    The stock kernel raises KeyboardInterrupt wherever it happens to be. At the beginning of a cell, in
    an event's callback, IPython prints and forgets it. At the end it can break the kernel's own work, and
    the cell never gets its reply.
    """

    shell_class = Type(Shell)
    _interruptible = False
    _interrupt_is_due = False

    def pre_handler_hook(self) -> None:
        self._interrupt_is_due = self.was_interrupted = False
        # Callbacks of widgets are the user's code as well.
        kind = self.get_parent("shell").get("header", {}).get("msg_type", "")
        self._interruptible = kind.startswith("comm_")
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self._on_sigint)

    def post_handler_hook(self) -> None:
        self._interruptible = False
        super().post_handler_hook()

    def _on_sigint(self, _number: int, _frame: object) -> None:
        if self._interruptible:
            self.was_interrupted = True
            raise KeyboardInterrupt
        self._interrupt_is_due = (
            True  # for the cell that is about to begin; forgotten if there is none
        )

    def code_begins(self) -> None:
        """Raises KeyboardInterrupt if an interrupt came while the cell was prepared."""
        self._interruptible = True
        if self._interrupt_is_due:
            self._interrupt_is_due = False
            self.was_interrupted = True
            raise KeyboardInterrupt

    def code_is_over(self) -> None:
        self._interruptible = False

    def finish_metadata(
        self, parent: Any, metadata: dict[str, Any], reply_content: Any
    ) -> dict[str, Any]:
        """The metadata of the reply, with the summary of a user's cell."""
        metadata = super().finish_metadata(parent, metadata, reply_content)
        hooks = installed(self.shell)
        summary = None if hooks is None else hooks.take_summary()
        if summary is not None and METADATA_KEY in parent.get("metadata", {}):
            metadata[METADATA_KEY] = summary
        return metadata

    async def do_execute(
        self, code: str, silent: bool, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        try:
            try:
                if silent and (run := _ENTRIES.get(code)) is not None:
                    return self._enter(run)
                reply: dict[str, Any] = await super().do_execute(code, silent, *args, **kwargs)
                hooks = installed(self.shell)
                if not silent and hooks is not None and hooks.ended_cleanly:
                    reply["status"] = "ok"
                return reply
            finally:
                self.code_is_over()
        except KeyboardInterrupt:  # it came outside of the user's code, but before the reply
            self.code_is_over()
            return {
                "status": "error",
                "ename": "KeyboardInterrupt",
                "evalue": "",
                "traceback": [],
                "execution_count": self.execution_count,
                "user_expressions": {},
                "payload": [],
            }

    def _enter(self, run: Callable[[], None]) -> dict[str, Any]:
        """Run a cell of the broker's as what it is, a call. IPython would parse and compile it first."""
        reply: dict[str, Any] = {"status": "ok", "user_expressions": {}, "payload": []}
        try:
            self.code_begins()
            run()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also an exit, by a user's class
            reply |= {"status": "error", **bounded_error(type(error).__name__, error, [])}
        return reply | {"execution_count": self.execution_count}


_ENTRIES: dict[str, Callable[[], None]] = {
    CONFIGURE_CODE: configure,
    INTERNAL_CELL_CODE: lambda: importlib.import_module(f"{__package__}.internal_cells").run(),
    REPORT_CODE: lambda: importlib.import_module(f"{__package__}.report").run(),
}

_COLOURS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")
"""ipykernel sets these so that programs print colours for a terminal. There is no terminal here."""


_INTERNAL = ("kernelbroker_kernel.internal_cells", "kernelbroker_kernel.report")
"""Modules of the broker's own cells, loaded so that a session's first report or table is not slower."""


@named_like(IPKernelApp)
class KernelApp(PromptKernelApp):
    """Starts the kernel, and imports the template's modules before it accepts a cell."""

    kernel_class = Type(Kernel, klass=IPythonKernel)
    outstream_class = Unicode(f"{streams.__name__}.Stream")
    extensions = List(Unicode(), ["kernelbroker_kernel.hooks"])
    imports: tuple[str, ...] = ()

    def init_iopub(self, context: Any) -> None:
        """Make the socket for output. Code that writes more than the gateway reads has to wait.

        By default the socket drops messages when 1,000 of them wait, also the one that ends a cell. The
        limits also hold for the socket that wakes the sending thread, at which other threads wait.
        """
        for limit in (zmq.SNDHWM, zmq.RCVHWM):
            context.setsockopt(limit, WAITING_MESSAGES)
        context.setsockopt(zmq.XPUB_NODROP, 1)
        super().init_iopub(context)
        keep_alive(self.iopub_thread.thread)

    def init_io(self) -> None:
        super().init_io()
        last_words.install(self.iopub_thread, (sys.stdout, sys.stderr))

    def init_kernel(self) -> None:
        before = {name: os.environ.get(name) for name in _COLOURS}
        with left_out(*DEBUGGER):
            super().init_kernel()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def init_code(self) -> None:
        shell: Any = self.shell
        with shell.builtin_trap:  # as in a cell: pandas asks `get_ipython` for its options
            import_all(self.imports)
            early_imports.restore_filters()
        # IPython's advice on SystemExit, for a terminal.
        warnings.filterwarnings("ignore", "To exit: use")
        package_path.add_to_path()
        charts.install(shell)
        super().init_code()
        rehearse()
        machine.tell_limits()


def import_all(imports: Iterable[str]) -> None:
    """Import the template's modules and those of the broker's own cells."""
    for name in (*imports, *_INTERNAL):
        importlib.import_module(name)
    fonts.install()
    if "matplotlib" in sys.modules:
        show_those_of_agg()
    if "PIL.Image" in sys.modules:  # of matplotlib
        show_those_of_pillow()
    charts.load()


def main(argv: list[str]) -> None:
    """Run until the kernel is asked to end. `--import=MODULE` may be repeated; ipykernel gets the rest."""
    imports = [arg.removeprefix("--import=") for arg in argv if arg.startswith("--import=")]
    argv = [arg for arg in argv if not arg.startswith("--import=")]
    send_without_threads()
    # The user's program has no arguments, so that `parse_args()` and `unittest.main()` work.
    sys.argv = [""]
    app = KernelApp.instance()
    app.imports = tuple(imports)
    # A default of the class, which may have been made before the process was forked.
    app.parent_handle = int(os.environ.get("JPY_PARENT_PID") or 0)
    app.config.Session.packer = f"{__name__}.pack_json"
    app.log.setLevel(
        "WARNING"
    )  # at its default level, each message becomes a log record that is then dropped
    try:
        app.initialize(argv)
    except Exception:
        # Descriptor 2 leads to the session by now, which does not exist yet; this one leads to the broker.
        os.write(sys.stderr.fileno(), traceback.format_exc().encode(errors="replace"))
        raise
    app.start()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m puts the workspace first, where a user's json.py would replace the standard library's. IPython
        # adds it at a later place. -P would make IPython leave it out, and child processes inherit -P.
        del sys.path[0]
    # Imported under its real name, so that the classes named above are these, and not a second copy.
    importlib.import_module("kernelbroker_kernel.kernel").main(sys.argv[1:])
