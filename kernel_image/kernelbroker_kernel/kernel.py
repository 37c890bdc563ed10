"""The kernel of a sandbox: ipykernel, set up for streaming, with the helper loaded.

What differs from the stock kernel: text is shown after 5 ms instead of 200, long text is split, any
text that Python can hold arrives (lone surrogates too), a figure that a cell leaves as its last
expression is shown once, and every script has a font.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.iostream import OutStream
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from jupyter_client.jsonutil import json_clean, json_default
from traitlets import List, Type, Unicode

from . import fonts
from .contract import STREAM_CHUNK_CHARS


def pack_json(value: Any) -> bytes:
    """A message as JSON in ASCII.

    The stock packer writes UTF-8 and fails on lone surrogates, and with it the whole print is lost.
    """
    try:
        text = json.dumps(value, default=json_default, allow_nan=False)
    except (
        TypeError,
        ValueError,
    ):  # values of libraries, NaN: the stock packer cleans them as well
        text = json.dumps(json_clean(value), default=json_default, allow_nan=False)
    return text.encode("ascii")


class Stream(OutStream):
    """Standard output and error of the cells."""

    flush_interval = 0.005
    """Seconds from a write to its being sent; 0.2 by default. The rate of a loop of prints is the same."""

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in super()._flush_buffers():
            for start in range(0, len(text), STREAM_CHUNK_CHARS):
                yield parent, text[start : start + STREAM_CHUNK_CHARS]


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


class Kernel(IPythonKernel):
    shell_class = Type(Shell)


class KernelApp(IPKernelApp):
    """Starts the kernel, and has the modules of the template loaded before it takes a cell."""

    kernel_class = Type(Kernel, klass=IPythonKernel)
    outstream_class = Unicode(f"{__name__}.{Stream.__name__}")
    extensions = List(Unicode(), ["kernelbroker_kernel.helper"])
    imports: tuple[str, ...] = ()

    def init_code(self) -> None:
        for name in self.imports:
            importlib.import_module(name)
        fonts.install()
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
    app.initialize([arg for arg in argv if not arg.startswith("--import=")])
    app.start()


if __name__ == "__main__":
    # Under its real name, so that the classes named above are these, not a second copy of them.
    importlib.import_module("kernelbroker_kernel.kernel").main(sys.argv[1:])
