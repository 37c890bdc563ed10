"""A sandbox with restored processes has the properties of a launched one, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest

from tests.e2e.support import whole_system

from .launch_ways import broker
from .observed import NAMESPACES, Observed, differences, namespaces, observe
from .probes import CRIU, needs_criu

pytestmark = [*whole_system, needs_criu]

_USER = "it has no user namespace, so the host's number of its user is seen"
_HOLDER = "a shell that waits holds the namespaces for the gateway"
UNLIKE_PLAIN: dict[str, str] = {}
"""The fields in which a sandbox that can be saved may differ from a plain one, and why."""
UNLIKE_LAUNCHED: dict[str, str] = {}
"""The fields in which a restored sandbox may differ from a launched one."""

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
    assert differences(launched, restored) == {}


def test_two_restored_sandboxes_agree(observed: Kinds) -> None:
    """Two sandboxes that were restored from the same processes agree in all fields."""
    assert differences(observed["restored"].fields, observed["twice"].fields) == {}


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
