"""Bad tokens, other tenants, closed sessions and garbage: errors of Jupyter's own kind, never a hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker_server.kernels.framing import join_parts
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.e2e.support import BrokerProcess, call, whole_system
from tests.jupyter.support import SCRIPTS, connected, kernel_of, reply_of, text_of
from tests.jupyter.test_clients import python, run

pytestmark = [*whole_system, pytest.mark.timeout(300)]

API = "/jupyter/api"
CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/kernels/{kernel}", None),
    ("DELETE", "/kernels/{kernel}", None),
    ("POST", "/kernels/{kernel}/interrupt", {}),
    ("POST", "/kernels/{kernel}/restart", {}),
    ("GET", "/sessions/{notebook}", None),
    ("PATCH", "/sessions/{notebook}", {"path": "stolen.ipynb"}),
    ("DELETE", "/sessions/{notebook}", None),
    ("POST", "/sessions", {"path": "n.ipynb", "kernel": {"id": "{kernel}"}}),
    ("GET", "/kernelspecs/{spec}", None),
    ("POST", "/kernels", {"name": "{spec}"}),
]
"""The calls that name a kernel, the Jupyter session of a notebook, or the kernelspec of a session."""
GARBAGE: list[tuple[str, str, Any, int]] = [
    ("POST", "/kernels", [1], 400),
    ("POST", "/kernels", {"name": 5}, 400),
    ("POST", "/kernels", {"name": "nonsense"}, 404),
    ("POST", "/kernels", {"env": {"A": 1}}, 400),
    ("POST", "/sessions", "text", 400),
    ("POST", "/sessions", {"kernel": "python3"}, 400),
    ("POST", "/sessions", {"kernel": {"id": "nonsense"}}, 404),
    ("PATCH", "/sessions/nonsense", {}, 404),
    ("GET", "/kernels/nonsense", None, 404),
    ("GET", "/kernels/%00", None, 404),
    ("GET", "/kernels/nonsense/channels", None, 400),
    ("PUT", "/kernels", {}, 405),
    ("GET", "/terminals", None, 404),
]
FRAMES = [
    join_parts([b"shell"]),
    join_parts([b"shell", b"{", b"{}", b"{}", b"{}"]),
    join_parts([b"shell", b"{}", b"{}", b"{}", b"{}"]),
    join_parts([b"shell", b'{"msg_id": 1, "msg_type": "x"}', b"{}", b"{}", b"{}"]),
    join_parts([b"shell", b"[" * 5000, b"{}", b"{}", b"{}"]),
    (2**63).to_bytes(8, "little") + bytes(56),
    (6).to_bytes(8, "little") + b"\xff" * 48,
]
"""Frames of the subprotocol that are no messages."""


def filled(value: Any, names: dict[str, str]) -> Any:
    """JSON with names in place of those in braces."""
    text = json.dumps(value)
    for name, found in names.items():
        text = text.replace(f"{{{name}}}", found)
    return json.loads(text)


async def refusals(
    broker: BrokerProcess, names: dict[str, str], token: str
) -> dict[tuple[str, str], int]:
    """The status of each call with this token. The errors must have Jupyter's form."""
    found = {}
    for method, path, body in CALLS:
        status, error = await call(
            broker,
            method,
            API + filled(path, names),
            filled(body, names),
            Authorization=f"token {token}",
        )
        assert error.keys() >= {"message", "reason"} and error["message"], (method, path, error)
        found[method, path] = status
    return found


async def refused_channel(broker: BrokerProcess, kernel_id: str, token: str) -> int:
    """The status with which a WebSocket is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with connected(broker, kernel_id, token=token):
            pass
    return int(refused.value.response.status_code)


async def test_strangers_and_closed_sessions(
    broker: BrokerProcess, session: kernelbroker.Session, stranger: str, clients: Path
) -> None:
    """A bad token is 403, and what belongs to another tenant, or has ended, is 404, for each call, over the
    WebSocket, and with jupyter_kernel_client; nothing of it is listed."""
    kernel_id = await kernel_of(broker, session.session_id)
    asked = {"path": "mine.ipynb", "type": "notebook", "kernel": {"id": kernel_id}}
    notebook = (await call(broker, "POST", f"{API}/sessions", asked))[1]["id"]
    names = {"kernel": kernel_id, "notebook": notebook, "spec": f"session-{session.session_id}"}
    for token, expected in (("wrong", 403), ("", 403), (stranger, 404)):
        assert set((await refusals(broker, names, token)).values()) == {expected}
        assert await refused_channel(broker, kernel_id, token) == expected
    for path in ("kernels", "sessions", "kernelspecs", "status"):
        status, seen = await call(broker, "GET", f"{API}/{path}", Authorization=f"token {stranger}")
        assert status == 200
        assert not any(each in json.dumps(seen) for each in (*names.values(), "mine.ipynb"))
    async with connected(broker, kernel_id) as kernel:
        assert text_of(await kernel.run("print('untouched')")) == "untouched\n"
    token = broker.token
    cases = {
        "mine": (token, kernel_id),
        "bad token": ("wrong", kernel_id),
        "another tenant's": (stranger, kernel_id),
        "bad token for a new one": ("wrong", None),
    }
    script = SCRIPTS / "kernel_client_errors.py"
    said = json.loads(await run(broker, python(clients), script, json.dumps(cases)))
    assert said["mine"] == kernel_id
    assert "403" in said["bad token"] and "403" in said["bad token for a new one"]
    assert said["another tenant's"] != kernel_id, (
        "it starts one of its own in place of an unknown one"
    )
    await session.close()
    assert set((await refusals(broker, names, token)).values()) == {404}
    assert await refused_channel(broker, kernel_id, token) == 404
    said = json.loads(
        await run(broker, python(clients), script, json.dumps({"closed": (token, kernel_id)}))
    )
    assert said["closed"] != kernel_id


async def test_garbage_over_rest(broker: BrokerProcess) -> None:
    """What is no request is refused in Jupyter's form."""
    for method, path, body, expected in GARBAGE:
        status, error = await call(broker, method, API + path, body)
        assert status == expected, (method, path, body, status, error)
        assert error["message"] and "reason" in error


async def test_garbage_over_channels(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """A frame that is no message closes its connection with a reason; a message whose content makes no
    sense gets an error as its reply. The kernel goes on."""
    kernel_id = await kernel_of(broker, session.session_id)
    for frame in FRAMES:
        async with connected(broker, kernel_id) as kernel:
            await kernel.websocket.send(frame)
            with pytest.raises(ConnectionClosed) as closed:
                await kernel.next()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1007
    async with connected(broker, kernel_id) as kernel:
        contents: list[dict[str, Any]] = [
            {},
            {"code": None},
            {"code": "1", "silent": "no"},
            {"code": "1", "user_expressions": [1]},
            {"code": "x" * 300_000},
        ]
        for content in contents:
            msg_id = await kernel.send("execute_request", content)
            reply = reply_of(await kernel.done(msg_id))
            assert (reply["status"], reply["ename"]) == ("error", "BadRequest"), content
        msg_id = await kernel.send("shutdown_request", {"restart": "please"}, channel="control")
        assert reply_of(await kernel.done(msg_id))["ename"] == "BadRequest"
        assert text_of(await kernel.run("print('on')")) == "on\n"
