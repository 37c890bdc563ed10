"""`run_code`, the tool for models, as a plain function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..client import connect
from ..risk.unified import RiskLevel, UnifiedRiskPolicy
from .manager import SandboxManager
from .models import LANGUAGES, ExecutionRequest, refused

MIN_TIMEOUT_S, MAX_TIMEOUT_S = 1, 300
_POLICY = UnifiedRiskPolicy()

RUN_CODE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "code": {
            "type": "string",
            "description": "One cell. The value of its last expression is shown.",
        },
        "language": {"type": "string", "enum": list(LANGUAGES), "default": "python"},
        "timeout": {
            "type": "number",
            "minimum": MIN_TIMEOUT_S,
            "maximum": MAX_TIMEOUT_S,
            "default": 30,
            "description": "Seconds after which the cell is interrupted.",
        },
    },
    "required": ["code"],
    "additionalProperties": False,
}
"""The arguments of `run_code` as a JSON schema, for APIs of models."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answers.

    Attributes:
        data: `stdout`, `stderr`, `exit_code` and `sandbox_type`.
        error: one line; None if it succeeded.
    """

    success: bool
    data: dict[str, Any]
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        return asdict(self)


async def run_code(
    code: str,
    language: str = "python",
    timeout: float = 30,
    *,
    manager: SandboxManager | None = None,
) -> ToolResult:
    """Run code in a sandbox.

    Args:
        language: `python`, `javascript` or `shell`.
        timeout: seconds, 1 to 300.
        manager: keeps variables and files from call to call. Without it each call has a fresh sandbox, of
            the broker that `kernelbroker.connect` finds.

    Returns:
        The result. What the broker refuses, and an argument that is not valid, is one with `success` False.
    """
    request = ExecutionRequest(code, language, timeout)
    problem = request.problem
    if problem is None and not MIN_TIMEOUT_S <= timeout <= MAX_TIMEOUT_S:
        problem = f"timeout is {MIN_TIMEOUT_S} to {MAX_TIMEOUT_S} s, not {timeout:g}"
    if problem is not None:
        result = refused(problem)
    elif manager is not None:
        result = await manager.execute(request)
    else:
        broker = connect()
        async with SandboxManager(broker=broker) as own:
            result = await own.execute(request)
    return ToolResult(result.success, result.data, result.error)


def get_risk_level(code: str, language: str = "python") -> RiskLevel:
    """Return the level of risk of code, without a broker. An unknown language is HIGH."""
    return _POLICY.get_risk_level(code, language)


def requires_confirmation_for(code: str, language: str = "python") -> bool:
    """Return whether a person should be asked before this code runs, without a broker."""
    return _POLICY.requires_confirmation_for(code, language)


run_code.get_risk_level = get_risk_level  # type: ignore[attr-defined]
run_code.requires_confirmation_for = requires_confirmation_for  # type: ignore[attr-defined]
