"""The tool `run_code` for LangChain, with the arguments and the data of `kernelbroker.agents.run_code`."""

from __future__ import annotations

import json
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, Field

from ..agents.manager import SandboxManager
from ..agents.tool import MAX_TIMEOUT_S, MIN_TIMEOUT_S, get_risk_level, run_code
from ..agents.tool import requires_confirmation_for as requires_confirmation
from ..client import Broker
from .sessions import SessionChoice, chosen_id, run_sync


class RunCode(BaseModel):
    code: str = Field(description="One cell. The value of its last expression is shown.")
    language: Literal["python", "javascript", "shell"] = "python"
    timeout: float = Field(
        default=30,
        ge=MIN_TIMEOUT_S,
        le=MAX_TIMEOUT_S,
        description="Seconds after which it is interrupted.",
    )


def create_run_code_tool(broker: Broker, session: SessionChoice = None) -> StructuredTool:
    """Return the tool `run_code`.

    It answers with the JSON of `{success, stdout, stderr, exit_code, sandbox_type, error}`. Its metadata
    has the functions `get_risk_level` and `requires_confirmation_for`, for graphs that ask a person first.

    Args:
        session: as for `create_sandbox_tools`.
    """

    async def coroutine(config: RunnableConfig, **arguments: Any) -> str:
        session_id = chosen_id(session, config)
        manager = SandboxManager(session_id, broker=broker, keep=session_id is not None)
        async with manager:
            result = await run_code(**arguments, manager=manager)
        return json.dumps(
            {"success": result.success, **result.data, "error": result.error}, ensure_ascii=False
        )

    def func(config: RunnableConfig, **arguments: Any) -> str:
        return run_sync(coroutine(config, **arguments))

    return StructuredTool.from_function(
        func=func,
        coroutine=coroutine,
        name="run_code",
        description="Run Python, JavaScript or shell code in a sandbox. Variables and the files in /data "
        "stay from call to call.",
        args_schema=RunCode,
        metadata={
            "get_risk_level": get_risk_level,
            "requires_confirmation_for": requires_confirmation,
        },
    )
