"""What can go wrong, as exceptions that both sides share.

The tree::

    KernelBrokerError
    ├── RequestError              the broker refused or failed a request; `code` says which
    │   ├── BadRequest            malformed, or a value out of bounds
    │   ├── Unauthorized          no token, or not a known one
    │   ├── NotFound              no such thing, or another tenant's
    │   ├── MethodNotAllowed      the path has other methods than that
    │   ├── Conflict              not possible in this state
    │   ├── PolicyRefused         the code was judged too risky; see `findings`
    │   ├── ConfirmationRequired  the code is risky; to be sent again with `confirmation`
    │   ├── SessionGone           the session has ended; the message says why
    │   ├── TooLarge              more than a limit allows
    │   ├── TooManyRequests       a queue or a rate is full; see `retry_after`
    │   ├── Unavailable           no capacity, or shutting down; see `retry_after`
    │   └── InternalError         a fault of the broker's own
    ├── ConnectionFailed          no broker could be reached
    ├── ConnectionLost            the connection ended and could not be resumed
    ├── ProtocolError             the peer sent what the protocol does not allow
    └── ExecutionFailed           `ExecutionResult.raise_for_error()` on a failed cell

An error crosses the wire as `{"code", "message", "request_id"}`; `from_code` makes the exception
again on the other side. HTTP statuses are the business of the broker's `api` package alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .findings import Finding


class KernelBrokerError(Exception):
    """Base of every error that this project raises on purpose."""


class RequestError(KernelBrokerError):
    """A request that the broker refused or could not carry out.

    Attributes:
        message: what happened and what to do next, for a person.
        request_id: the id under which the broker logged it, where it is known.
        retry_after: seconds after which a new try makes sense, or None.
        findings: what was found in the code, where that is why it was refused.
        confirmation: the token to send as `confirm` to have the code run all the same.
        expires_in: seconds for which that token can be used, once.
    """

    code: ClassVar[str] = "request_error"

    def __init__(
        self,
        message: str,
        *,
        request_id: str | None = None,
        retry_after: float | None = None,
        findings: Sequence[Finding] = (),
        confirmation: str | None = None,
        expires_in: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.request_id = request_id
        self.retry_after = retry_after
        self.findings = list(findings)
        self.confirmation = confirmation
        self.expires_in = expires_in


class BadRequest(RequestError):
    code = "bad_request"


class Unauthorized(RequestError):
    code = "unauthorized"


class NotFound(RequestError):
    code = "not_found"


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"


class Conflict(RequestError):
    code = "conflict"


class PolicyRefused(RequestError):
    code = "policy_refused"


class ConfirmationRequired(RequestError):
    code = "confirmation_required"


class SessionGone(RequestError):
    code = "session_gone"


class TooLarge(RequestError):
    code = "too_large"


class TooManyRequests(RequestError):
    code = "too_many_requests"


class Unavailable(RequestError):
    code = "unavailable"


class InternalError(RequestError):
    code = "internal_error"


class ConnectionFailed(KernelBrokerError):
    """No broker answered; the message names the address and what to check."""


class ConnectionLost(KernelBrokerError):
    """The connection ended and resuming it did not work."""


class ProtocolError(KernelBrokerError):
    """Bytes that are not a message of the protocol."""


class ExecutionFailed(KernelBrokerError):
    """A cell failed; `str()` of it is the one-line error."""


_BY_CODE: dict[str, type[RequestError]] = {
    cls.code: cls
    for cls in (
        BadRequest,
        Unauthorized,
        NotFound,
        MethodNotAllowed,
        Conflict,
        PolicyRefused,
        ConfirmationRequired,
        SessionGone,
        TooLarge,
        TooManyRequests,
        Unavailable,
        InternalError,
    )
}


def from_code(
    code: str,
    message: str,
    *,
    request_id: str | None = None,
    retry_after: float | None = None,
    findings: Sequence[Finding] = (),
    confirmation: str | None = None,
    expires_in: float | None = None,
) -> RequestError:
    """The exception for a wire error; an unknown `code` (a newer broker's) gives a plain RequestError."""
    cls = _BY_CODE.get(code, RequestError)
    return cls(
        message,
        request_id=request_id,
        retry_after=retry_after,
        findings=findings,
        confirmation=confirmation,
        expires_in=expires_in,
    )
