"""Internal cells of the broker: list, page, export, save, load or complete variables. See `contract`.

They leave no trace in the history. They fail only if they are interrupted, or if the broker does not fetch
the data.
"""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

from . import exports, pages, variables
from .contract import INTERNAL_CELL_MIME
from .errors import Refused
from .hooks import MAX_VARIABLES, installed, publish, request_options


def run() -> None:
    """Entry point of the cell."""
    shell: Any = get_ipython()
    try:
        _run(shell, request_options(shell))
    except Refused as refused:
        answer = {"code": refused.code, "message": refused.message}
        publish(shell, INTERNAL_CELL_MIME, {"refused": answer})


def _run(shell: Any, options: dict[str, Any]) -> None:
    def answer(payload: dict[str, Any]) -> None:
        publish(shell, INTERNAL_CELL_MIME, payload)

    match options:
        case {"list": dict(asked)}:
            limit = asked.get("max_variables")
            limit = limit if type(limit) is int and limit >= 0 else MAX_VARIABLES
            held, dropped = variables.summarize(shell.user_ns, shell.user_ns_hidden, limit)
            answer({"variables": held, "dropped": dropped})
        case {"page": dict(asked)}:
            answer({"page": pages.page(shell.user_ns, **asked)})
        case {"export": dict(asked)}:
            with exports.Export(shell.user_ns, **asked) as work:
                answer({"ready": True})
                work.deliver()
        case {"complete": dict(asked)}:
            from .completion import complete

            answer({"completed": complete(shell, asked.get("code"), asked.get("cursor_pos"))})
        case {"save": dict(asked)}:
            from .checkpoints import saving

            hooks = installed(shell)
            saving.save(shell.user_ns, shell.user_ns_hidden, asked, answer, hooks=hooks)
        case {"load": dict(asked)}:
            from .checkpoints import loading

            answer({"loaded": loading.load(shell.user_ns, asked)})
