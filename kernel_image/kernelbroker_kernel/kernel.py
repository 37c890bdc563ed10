"""The kernel of a sandbox: ipykernel, set up for streaming, with the helper loaded.

What differs from the stock kernel: text is shown after 5 ms instead of 200, long text is split, what
programs write arrives within their cell (see `streams.py`), any text that Python can hold arrives (lone
surrogates too), a figure that a cell leaves as its last expression is shown once, and Chinese and
Japanese labels have a font.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
import warnings
from typing import Any

import zmq
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from jupyter_client.jsonutil import json_clean, json_default
from traitlets import List, Type, Unicode

from . import fonts, package_path
from .streams import Stream

_encoder = json.JSONEncoder(default=json_default, allow_nan=False)


def pack_json(value: Any) -> bytes:
    """A message as JSON in ASCII.

    The stock packer writes UTF-8 and fails on lone surrogates, and with it the whole print is lost.
    """
    try:
        text = _encoder.encode(value)
    except (
        TypeError,
        ValueError,
    ):  # values of libraries, NaN: the stock packer cleans them as well
        text = _encoder.encode(json_clean(value))
    return text.encode("ascii")


class DisplayHook(ZMQShellDisplayHook):
    """Shows the value of a cell's last expression."""

    def compute_format_data(self, result: Any) -> Any:
        """The value in its formats; a figure counts as shown then.

        The inline backend shows all open figures after the cell, so this one would come twice.
        """
        data, metadata = super().compute_format_data(result)
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and isinstance(result, pyplot.Figure) and "image/png" in data:
            pyplot.close(result)
        return data, metadata


class Shell(ZMQInteractiveShell):
    displayhook_class = Type(DisplayHook)

    def ask_exit(self) -> None:
        """What `exit` and `quit` do: they end the cell. The stock way ends the kernel a moment later."""
        argument = self.keepkernel_on_exit  # there ipykernel puts it
        raise SystemExit(*filter(None, [argument]))

    async def run_ast_nodes(self, *args: Any, **kwargs: Any) -> bool:
        """Where the user's own code begins, after all preparations."""
        self.kernel.code_begins()
        failed: bool = await super().run_ast_nodes(*args, **kwargs)
        return failed


class Kernel(IPythonKernel):
    """Runs the cells, and lets an interrupt reach nothing but the user's code.

    The stock kernel raises KeyboardInterrupt wherever it stands. One that comes as a cell begins is
    printed and forgotten, where IPython calls what is to be called before; one that comes as it ends
    can tear the kernel's own work, and the cell never gets its reply.
    """

    shell_class = Type(Shell)
    _interruptible = False
    _interrupt_is_due = False

    def pre_handler_hook(self) -> None:
        self._interrupt_is_due = False
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self._on_sigint)

    def _on_sigint(self, _number: int, _frame: object) -> None:
        if self._interruptible:
            raise KeyboardInterrupt
        self._interrupt_is_due = True  # for a cell that is about to begin; else it is forgotten

    def code_begins(self) -> None:
        """Raises KeyboardInterrupt if one came while the cell was prepared."""
        self._interruptible = True
        if self._interrupt_is_due:
            self._interrupt_is_due = False
            raise KeyboardInterrupt

    def code_is_over(self) -> None:
        self._interruptible = False

    async def do_execute(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            try:
                reply: dict[str, Any] = await super().do_execute(*args, **kwargs)
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


_COLOURS = ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE")
"""By which ipykernel has programs colour what they print, for a terminal; there is none here."""


class KernelApp(IPKernelApp):
    """Starts the kernel, and has the modules of the template loaded before it takes a cell."""

    kernel_class = Type(Kernel, klass=IPythonKernel)
    outstream_class = Unicode(f"{Stream.__module__}.{Stream.__name__}")
    extensions = List(Unicode(), ["kernelbroker_kernel.helper"])
    imports: tuple[str, ...] = ()

    def init_iopub(self, context: Any) -> None:
        # Beyond 1,000 messages that wait for the gateway the socket would drop what comes, and with a
        # cell's last message its end. Now they are as many as the sandbox's memory holds.
        context.setsockopt(zmq.SNDHWM, 0)
        super().init_iopub(context)

    def init_kernel(self) -> None:
        before = {name: os.environ.get(name) for name in _COLOURS}
        super().init_kernel()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def init_code(self) -> None:
        for name in self.imports:
            importlib.import_module(name)
        fonts.install()
        # Said of SystemExit, with advice for a terminal.
        warnings.filterwarnings("ignore", "To exit: use")
        package_path.add_to_path()
        super().init_code()
        try:
            raise LookupError
        except LookupError:  # a first traceback loads much; it shall not be the user's
            shell: Any = self.shell
            shell.InteractiveTB.structured_traceback(*sys.exc_info())


def main(argv: list[str]) -> None:
    """Run until the kernel is told to end. `--import=MODULE` may be repeated; the rest is ipykernel's."""
    imports = [arg.removeprefix("--import=") for arg in argv if arg.startswith("--import=")]
    app = KernelApp.instance()
    app.imports = tuple(imports)
    app.config.Session.packer = f"{__name__}.pack_json"
    app.config.HistoryManager.enabled = False  # no SQLite file; In and Out stay
    app.log.setLevel("WARNING")  # left as it is, each message would become a record, to be dropped
    try:
        app.initialize([arg for arg in argv if not arg.startswith("--import=")])
    except Exception:
        # Descriptor 2 leads to the session by now, and there is none yet; this one to the broker.
        os.write(sys.stderr.fileno(), traceback.format_exc().encode(errors="replace"))
        raise
    app.start()


if __name__ == "__main__":
    if not sys.flags.safe_path:
        # -m puts the workspace first, where a user's json.py would be taken for the standard library's.
        # IPython puts it behind that. Not -P: IPython would leave it out, and children inherit it.
        del sys.path[0]
    # Under its real name, so that the classes named above are these, not a second copy of them.
    importlib.import_module("kernelbroker_kernel.kernel").main(sys.argv[1:])
