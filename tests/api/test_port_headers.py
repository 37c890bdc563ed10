"""Which headers pass between clients and servers of user code."""

from __future__ import annotations

import pytest
from kernelbroker_server.api.port_headers import to_client, to_server
from tornado.httputil import HTTPHeaders


def sent(headers: dict[str, str], *, authorization: bool = False) -> dict[str, str]:
    given = HTTPHeaders(headers)
    passed = to_server(
        given, port=8000, host="broker", protocol="https", authorization=authorization
    )
    return {name.lower(): value for name, value in passed}


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "Cookie", "X-API-Key", "X-Access-Token", "E2b-Sandbox-Id"),
        *("E2B-Traffic-Access-Token", "Proxy-Authorization", "TE", "Upgrade", "X-Hop"),
        "X-Kernelbroker-Hop",
    ],
)
def test_credentials_and_hops_do_not_reach_the_server(name: str) -> None:
    """The server gets no credential of the broker, and nothing that is for one connection."""
    assert name.lower() not in sent({name: "1", "Connection": "close, X-Hop"})


def test_the_rest_reaches_the_server() -> None:
    """Other headers pass; the server learns what the client asked the broker for."""
    passed = sent({"X-Own": "1", "Host": "evil", "Authorization": "Basic x"}, authorization=True)
    assert (passed["x-own"], passed["authorization"]) == ("1", "Basic x")
    assert passed["host"] == "localhost:8000"
    assert (passed["x-forwarded-host"], passed["x-forwarded-proto"]) == ("broker", "https")


def test_subprotocols_with_a_token_are_removed() -> None:
    """A browser's token travels as a subprotocol, which the server does not see."""
    offered = "kernelbroker.v1, kernelbroker.bearer.c2VjcmV0, graphql-ws"
    assert sent({"Sec-WebSocket-Protocol": offered})["sec-websocket-protocol"] == "graphql-ws"
    only = sent({"Sec-WebSocket-Protocol": "kernelbroker.bearer.c2VjcmV0"})
    assert "sec-websocket-protocol" not in only


def test_answers_cannot_act_for_the_origin() -> None:
    """No cookie, no policy and no worker of the server's applies to the broker's origin."""
    given = [
        ("Set-Cookie", "a=1"),
        ("Set-Cookie", "b=2"),
        ("Service-Worker-Allowed", "/"),
        ("Clear-Site-Data", "*"),
        ("Content-Security-Policy", "default-src *"),
        ("X-Content-Type-Options", "none"),
        ("Content-Type", "text/html"),
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
    ]
    passed = {name.lower(): value for name, value in to_client(given)}
    policy = passed.pop("content-security-policy")
    assert policy.startswith("sandbox") and "allow-same-origin" not in policy
    assert passed == {"content-type": "text/html", "x-content-type-options": "nosniff"}
