"""Errands: cells of the broker's own, that look at what the session holds. `contract` has their forms.

They leave no trace in the history, and fail only where they are interrupted or nobody fetches.
"""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython

from . import exports, variables
from .contract import ERRAND_MIME
from .helper import MAX_VARIABLES, asked_for, publish
from .refusals import Refused


def run() -> None:
    """Entry point of the cell."""
    shell: Any = get_ipython()
    asked = asked_for(shell)
    if isinstance(listing := asked.get("list"), dict):
        limit = listing.get("max_variables")
        limit = limit if type(limit) is int and limit >= 0 else MAX_VARIABLES
        held, dropped = variables.summarize(shell.user_ns, shell.user_ns_hidden, limit)
        publish(shell, ERRAND_MIME, {"variables": held, "dropped": dropped})
    elif isinstance(export := asked.get("export"), dict):
        try:
            with exports.Export(shell.user_ns, **export) as work:
                publish(shell, ERRAND_MIME, {"ready": True})
                work.deliver()
        except Refused as refused:
            answer = {"code": refused.code, "message": refused.message}
            publish(shell, ERRAND_MIME, {"refused": answer})
