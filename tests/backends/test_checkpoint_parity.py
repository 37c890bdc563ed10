"""A sandbox with restored processes has the properties of a launched one, field by field."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import pytest

from tests.e2e.support import whole_system
from tests.support.requires import CRIU, requires

from .launch_ways import broker
from .observed import NAMESPACES, Observed, differences, namespaces, observe

pytestmark = [*whole_system, requires("root", "criu"), pytest.mark.long]

_USER = "it has no user namespace, so the host's number of its user is seen"
_HANDOVER = "its connections are handed over, and CRIU looks for what is known of the kernel"
_SESSION = "the gateway has a process session of its own, since it joins the one of the holder"
_HOLDER = "a shell that waits holds the namespaces for the gateway"
_COUNTED = "the host would count the processes of all of them; their control groups limit each"
UNLIKE_PLAIN = {
    **{f"{who}.{what}": _USER for who in ("gateway", "kernel") for what in ("gid_map", "uid_map")},
    **{f"{who}.{what}": _USER for who in ("gateway", "kernel") for what in ("owner", "projid_map")},
    **{f"{who}.status.{what}": _USER for who in ("gateway", "kernel") for what in ("Uid", "Gid")},
    "kernel.ids": _USER,
    "gateway.cmdline": _HANDOVER,
    "gateway.descriptors": "/dev/null in place of a pipe, and a pipe for the exit status",
    "gateway.mountinfo": _HANDOVER,
    "kernel.mountinfo": _HANDOVER,
    "gateway.group": _SESSION,
    "gateway.session": _SESSION,
    "gateway.limits": _COUNTED,
    "kernel.limits": _COUNTED,
    "kernel.rlimits": _COUNTED,
    "host.others": _HOLDER,
    "kernel.processes": _HOLDER,
}
"""The fields in which a sandbox that can be saved differs from a plain one, and why."""
_CLOCK = "the clock that counts from the boot goes on from where it was, in a namespace of its own"
ANOTHER_CLOCK = {"gateway.timens_offsets": _CLOCK, "kernel.timens_offsets": _CLOCK}
UNLIKE_LAUNCHED = {
    **ANOTHER_CLOCK,
    "gateway.descriptors": "a socket that was accepted has lost the name of its listener",
    "kernel.descriptors": "the same",
}
"""The fields in which a restored sandbox may differ from a launched one, and why."""

Kinds: TypeAlias = dict[str, Observed]


@pytest.fixture(scope="module")
def observed() -> Iterator[Kinds]:
    """A plain sandbox, one that can be saved, and two that were restored from it."""
    found = {}
    with broker("plain", POOL__MIN_SIZE=1) as client, client.session() as session:
        found["plain"] = observe(session)
    settings = {"LOCAL__CRIU": CRIU, "SANDBOX__PROCESS_CHECKPOINTS": "true", "POOL__MIN_SIZE": 2}
    with broker("fork", **settings) as client, client.session() as session:
        session.checkpoint("fresh", mode="process")
        with (
            client.session(from_checkpoint="fresh") as one,
            client.session(from_checkpoint="fresh") as other,
        ):
            sessions = {"launched": session, "restored": one, "twice": other}
            yield found | {name: observe(each) for name, each in sessions.items()}


def test_a_restored_sandbox_is_as_a_launched_one(observed: Kinds) -> None:
    """Rights, filter, limits, control groups, mounts, descriptors and more agree."""
    launched, restored = observed["launched"].fields, observed["restored"].fields
    assert len(launched) > 300
    found = differences(launched, restored)
    assert found.keys() <= UNLIKE_LAUNCHED.keys(), found
    assert _without_names(launched) == _without_names(restored)


def test_two_restored_sandboxes_agree(observed: Kinds) -> None:
    """Two sandboxes that were restored from the same processes agree in all fields."""
    found = differences(observed["restored"].fields, observed["twice"].fields)
    assert found.keys() <= ANOTHER_CLOCK.keys(), found


def test_namespaces_are_its_own(observed: Kinds) -> None:
    """Each namespace is neither the host's nor another sandbox's, except for the one of users."""
    host = namespaces("self")
    kinds = [observed[name].namespaces for name in ("launched", "restored", "twice")]
    for kind in NAMESPACES:
        own = {each[kind] for each in kinds}
        assert (own == {host[kind]}) if kind == "user" else (len(own | {host[kind]}) == 4), kind


def test_it_differs_from_a_plain_one_only_as_listed(observed: Kinds) -> None:
    """The list of differences is complete and exact."""
    found = differences(observed["plain"].fields, observed["launched"].fields)
    assert found.keys() == UNLIKE_PLAIN.keys(), found


def _without_names(fields: dict[str, Any]) -> list[set[str]]:
    """The descriptors, without the names of sockets."""
    return [
        {re.sub(r"(unix \S+ \S+ \S+) \S*", r"\1", each) for each in fields[f"{who}.descriptors"]}
        for who in ("gateway", "kernel")
    ]
