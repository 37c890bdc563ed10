"""Decides from an assessment whether code runs, runs with a warning, needs a confirmation, or is refused.

`kernelbroker.risk` assesses the code, in separate processes (`assessor`). The sandbox contains the code
in any case. A confirmation is a token for one piece of code in one language and one session; it works once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.errors import ConfirmationRequired, PolicyRefused, Unavailable
from kernelbroker.protocol.findings import (
    Assessment,
    Finding,
    Level,
    PolicyMode,
    at_least,
)
from kernelbroker.protocol.messages import ExecutionRequest

from ..kernels.requests import InternalCell
from ..sessions.store import Entry, EventStore
from ..telemetry.events import ExecutionRefused, Observer, RiskyCode, code_hash, ignore_event
from ..tenants.tenant import Tenant
from .assessor import Assessor
from .pending_confirmations import PendingConfirmation, PendingConfirmations

CONFIRMATION_S = 300.0
_MAX_CONFIRMATIONS = 10_000
"""Valid tokens at a time; the oldest is forgotten first."""
CONFIRMATION_KIND = "confirmation"
"""Of their entries in the event store."""
_NAMED = 3
"""Findings that an error names in its message."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`mode` applies to code whose level is at least `threshold`."""

    mode: PolicyMode = "off"
    threshold: Level = "high"


class Confirmations:
    """Issued tokens, each with the request that it confirms and its expiry.

    Args:
        store: keeps them for the next broker; None for not at all.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        tenant: str = "",
        store: EventStore | None = None,
    ) -> None:
        self._clock = clock
        self._tenant = tenant
        self._store = store
        self._issued: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def issue(self, bound_to: bytes) -> str:
        """Return a new token for the request with this digest."""
        now = self._clock()
        while self._issued and (
            len(self._issued) >= _MAX_CONFIRMATIONS or next(iter(self._issued.values()))[1] <= now
        ):
            self._drop(self._issued.popitem(last=False)[0])
        token = secrets.token_urlsafe(24)
        digest = token_digest(token)
        self._issued[digest] = (bound_to, now + CONFIRMATION_S)
        if self._store is not None:
            until = time.time() + CONFIRMATION_S
            self._store.put_entry(
                Entry(CONFIRMATION_KIND, self._tenant, digest.hex(), bound_to, until)
            )
        return token

    def redeem(self, token: str, bound_to: bytes) -> bool:
        """Use up a token, if it is valid for the request with this digest. Returns whether it was."""
        # Looked up by its hash, so that the lookup's duration reveals nothing about valid tokens.
        digest = token_digest(token)
        expected, until = self._issued.get(digest, (b"", 0.0))
        if self._store is not None and not expected:
            entry = self._store.entry(CONFIRMATION_KIND, self._tenant, digest.hex())
            if entry is not None:  # it was issued by an earlier broker
                expected, until = entry.value, math.inf
        # Whoever sends it with other code by mistake can still send what was confirmed.
        if not hmac.compare_digest(expected, bound_to) or self._clock() >= until:
            return False
        self._issued.pop(digest, None)
        self._drop(digest)
        return True

    def _drop(self, digest: bytes) -> None:
        if self._store is not None:
            self._store.drop_entry(CONFIRMATION_KIND, self._tenant, digest.hex())


class Policies:
    """The policies of one tenant: those of its templates, or one of the tenant for all templates.

    Attributes:
        pending: code that waits for a confirmation.
    """

    def __init__(
        self,
        by_template: Mapping[str, Policy] | None = None,
        own: Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
        tenant: str = "",
        observer: Observer = ignore_event,
        assessor: Assessor | None = None,
        store: EventStore | None = None,
    ) -> None:
        self._assessor = assessor or Assessor()
        self._tenant = tenant
        self._observer = observer
        self._by_template = dict(by_template or {})
        self._own = own
        self._clock = clock
        self._confirmations = Confirmations(clock, tenant, store)
        self.pending = PendingConfirmations()

    def for_tenant(self, tenant: Tenant, observer: Observer, store: EventStore) -> Policies:
        """Return the policies of one tenant, with separate confirmations."""
        limits = tenant.limits
        own = None if limits.policy is None else Policy(limits.policy, limits.policy_threshold)
        return Policies(
            self._by_template, own, self._clock, tenant.name, observer, self._assessor, store
        )

    def effective(self, template: str) -> Policy:
        """Return the policy that applies to a template."""
        return self._own or self._by_template.get(template, Policy())

    async def assess_request(self, request: ExecutionRequest, template: str) -> Assessment | None:
        """Return the assessment that `check` needs; None if the policy is off.

        Raises:
            Unavailable: code of this language cannot be assessed here.
        """
        if self.effective(template).mode == "off":
            return None
        return await self.assess(request.code, request.language or "python")

    async def assess(
        self, code: str, language: str, params: Mapping[str, Any] | None = None
    ) -> Assessment:
        """Assess code, or an action with parameters. Raises as `Assessor.assess`."""
        return await self._assessor.assess(code, language, self._tenant, params)

    async def stop(self) -> None:
        """Stop the assessor, for all tenants."""
        await self._assessor.stop()

    def check(
        self,
        request: ExecutionRequest,
        template: str,
        scope: str,
        assessment: Assessment | None = None,
        internal_cell: InternalCell | None = None,
    ) -> list[Finding]:
        """Decide whether the code may run. No I/O.

        Args:
            scope: the session that a confirmation is valid for.
            assessment: what `assess_request` returned for this request.
            internal_cell: what runs in place of the code. A confirmation is for its options, too.

        Returns:
            The findings for the warning.

        Raises:
            PolicyRefused, ConfirmationRequired: the code may not run, or not yet.
            Unavailable: the policy needs an assessment and there is none.
        """
        policy = self.effective(template)
        if policy.mode == "off":
            return []
        if assessment is None:  # the execution was known before the assessment and is forgotten now
            raise Unavailable("the code was not assessed; send it again", retry_after=1)
        if not at_least(assessment.level, policy.threshold):
            return []
        findings = [f for f in assessment.findings if at_least(f.level, policy.threshold)]
        risk = RiskyCode(
            self._tenant,
            template,
            scope,
            request.language or "python",
            policy.mode,
            assessment.level,
            tuple(dict.fromkeys(each.rule for each in findings)),
        )
        if policy.mode == "warn":
            self._observer(risk)
            return findings
        summary = f"the code is assessed as {assessment.level}: {_summary(findings)}"
        refusal = ExecutionRefused(
            self._tenant,
            template,
            scope,
            request.language or "python",
            code_hash(request.code),
            policy.mode,
        )
        if policy.mode == "block":
            self._observer(risk)
            self._observer(refusal)
            raise PolicyRefused(
                f"{summary}. It was not run; rewrite it without these", findings=findings
            )
        options = () if internal_cell is None else (_text(internal_cell.options),)
        bound_to = token_digest(
            request.language or "python", scope, template, request.code, *options
        )
        if request.confirm is not None:
            self.pending.expect_not_declined(request.confirm)
            if self._confirmations.redeem(request.confirm, bound_to):
                self.pending.confirmed(request.confirm)
                return findings
        self._observer(risk)
        self._observer(refusal)
        token = self._confirmations.issue(bound_to)
        until = time.time() + CONFIRMATION_S
        self.pending.add(
            PendingConfirmation(
                scope,
                template,
                request,
                assessment.level,
                findings,
                token,
                until,
                assessment=assessment,
                internal_cell=internal_cell,
            )
        )
        raise ConfirmationRequired(
            f"{summary}. It was not run; to run it anyway, send it again unchanged in the same "
            f"session, with this confirmation as 'confirm', within {CONFIRMATION_S:g} s",
            findings=findings,
            confirmation=token,
            expires_in=CONFIRMATION_S,
        )


def _summary(findings: list[Finding]) -> str:
    named = [f"{finding.reason} (line {finding.line})" for finding in findings[:_NAMED]]
    if len(findings) > _NAMED:
        named.append(f"{len(findings) - _NAMED} more")
    return "; ".join(named)


def _text(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)


def token_digest(*parts: str) -> bytes:
    """One hash of several texts; texts that are divided differently have different hashes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
