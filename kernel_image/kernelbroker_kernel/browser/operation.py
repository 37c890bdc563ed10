"""The cell of an action that a client asks for: its picture becomes an output of the execution."""

from __future__ import annotations

from typing import Any

from ..errors import Refused
from . import client

PREFIX = "browser_"


def run(shell: Any, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Carry out an action, and show its picture. Returns its result. Raises Refused."""
    action = name.removeprefix(PREFIX)
    if action == "connect":  # for cells alone
        raise Refused("bad_request", "there is no such operation")
    answer = client.ask(action, parameters)
    if (picture := answer.get("screenshot")) is not None:
        caption = f"<{action} {answer['result'].get('url', '')}>"
        shell.display_pub.publish({picture["mime"]: picture["data"], "text/plain": caption})
    result: dict[str, Any] = answer["result"]
    return result
