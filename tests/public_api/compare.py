"""Compares the public facts of two versions. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NEED = " required"


@dataclass(frozen=True, slots=True)
class Deprecation:
    """A fact that a later version may lose.

    Attributes:
        since: the version that has announced it.
        removal: the first version that may lack it.
    """

    since: tuple[int, ...]
    removal: tuple[int, ...]


def parse_deprecations(text: str) -> dict[str, Deprecation]:
    """Read deprecated.txt: `SINCE REMOVAL FACT` in each line, versions as 1.2.0. Raises ValueError.

    What is removed was announced in an earlier major version.
    """
    found = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        since, removal, fact = line.split(maxsplit=2)
        each = Deprecation(parse_version(since), parse_version(removal))
        if each.removal[0] <= each.since[0] or any(each.removal[1:]):
            raise ValueError(f"{fact}: it may be removed in a new major version, not in {removal}")
        found[fact] = each
    return found


def parse_version(text: str) -> tuple[int, ...]:
    """1.2.0 as numbers. Raises ValueError."""
    numbers = tuple(int(each) for each in text.split("."))
    if len(numbers) != 3:
        raise ValueError(f"{text} is no version such as 1.2.0")
    return numbers


def broken_promises(
    released: Iterable[str],
    present: Iterable[str],
    deprecations: Mapping[str, Deprecation],
    version: tuple[int, ...],
) -> list[str]:
    """What programs for the released version rely on, and the present one breaks.

    A fact is lost, or something that existed requires more than before. Additions are no breaks.
    """
    before, now = set(released), set(present)
    allowed = {fact for fact, each in deprecations.items() if version >= each.removal}
    lost = [
        f"lost: {fact}"
        for fact in sorted(before - now)
        if fact not in allowed
        and not fact.endswith(_NEED)  # now it is optional, or has gone
        and not any(fact.startswith((f"{each}.", f"{each}(", f"{each} ")) for each in allowed)
    ]
    demanded = [
        f"newly required: {fact}"
        for fact in sorted(now - before)
        if fact.endswith(_NEED) and _owner(fact) in before
    ]
    return lost + demanded


def _owner(fact: str) -> str:
    """The function, the type or the command that something is required of."""
    name = fact.removesuffix(_NEED)
    if name.endswith(")"):
        return name.rpartition("(")[0]
    if name.startswith(("api request ", "setting ")):
        return name.rpartition(".")[0]
    if name.startswith("api "):
        return name.rsplit(" ", 2)[0]
    return name.rpartition(" ")[0]
