"""The REST API of the kernel server, and who may use it."""

from __future__ import annotations

import asyncio
import json
import uuid
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import kernelbroker
import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.support import BrokerProcess, call, whole_system
from tests.jupyter.support import connected, kernel_of, text_of

pytestmark = whole_system

API = "/jupyter/api"


def fetch(url: str, **headers: str) -> tuple[int, object]:
    """Status and JSON of a GET request with these headers."""
    try:
        with urlopen(Request(url, headers=headers)) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


async def test_kernels(broker: BrokerProcess) -> None:
    """A kernel is started, listed, found by the SDK as a session, and shut down."""
    status, kernel = await call(broker, "POST", f"{API}/kernels", {"name": "python3", "path": "x"})
    assert status == 201
    assert kernel["name"] == "python3" and kernel["execution_state"] == "idle"
    path = f"{API}/kernels/{kernel['id']}"
    assert await call(broker, "GET", path) == (200, kernel)
    assert kernel in (await call(broker, "GET", f"{API}/kernels"))[1]
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        await client.attach(kernel["session_id"]) as session,
    ):
        assert (await session.run("1 + 1")).text == "2"
    assert (await call(broker, "DELETE", path))[0] == 204
    status, error = await call(broker, "GET", path)
    assert status == 404 and error["message"] and error["reason"] is None
    status, error = await call(broker, "POST", f"{API}/kernels", {"name": "nonsense"})
    assert status == 404 and "python3" in error["message"]


async def test_a_client_chooses_the_id(broker: BrokerProcess) -> None:
    """A kernel has the id that its client asks for, or is the one that has it. Other forms are refused."""
    chosen = str(uuid.uuid4())
    asked = {"name": "python3", "kernel_id": chosen}
    for _ in range(2):
        assert (await call(broker, "POST", f"{API}/kernels", asked))[1]["id"] == chosen
    path = f"{API}/kernels/{chosen}"
    assert (await call(broker, "DELETE", path))[0] == 204
    assert (await call(broker, "POST", f"{API}/kernels", asked))[1]["id"] == chosen, (
        "it can be used again"
    )
    assert (await call(broker, "DELETE", path))[0] == 204
    for wrong in ("mine", "../../x", "a-b-c-d-e f", "1-2-3-4-" + "5" * 60):
        status, error = await call(broker, "POST", f"{API}/kernels", {"kernel_id": wrong})
        assert status == 400 and "five groups" in error["message"]


async def test_the_words_of_jupyter_servers(broker: BrokerProcess) -> None:
    """Clients compare these: the message of an unknown kernel, the policy of answers, the default name."""
    unknown = "111-111-111-111-111"
    for method in ("GET", "DELETE"):
        status, error = await call(broker, method, f"{API}/kernels/{unknown}")
        assert (status, error["message"]) == (404, f"Kernel does not exist: {unknown}")
    request = Request(
        f"{broker.url}{API}/kernels", headers={"Authorization": f"token {broker.token}"}
    )
    with await asyncio.to_thread(urlopen, request) as response:
        assert response.headers["Content-Security-Policy"] == (
            "frame-ancestors 'self'; report-uri /jupyter/api/security/csp-report; default-src 'none'"
        )
    kernel = (await call(broker, "POST", f"{API}/kernels", {"name": "python"}))[1]
    assert kernel["name"] == "python3"
    assert (await call(broker, "DELETE", f"{API}/kernels/{kernel['id']}"))[0] == 204


async def test_older_clients_name_a_notebook(broker: BrokerProcess) -> None:
    """`notebook` has its path, in a new session and in a change."""
    asked = {"notebook": {"path": "old/a.ipynb"}, "kernel": {"name": "python"}}
    status, made = await call(broker, "POST", f"{API}/sessions", asked)
    assert (status, made["path"], made["type"]) == (201, "old/a.ipynb", "notebook")
    path = f"{API}/sessions/{made['id']}"
    changed = (await call(broker, "PATCH", path, {"notebook": {"path": "b.ipynb"}}))[1]
    assert (changed["path"], changed["notebook"]["path"]) == ("b.ipynb", "b.ipynb")
    assert (await call(broker, "PATCH", path, {"kernel": {"id": "foo"}}))[0] == 404
    assert (await call(broker, "DELETE", path))[0] == 204


async def test_paths_of_a_kernel_are_resolved(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """A path as the kernel shows it leads to its file; what is not there, or outside, does not."""
    await session.files.write("more/hello.py", "1")
    kernel = await kernel_of(broker, session.session_id)

    async def resolved(path: str, kernel: str = kernel) -> object:
        query = urlencode({"path": path, "kernel": kernel})
        return (await call(broker, "GET", f"{API}/resolvePath?{query}"))[1]

    found = {"resolved": [{"scope": "kernel", "path": "/data/more/hello.py"}]}
    assert await resolved("more/hello.py") == await resolved("/data/more/hello.py") == found
    for path in ("hello.py", "../etc/passwd", "/etc/passwd"):
        assert await resolved(path) == {"resolved": []}
    unknown = await resolved("more/hello.py", "1-1-1-1-1")
    assert unknown == {
        "resolved": [],
        "unresolved": [{"scope": "kernel", "reason": "Kernel 1-1-1-1-1 could not be found"}],
    }


async def test_sessions_of_notebooks(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """A notebook has a kernel, is moved, and takes its kernel with it; an agent's session stays."""
    asked = {"path": "a.ipynb", "name": "a", "type": "notebook", "kernel": {"name": "python3"}}
    status, made = await call(broker, "POST", f"{API}/sessions", asked)
    assert (status, made["path"], made["notebook"]["path"]) == (201, "a.ipynb", "a.ipynb")
    assert (await call(broker, "POST", f"{API}/sessions", asked))[1]["id"] == made["id"]
    path = f"{API}/sessions/{made['id']}"
    assert (await call(broker, "PATCH", path, {"path": "b.ipynb"}))[1]["path"] == "b.ipynb"
    assert made["id"] in [each["id"] for each in (await call(broker, "GET", f"{API}/sessions"))[1]]
    agents = await kernel_of(broker, session.session_id)
    changed = (await call(broker, "PATCH", path, {"kernel": {"id": agents}}))[1]
    assert changed["kernel"]["id"] == agents
    assert (await call(broker, "GET", f"{API}/kernels/{made['kernel']['id']}"))[0] == 404
    assert (await call(broker, "DELETE", path))[0] == 204
    assert (await call(broker, "GET", path))[0] == 404
    assert (await session.run("1")).success


@pytest.mark.parametrize("shape", ["uuid", "name"])
async def test_only_jupyter_s_sessions_are_closed(broker: BrokerProcess, shape: str) -> None:
    """Whatever a Jupyter client does to a kernel of another client, its session stays."""
    name = str(uuid.uuid4()) if shape == "uuid" else "mine"
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(name) as session,
    ):
        assert (await session.run("x = 42")).success
        specs = (await call(broker, "GET", f"{API}/kernelspecs"))[1]
        assert f"session-{name}" in specs["kernelspecs"]
        kernel = await kernel_of(broker, name)
        asked = {"path": f"{name}.ipynb", "type": "notebook", "kernel": {"id": kernel}}
        status, note = await call(broker, "POST", f"{API}/sessions", asked)
        assert status == 201
        assert (await call(broker, "DELETE", f"{API}/sessions/{note['id']}"))[0] == 204
        assert (await session.run("x")).text == "42"
        assert (await call(broker, "DELETE", f"{API}/kernels/{kernel}"))[0] == 204
        assert (await session.run("x")).text == "42"
        async with connected(broker, kernel) as notebook:
            await notebook.send("shutdown_request", {"restart": False}, channel="control")
            await notebook.until("shutdown_reply")
        assert (await session.run("x")).text == "42"


async def test_attaching_by_kernelspec(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """A client that only attaches to a session does not close it when it shuts its kernel down."""
    await session.run("amount = 20")
    spec = f"session-{session.session_id}"
    specs = (await call(broker, "GET", f"{API}/kernelspecs"))[1]
    assert specs["default"] == "python3" and {"python3", spec} <= specs["kernelspecs"].keys()
    assert (await call(broker, "GET", f"{API}/kernelspecs/{spec}"))[1] == specs["kernelspecs"][spec]
    status, kernel = await call(broker, "POST", f"{API}/kernels", {"name": spec})
    assert status == 201 and kernel["session_id"] == session.session_id and kernel["name"] == spec
    async with connected(broker, kernel["id"]) as client:
        assert text_of(await client.run("print(amount)")) == "20\n"
    assert (await call(broker, "DELETE", f"{API}/kernels/{kernel['id']}"))[0] == 204
    assert (await session.run("amount")).text == "20"


async def test_the_server_itself(broker: BrokerProcess) -> None:
    """Version, status, user and an empty directory; other paths and bodies get Jupyter's errors."""
    assert "version" in (await call(broker, "GET", API))[1]
    status = (await call(broker, "GET", f"{API}/status"))[1]
    assert status.keys() == {"started", "last_activity", "connections", "kernels"}
    me = (await call(broker, "GET", f"{API}/me"))[1]
    assert me["identity"]["username"] == "default" and me["permissions"] == {}
    assert (await call(broker, "GET", f"{API}/contents"))[1]["content"] == []
    for method, path, body, expected in (
        ("POST", f"{API}/contents", {}, 405),
        ("GET", f"{API}/terminals", None, 404),
        ("POST", f"{API}/kernels", [1], 400),
        ("GET", f"{API}/kernels/nonsense/channels", None, 400),
        ("PUT", f"{API}/kernels", {}, 405),
    ):
        found, error = await call(broker, method, path, body)
        assert found == expected and error["message"] and "reason" in error


async def test_tokens(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """A token is taken in a header, the query or the path, a wrong one is refused, and none is logged."""
    url, token = f"{broker.url}{API}/kernels", broker.token
    assert fetch(url, Authorization=f"token {token}")[0] == 200
    assert fetch(url, Authorization=f"Bearer {token}")[0] == 200
    assert fetch(f"{url}?token={token}")[0] == 200
    in_path = f"{broker.url}/jupyter/t/{token}/api/kernels"
    assert fetch(in_path, Authorization="token None")[0] == 200
    for status, body in (
        fetch(url),
        fetch(f"{url}?token=wrong"),
        fetch(url, Authorization="token wrong"),
        fetch(f"{broker.url}/jupyter/t/wrong/api/kernels"),
        fetch(f"{broker.url}/jupyter/t/{token}/nonsense"),
    ):
        assert status in (403, 404) and isinstance(body, dict) and body["message"]
    kernel_id = await kernel_of(broker, session.session_id)
    for options in (
        {"headers": {"Authorization": f"token {token}"}},
        {"headers": {"Authorization": f"Bearer {token}"}},
        {"prefix": f"/jupyter/t/{token}"},
        {"prefix": f"/jupyter/t/{token.lower()}"},
    ):
        async with connected(broker, kernel_id, **options) as client:  # type: ignore[arg-type]
            assert text_of(await client.run("print(1)")) == "1\n"
    for options in ({"token": "wrong"}, {"token": ""}, {"headers": {}}):
        with pytest.raises(InvalidStatus) as refused:
            async with connected(broker, kernel_id, **options):  # type: ignore[arg-type]
                pass
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        async with connected(broker, "00000000-0000-0000-0000-000000000000"):
            pass
    assert refused.value.response.status_code == 404
    assert token not in broker.log.read_text()
