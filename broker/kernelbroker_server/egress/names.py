"""Host names, and which of them an allow list lets through. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

import idna

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME = 253


class BadName(ValueError):
    """It is no host name; the message says why."""


class AddressLiteral(BadName):
    """It is an IP address, in one spelling or another."""


def canonical(name: str) -> str:
    """An ASCII name in lower case, without the dot at its end.

    Raises:
        AddressLiteral: what ends in a number is an IPv4 address to most programs (127.1, 0x7f.1).
        BadName: it has characters that no host name has, or is too long.
    """
    name = name.lower().removesuffix(".")
    if ":" in name or name.startswith("["):
        raise AddressLiteral("addresses are not taken, only names")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        raise AddressLiteral("addresses are not taken, only names")
    if len(name) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise BadName("it is no host name")
    return name


def canonical_entry(entry: str) -> str:
    """An entry of an allow list, `example.org` or `*.example.org`, as it is compared.

    Raises:
        BadName: with what an entry looks like.
    """
    prefix, name = ("*.", entry[2:]) if entry.startswith("*.") else ("", entry)
    try:
        if not name.isascii():  # on the wire a name is in ASCII only
            name = idna.encode(name, uts46=True).decode()
        return prefix + canonical(name)
    except (BadName, idna.IDNAError) as error:
        raise BadName(
            f"{entry!r} is no name such as pypi.org or *.example.org, "
            "without a scheme, a port or a path"
        ) from error


class AllowList:
    """Names, and with `*.` before it all names below one, but not that one itself."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises BadName."""
        canonicals = [canonical_entry(entry) for entry in entries]
        self._names = frozenset(entry for entry in canonicals if not entry.startswith("*."))
        self._suffixes = tuple(entry[1:] for entry in canonicals if entry.startswith("*."))

    def __contains__(self, name: str) -> bool:
        """Whether a canonical name is let through."""
        return name in self._names or name.endswith(self._suffixes)
