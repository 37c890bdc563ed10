"""Which template a cell runs in, for sessions whose template is `auto`. Decides at once, without I/O.

The kinds of sandboxes are those that an assessment suggests. Each leads to a template of the broker: that
which the operator has set, or the strongest that there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.findings import Assessment, SandboxKind

from ..backends.base import Isolation, Network
from ..pool.runner import Pool

AUTO = "auto"
"""The template of sessions that are routed."""
KINDS: tuple[SandboxKind, ...] = ("subprocess", "docker_simple", "aio_sandbox")
_BROWSER = re.compile(r"selenium|playwright|puppeteer|browser|screenshot", re.IGNORECASE)
_ORDER = tuple(Isolation)


@dataclass(frozen=True, slots=True)
class Routing:
    """The operator's settings.

    Attributes:
        templates: the template of each kind that is set.
        require: refuse code rather than run it in a weaker kind of sandbox than suggested.
        strict: the templates with the profile `strict`.
    """

    templates: Mapping[SandboxKind, str] = field(default_factory=dict)
    require: bool = False
    strict: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a cell runs.

    Attributes:
        kind: what the assessment suggests; None for an explicit template.
    """

    pool: Pool
    kind: SandboxKind | None = None


class Rejected(Exception):
    """The cell must not run; the message is the reason."""


class Routes:
    """The routes of one tenant.

    Args:
        pools: of the templates that the tenant may use, by name. Their backends have been started when a
            method is called.
    """

    def __init__(self, pools: Mapping[str, Pool], routing: Routing | None = None) -> None:
        self._pools = pools
        self._routing = routing or Routing()

    def start(self) -> Pool:
        """Where a session begins. Raises BadRequest if nothing here isolates code."""
        if (pool := self.find("subprocess") or self.find("docker_simple")) is None:
            raise BadRequest(
                'template = "auto" needs jails or containers, and this broker has neither for you'
            )
        return pool

    def decide(self, code: str, assessment: Assessment, template: str | None = None) -> Place:
        """Decide where a cell runs.

        Args:
            template: the one that the client asks for.

        Raises:
            Rejected: it must not run.
            BadRequest: there is no such template.
        """
        if assessment.suggested_sandbox == "REJECT":
            raise Rejected(assessment.reason)
        if template is not None:
            if template not in self._pools:
                known = ", ".join(sorted(self._pools))
                raise BadRequest(f"no template {template!r}; there are: {known}")
            return Place(self._pools[template])
        kind = _kind(code, assessment)
        pool = self.find(kind)
        if pool is None or (self._routing.require and not self._is_full(kind, pool)):
            raise Rejected(f"this broker has no sandbox of the kind {kind}")
        return Place(pool, kind)

    def isolated(self) -> Place | None:
        """The place of code of which nothing is known."""
        pool = self.find("docker_simple")
        return None if pool is None else Place(pool, "docker_simple")

    def find(self, kind: SandboxKind) -> Pool | None:
        """The pool of a kind, or the strongest in place of it; None if nothing isolates code here."""
        if (own := self._routing.templates.get(kind)) is not None and own in self._pools:
            pool = self._pools[own]
            return None if pool.backend.isolation is Isolation.PROCESS else pool
        isolated = [p for p in self._pools.values() if p.backend.isolation is not Isolation.PROCESS]
        if not isolated:
            return None
        weigh = self._for_safe_code if kind == "subprocess" else self._for_risky_code
        return max(isolated, key=weigh)

    def must_move(self, current: Pool, place: Place) -> bool:
        """Whether a session leaves its pool for a cell: never for a sandbox that is not stronger."""
        if place.pool is current:
            return False
        if place.kind is None or place.kind == "aio_sandbox":
            return True
        return self._strength(place.pool) > self._strength(current)

    def kind_of(self, pool: Pool, asked: SandboxKind | None) -> SandboxKind | None:
        """The kind of sandbox that a pool has: the one that was asked for, if it is one of several."""
        kinds = [kind for kind in KINDS if self.find(kind) is pool]
        if asked in kinds:
            return asked
        return "docker_simple" if "docker_simple" in kinds else next(iter(kinds), None)

    def describe(self) -> dict[str, Any]:
        """Describe the routes, for `/health`."""
        found: dict[str, Any] = {}
        for kind in KINDS:
            pool = self.find(kind)
            found[kind] = pool and {
                "template": pool.spec.template,
                "isolation": pool.backend.isolation.value,
            }
        notes = []
        isolations = {pool.backend.isolation for pool in self._pools.values()}
        if Isolation.BUBBLEWRAP not in isolations:
            notes.append("no template has jails here, so subprocess takes containers")
        if not isolations & {Isolation.CONTAINER, Isolation.GVISOR}:
            notes.append("no template has containers here, so docker_simple takes jails")
        return {**found, "require": self._routing.require, "notes": notes}

    def _is_full(self, kind: SandboxKind, pool: Pool) -> bool:
        """Whether a sandbox is what its kind says, and no replacement."""
        is_set = self._routing.templates.get(kind) == pool.spec.template
        if kind == "aio_sandbox":
            return is_set
        return kind == "subprocess" or is_set or _is_container(pool)

    def _for_safe_code(self, pool: Pool) -> tuple[bool, ...]:
        spec = pool.spec
        return (
            pool.backend.isolation is Isolation.BUBBLEWRAP,
            spec.template not in self._routing.strict,
            spec.template == "default",
        )

    def _for_risky_code(self, pool: Pool) -> tuple[Any, ...]:
        spec = pool.spec
        return (
            _ORDER.index(pool.backend.isolation),
            spec.template in self._routing.strict,
            spec.network is Network.NONE and not spec.upstreams,
            spec.image is None,
            spec.template == "default",
        )

    def _strength(self, pool: Pool) -> tuple[int, bool]:
        is_for_risky_code = pool in (self.find("docker_simple"), self.find("aio_sandbox"))
        return _ORDER.index(pool.backend.isolation), is_for_risky_code


def _kind(code: str, assessment: Assessment) -> SandboxKind:
    suggested = assessment.suggested_sandbox
    if suggested == "aio_sandbox":
        return "aio_sandbox"
    if not assessment.requires_isolation:
        return "subprocess"
    return "aio_sandbox" if _BROWSER.search(code) else "docker_simple"


def _is_container(pool: Pool) -> bool:
    return pool.backend.isolation in (Isolation.CONTAINER, Isolation.GVISOR)
