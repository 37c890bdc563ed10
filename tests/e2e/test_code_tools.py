"""Operations on a project as tools of MCP and LangChain."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kernelbroker
import pytest

from tests.support.requires import requires

with warnings.catch_warnings(action="ignore"):  # of libraries that are not ours
    from kernelbroker.langchain import get_code_operations_tools

from tests.e2e.support import BrokerProcess, running_broker, whole_system
from tests.e2e.test_code_operations import make_project
from tests.e2e.test_mcp import call, connected

pytestmark = [
    *whole_system,
    requires("git", "ripgrep"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

NAMES = [
    "code_read",
    "code_list",
    "code_search",
    "code_edit",
    "code_apply_patch",
    "run_tests",
    "run_build",
    "run_command",
    "git_commit",
    "run_coding_agent",
    "git_create_pr",
]
OLD, NEW = "source.balance -= amount", "source.balance -= 2 * amount"


@pytest.fixture
def project_broker() -> Iterator[BrokerProcess]:
    with running_broker(MCP__TOOL_SETS='["project"]') as broker:
        yield broker


async def test_mcp(project_broker: BrokerProcess, tmp_path: Path) -> None:
    """The set `project` has the tools, which read, edit, test and commit a project of a session."""
    async with (
        kernelbroker.connect(project_broker.url, project_broker.token) as client,
        client.session() as session,
        connected(project_broker, path="/mcp/project") as mcp,
    ):
        await session.code.upload(make_project(tmp_path))
        where = {"session_id": session.session_id}
        assert [tool.name for tool in (await mcp.list_tools()).tools] == NAMES
        read = (await call(mcp, "code_read", path="shop/service.py", **where)).structured_content
        assert read is not None and OLD in read["result"]["content"]
        found = await call(mcp, "code_search", pattern="transfer", **where)
        assert found.structured_content is not None
        assert found.structured_content["result"]["matches"][0]["path"] == "shop/service.py"
        base = read["result"]["sha256"]
        edited = await call(
            mcp, "code_edit", path="shop/service.py", old=OLD, new=NEW, base=base, **where
        )
        assert not edited.is_error
        stale = await call(mcp, "code_edit", path="shop/service.py", content="", base=base, **where)
        assert stale.is_error and stale.structured_content is not None
        assert stale.structured_content["error"]["name"] == "stale"
        ran = (await call(mcp, "run_tests", **where)).structured_content
        assert ran is not None and (ran["success"], ran["result"]["failed"]) == (False, 1)
        made = await call(mcp, "run_command", command="git init -q && echo made", **where)
        assert made.structured_content is not None and made.structured_content["output"] == "made\n"
        committed = await call(mcp, "git_commit", message="all", **where)
        assert committed.structured_content is not None
        assert "shop/service.py" in committed.structured_content["result"]["files"]
        refused = await call(mcp, "code_read", path="/etc/passwd", **where)
        assert refused.is_error and refused.structured_content is not None
        assert refused.structured_content["error"]["name"] == "security"


async def test_langchain(client: kernelbroker.Broker, tmp_path: Path) -> None:
    """The tools of LangChain have the same names, and answer with the JSON of an operation."""
    async with client.session("code-tools") as session:
        await session.code.upload(make_project(tmp_path))
        tools = {tool.name: tool for tool in get_code_operations_tools(client, session)}
        assert list(tools) == [each for each in NAMES if each != "run_coding_agent"]

        async def ask(name: str, **arguments: Any) -> dict[str, Any]:
            return dict(json.loads(await tools[name].ainvoke(arguments)))

        assert OLD in (await ask("code_read", path="shop/service.py"))["result"]["content"]
        assert (await ask("run_tests"))["result"]["passed"] == 1
        assert (await ask("code_edit", path="shop/service.py", old=OLD, new=NEW))["success"]
        ran = await ask("run_tests", target="tests/test_service.py")
        assert (ran["success"], ran["result"]["failures"][0]["line"]) == (False, 8)
        assert (await ask("code_read", path="../x"))["code"] == "security"
        assert (await ask("run_command", command="echo hi"))["stdout"] == "hi\n"
