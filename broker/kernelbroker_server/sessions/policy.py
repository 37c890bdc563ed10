"""What becomes of code that was judged: it runs, runs with a warning, is asked about, or is refused.

The judging is `kernelbroker.risk`'s, in processes of their own; the sandbox is what holds the code in any
case. A confirmation is a token that was handed out for one piece of code, in one language and one
session, and works once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kernelbroker.protocol.errors import ConfirmationRequired, PolicyRefused, Unavailable
from kernelbroker.protocol.findings import (
    Assessment,
    Finding,
    Language,
    Level,
    PolicyMode,
    at_least,
)
from kernelbroker.protocol.messages import ExecutionRequest

from ..telemetry.facts import ExecutionRefused, Observer, code_hash, nobody
from ..tenants.tenant import Tenant
from .judges import Judges

CONFIRMATION_S = 300.0
_MAX_CONFIRMATIONS = 10_000
"""Tokens that are out at once; the oldest is forgotten first."""
_NAMED = 3
"""Findings that an error names in its message."""


@dataclass(frozen=True, slots=True)
class Policy:
    """From `threshold` on `mode` applies."""

    mode: PolicyMode = "off"
    threshold: Level = "high"


class Confirmations:
    """Tokens that were handed out, each with what it is bound to, and until when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._out: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()

    def hand_out(self, bound_to: bytes) -> str:
        now = self._clock()
        while self._out and (
            len(self._out) >= _MAX_CONFIRMATIONS or next(iter(self._out.values()))[1] <= now
        ):
            self._out.popitem(last=False)
        token = secrets.token_urlsafe(24)
        self._out[_digest(token)] = (bound_to, now + CONFIRMATION_S)
        return token

    def take_back(self, token: str, bound_to: bytes) -> bool:
        """Whether the token was handed out for this and is still good. It is not, from now on."""
        # Looked up by its hash, so that how long it takes says nothing of the tokens that are out.
        expected, until = self._out.pop(_digest(token), (b"", 0.0))
        return hmac.compare_digest(expected, bound_to) and self._clock() < until


class Policies:
    """Judges what is submitted, by the policy of its template, or its tenant's own for all templates."""

    def __init__(
        self,
        by_template: Mapping[str, Policy] | None = None,
        own: Policy | None = None,
        clock: Callable[[], float] = time.monotonic,
        tenant: str = "",
        observer: Observer = nobody,
        judges: Judges | None = None,
    ) -> None:
        self._judges = judges or Judges()
        self._tenant = tenant
        self._observer = observer
        self._by_template = dict(by_template or {})
        self._own = own
        self._clock = clock
        self._confirmations = Confirmations(clock)
        self._judging = asyncio.Lock()

    def of(self, tenant: Tenant, observer: Observer) -> Policies:
        """The same, as it is for one tenant, with confirmations of its own."""
        limits = tenant.limits
        own = None if limits.policy is None else Policy(limits.policy, limits.policy_threshold)
        return Policies(self._by_template, own, self._clock, tenant.name, observer, self._judges)

    def effective(self, template: str) -> Policy:
        """The policy in force."""
        return self._own or self._by_template.get(template, Policy())

    async def judge(self, request: ExecutionRequest, template: str) -> Assessment | None:
        """What `admit` needs to know of the code, without holding up the loop; None with no policy.

        Raises:
            Unavailable: code of this language cannot be judged here.
        """
        if self.effective(template).mode == "off":
            return None
        return await self.assess(request.code, request.language)

    async def assess(self, code: str, language: Language) -> Assessment:
        """As `Judges.assess`, one after the other: no tenant has all the processes."""
        async with self._judging:
            return await self._judges.assess(code, language)

    async def stop(self) -> None:
        """Judge no more, for any tenant."""
        await self._judges.stop()

    def admit(
        self,
        request: ExecutionRequest,
        template: str,
        scope: str,
        assessment: Assessment | None = None,
    ) -> list[Finding]:
        """Decide, at once: what is to be warned of, where the code may run.

        Args:
            scope: whose code it is: a confirmation is good for the same scope alone.
            assessment: of this very code, as `judge` gave it.

        Raises:
            PolicyRefused, ConfirmationRequired: it may not run, or not yet.
            Unavailable: it was not judged.
        """
        policy = self.effective(template)
        if policy.mode == "off":
            return []
        if assessment is None:  # `judge` took it for one that is known, and it was forgotten since
            raise Unavailable("the code was not judged; send it again", retry_after=1)
        if not at_least(assessment.level, policy.threshold):
            return []
        findings = [f for f in assessment.findings if at_least(f.level, policy.threshold)]
        if policy.mode == "warn":
            return findings
        told = f"the code is judged {assessment.level}: {_told(findings)}"
        refusal = ExecutionRefused(
            self._tenant,
            template,
            scope,
            request.language,
            code_hash(request.code),
            policy.mode,
        )
        if policy.mode == "block":
            self._observer(refusal)
            raise PolicyRefused(
                f"{told}. It was not run; rewrite it without these", findings=findings
            )
        bound_to = _digest(request.language, scope, template, request.code)
        if request.confirm is not None and self._confirmations.take_back(request.confirm, bound_to):
            return findings
        self._observer(refusal)
        raise ConfirmationRequired(
            f"{told}. It was not run; to run it all the same, send it again unchanged in the same "
            f"session, with this confirmation as 'confirm', within {CONFIRMATION_S:g} s",
            findings=findings,
            confirmation=self._confirmations.hand_out(bound_to),
            expires_in=CONFIRMATION_S,
        )


def _told(findings: list[Finding]) -> str:
    told = [f"{finding.reason} (line {finding.line})" for finding in findings[:_NAMED]]
    if len(findings) > _NAMED:
        told.append(f"{len(findings) - _NAMED} more")
    return "; ".join(told)


def _digest(*parts: str) -> bytes:
    """One hash of several texts, which cannot be cut in another way to the same."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
