"""Cross-origin requests of web pages (https://fetch.spec.whatwg.org/#http-cors-protocol).

Only pages of the `allowed_origins` may read answers. Cookies are never used, so there are no
credentialed requests: a page sends its token in the Authorization header.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tornado.httputil import HTTPHeaders

_REQUEST_HEADERS = (
    "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, "
    "Mcp-Name, Mcp-Session-Id, Range, X-Kernelbroker-Client, X-Request-ID"
)
_RESPONSE_HEADERS = (
    "Accept-Ranges, Content-Range, Idempotent-Replayed, Mcp-Session-Id, Retry-After, X-Execution-ID, "
    "X-Request-ID"
)
_MAX_AGE_S = 600
"""How long a browser may remember the answer to a preflight request."""


def is_preflight(method: str | None, headers: HTTPHeaders) -> bool:
    return method == "OPTIONS" and "Access-Control-Request-Method" in headers


def response_headers(headers: HTTPHeaders, allowed: Collection[str]) -> dict[str, str]:
    """Return the headers of every answer to a request with these headers."""
    if not allowed:
        return {}
    origin = headers.get("Origin", "")
    if origin.lower() not in allowed:
        return {"Vary": "Origin"}
    return {
        "Vary": "Origin",
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": _RESPONSE_HEADERS,
    }


def preflight_headers(methods: Iterable[str]) -> dict[str, str]:
    """Return the headers that an answer to a preflight request has in addition."""
    return {
        "Access-Control-Allow-Methods": ", ".join(methods),
        "Access-Control-Allow-Headers": _REQUEST_HEADERS,
        "Access-Control-Max-Age": str(_MAX_AGE_S),
    }
