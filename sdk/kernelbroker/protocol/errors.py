"""The exceptions that the broker and the SDK share.

The tree::

    KernelBrokerError
    ├── RequestError              the broker refused or failed a request; `code` says which
    │   ├── BadRequest            the request is malformed, or a value is out of bounds
    │   ├── Unauthorized          the token is missing or invalid
    │   ├── Forbidden             the token does not have this right
    │   ├── NotFound              it does not exist, or belongs to another tenant
    │   ├── MethodNotAllowed      the path does not support the method
    │   ├── Conflict              not possible in this state
    │   ├── PolicyRefused         the code was assessed as too risky; see `findings`
    │   ├── ConfirmationRequired  the code is risky; send it again with `confirmation`
    │   ├── SessionGone           the session has ended; the message has the reason
    │   ├── TooLarge              a size exceeds its limit
    │   ├── TooManyRequests       a queue or a rate is full; see `retry_after`
    │   ├── Unavailable           no capacity, or shutting down; see `retry_after`
    │   └── InternalError         a fault in the broker
    ├── ConnectionFailed          no broker could be reached
    ├── ConnectionLost            the connection ended and could not be resumed
    ├── ProtocolError             a received message is invalid
    └── ExecutionFailed           `ExecutionResult.raise_for_error()` on a failed cell

An error crosses the wire as `{"code", "message", "request_id"}`; `from_code` makes the exception
again on the other side. Only the broker's `api` package knows HTTP statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from .findings import Finding


class KernelBrokerError(Exception):
    """Base of all errors of this project."""


class RequestError(KernelBrokerError):
    """A request that the broker refused or could not carry out.

    Attributes:
        message: what happened and what to do next, for a person.
        request_id: the id of the request in the broker's log, if known.
        retry_after: seconds after which a retry makes sense, or None.
        findings: the findings in the code, if they are the reason of the refusal.
        confirmation: the token to send as `confirm` to run the code anyway.
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


class Forbidden(RequestError):
    code = "forbidden"


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
    """A cell failed; the message is the one-line error.

    Attributes:
        result: the `ExecutionResult`, with the output before the error.
    """

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


_BY_CODE: dict[str, type[RequestError]] = {
    cls.code: cls
    for cls in (
        BadRequest,
        Unauthorized,
        Forbidden,
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
    """Return the exception for an error of the protocol; an unknown `code` gives a RequestError."""
    cls = _BY_CODE.get(code, RequestError)
    return cls(
        message,
        request_id=request_id,
        retry_after=retry_after,
        findings=findings,
        confirmation=confirmation,
        expires_in=expires_in,
    )
