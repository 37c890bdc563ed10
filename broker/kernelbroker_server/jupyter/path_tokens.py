"""Tokens in paths, for clients that send no header over a WebSocket."""

from __future__ import annotations

from collections import OrderedDict

_MAX_TOKENS = 1000


class PathTokens:
    """The tokens that valid requests had in their paths, so that they are recognised in lower case.

    Jupyter's gateway client turns the address of its WebSockets to lower case. Each of them follows a
    request over HTTP with the same token. 24 random bytes cannot be guessed in lower case either.
    """

    def __init__(self) -> None:
        self._by_lower_case: OrderedDict[str, str] = OrderedDict()

    def remember(self, token: str) -> None:
        """Note a valid token."""
        self._by_lower_case[token.lower()] = token
        self._by_lower_case.move_to_end(token.lower())
        while len(self._by_lower_case) > _MAX_TOKENS:
            self._by_lower_case.popitem(last=False)

    def find(self, token: str) -> str:
        """Return the token that this one is in lower case; else this one."""
        return self._by_lower_case.get(token, token)
