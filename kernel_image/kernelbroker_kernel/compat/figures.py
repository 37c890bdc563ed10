"""Shows in the notebook what libraries show elsewhere, or not at all.

With the backend Agg, which code sets to run without a display, matplotlib passes over `plt.show()`.
`Image.show()` of Pillow prefers a program of the machine, such as `xdg-open`, which has no display either.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.pylabtools import select_figure_formats
from IPython.display import display


def show_those_of_agg() -> None:
    """Show them once code has chosen the backend. The rest of matplotlib may not be imported yet."""
    matplotlib: Any = importlib.import_module("matplotlib")
    use = matplotlib.use

    @functools.wraps(use)
    def used(backend: Any, *args: Any, **kwargs: Any) -> None:
        use(backend, *args, **kwargs)
        if str(backend).lower() == "agg":
            importlib.import_module("matplotlib.backend_bases").FigureManagerBase.show = _show

    matplotlib.use = used


def show_those_of_pillow() -> None:
    """Prefer the notebook to programs of the machine."""
    viewers: Any = importlib.import_module("PIL.ImageShow")
    viewers._viewers.sort(key=lambda each: not isinstance(each, viewers.IPythonViewer))


def _show(self: Any) -> None:
    """Show the figure of this manager, as the inline backend does, and close it."""
    figure = self.canvas.figure
    shell: Any = get_ipython()
    if shell is None:
        return
    # Unless the inline backend has been used before.
    if type(figure) not in shell.display_formatter.formatters["image/png"]:
        select_figure_formats(shell, {"png"})
    display(figure)
    importlib.import_module("matplotlib._pylab_helpers").Gcf.destroy(self)
