"""Internal cells of the broker, which list, page or export a session's variables. See `contract`.

They leave no trace in the history. They fail only if they are interrupted, or if the broker does not fetch
the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.getipython import get_ipython

from . import exports, pages, variables
from .contract import INTERNAL_CELL_MIME
from .errors import Refused
from .hooks import MAX_VARIABLES, publish, request_options


def run() -> None:
    """Entry point of the cell."""
    shell: Any = get_ipython()
    options = request_options(shell)
    if isinstance(listing := options.get("list"), dict):
        limit = listing.get("max_variables")
        limit = limit if type(limit) is int and limit >= 0 else MAX_VARIABLES
        held, dropped = variables.summarize(shell.user_ns, shell.user_ns_hidden, limit)
        publish(shell, INTERNAL_CELL_MIME, {"variables": held, "dropped": dropped})
    elif isinstance(page := options.get("page"), dict):
        with _refusing(shell):
            publish(shell, INTERNAL_CELL_MIME, {"page": pages.page(shell.user_ns, **page)})
    elif isinstance(export := options.get("export"), dict):
        with _refusing(shell), exports.Export(shell.user_ns, **export) as work:
            publish(shell, INTERNAL_CELL_MIME, {"ready": True})
            work.deliver()


@contextmanager
def _refusing(shell: Any) -> Iterator[None]:
    """Send what the block refuses as the answer."""
    try:
        yield
    except Refused as refused:
        answer = {"code": refused.code, "message": refused.message}
        publish(shell, INTERNAL_CELL_MIME, {"refused": answer})
