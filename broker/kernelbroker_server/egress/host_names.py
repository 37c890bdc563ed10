"""Host names, and allow lists of them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable

import idna

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_MAX_NAME = 253


class InvalidHostName(ValueError):
    """The text is not a host name; the message says why."""


class AddressLiteral(InvalidHostName):
    """The text is an IP address in any notation."""


def normalize_host(name: str) -> str:
    """The name in lower case, without a dot at its end.

    Raises:
        AddressLiteral: it is an IP address. Most programs take a name that ends in a number for an IPv4
            address (127.1, 0x7f.1).
        InvalidHostName: it has invalid characters, or is too long.
    """
    name = name.lower().removesuffix(".")
    if ":" in name or name.startswith("["):
        raise AddressLiteral("IP addresses are not allowed, only host names")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        raise AddressLiteral("IP addresses are not allowed, only host names")
    if len(name) > _MAX_NAME or not all(map(_LABEL.fullmatch, labels)):
        raise InvalidHostName("this is not a valid host name")
    return name


def normalize_allow_entry(entry: str) -> str:
    """An entry of an allow list, `example.org` or `*.example.org`, in the form in which it is compared.

    Raises:
        InvalidHostName: the message says what an entry looks like.
    """
    prefix, name = ("*.", entry[2:]) if entry.startswith("*.") else ("", entry)
    try:
        if not name.isascii():  # names in requests are in ASCII (IDNA)
            name = idna.encode(name, uts46=True).decode()
        return prefix + normalize_host(name)
    except (InvalidHostName, idna.IDNAError) as error:
        raise InvalidHostName(
            f"{entry!r} is not a name such as pypi.org or *.example.org, "
            "without a scheme, a port or a path"
        ) from error


class AllowList:
    """Allowed host names. `*.example.org` allows all names below example.org, but not that name."""

    def __init__(self, entries: Iterable[str]) -> None:
        """Raises InvalidHostName."""
        canonicals = [normalize_allow_entry(entry) for entry in entries]
        self._names = frozenset(entry for entry in canonicals if not entry.startswith("*."))
        self._suffixes = tuple(entry[1:] for entry in canonicals if entry.startswith("*."))

    def __contains__(self, name: str) -> bool:
        """Whether a name, as returned by `normalize_host`, is allowed."""
        return name in self._names or name.endswith(self._suffixes)
