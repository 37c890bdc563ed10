"""Projects of a forge: cloned, changed, pushed, a pull request opened, by a token that stays outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import kernelbroker
import pytest
from kernelbroker import (
    BadRequest,
    CodeOperationError,
    ProjectOptions,
    SandboxResourceError,
    SandboxSecurityError,
)
from kernelbroker.grpc import SandboxCodeServiceStub
from kernelbroker.grpc import sandbox_code_pb2 as messages

from tests.backends.probes import PROJECT_BACKENDS
from tests.e2e.support import (
    BrokerProcess,
    backend_settings,
    free_port,
    running_broker,
    whole_system,
)
from tests.e2e.test_code_operations import make_project
from tests.e2e.test_mcp import call as mcp_call
from tests.e2e.test_mcp import connected
from tests.support.forge import TOKEN, ScriptedForge, git, scripted_forge
from tests.support.requires import CODE_IMAGE, requires

pytestmark = [*whole_system, requires("git")]
HOSTS = {"hub.example": "github", "tea.example": "gitea", "lab.example": "gitlab"}


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedForge]:
    base = tmp_path_factory.mktemp("forge")
    (base / "acme").mkdir()
    (base / "other").mkdir()
    with scripted_forge(base) as forge:
        for name in ("acme/shop", "acme/tea", "acme/lab", "other/secret"):
            forge.make(name, make_project(base / f"{name}-source"))
        yield forge


def settings(forge: ScriptedForge, kind: str = "local") -> dict[str, object]:
    api = {"github": "/api/v3", "gitea": "/api/v1", "gitlab": "/api/v4"}
    forges = [
        {
            "host": host,
            "kind": each,
            "url": forge.url,
            "api": forge.url + api[each],
            "token": TOKEN,
            "repositories": ["acme/*"],
        }
        for host, each in HOSTS.items()
    ]
    forges.append({**forges[0], "host": "read.example", "push": False})
    return {
        "CODE__FORGES": json.dumps(forges),
        "SANDBOX__FORGES": '["*"]',
        "TEMPLATES": '{"alone": {"forges": []}}',
        "MCP__TOOL_SETS": '["project"]',
        "POOL__MIN_SIZE": 0,
        "POOL__MAX_SIZE": 2,
        "POOL__ACQUIRE_TIMEOUT": 100,
        "POOL__LAUNCH_TIMEOUT": 100,
        "DOCKER__IMAGE": CODE_IMAGE,
        **backend_settings(kind),
    }


@pytest.fixture(scope="module", params=PROJECT_BACKENDS[:2])
def broker(request: pytest.FixtureRequest, forge: ScriptedForge) -> Iterator[BrokerProcess]:
    with running_broker(**settings(forge, str(request.param))) as broker:
        yield broker


@pytest.fixture(scope="module")
def local(forge: ScriptedForge) -> Iterator[BrokerProcess]:
    with running_broker(**settings(forge)) as broker:
        yield broker


@pytest.fixture
async def client(local: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(local.url, local.token) as client:
        yield client


async def test_the_story(broker: BrokerProcess, forge: ScriptedForge, tmp_path: Path) -> None:
    """Clone, read, search, edit a model, a service and tests; fail, fix, commit, open a pull request."""
    forge.pulls.clear()
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session(project="https://hub.example/acme/shop.git") as session,
    ):
        code = session.code
        assert "class Account" in (await code.read("shop/model.py")).result["content"]
        [found] = (await code.search("def transfer", glob="*.py")).result["matches"]
        assert found["path"] == "shop/service.py"
        await code.git_branch("fees")
        await code.edit("shop/model.py", old="balance=0", new="balance=0, fee=1")
        await code.edit(
            "shop/model.py",
            old="self.balance = balance",
            new="self.balance = balance\n        self.fee = fee",
        )
        await code.edit(
            "shop/service.py", old="balance -= amount", new="balance -= amount + source.fe"
        )
        await code.edit("tests/test_service.py", old="(6, 4)", new="(5, 4)")
        tests = await code.run_tests()
        assert (tests.success, tests.result["failed"]) == (False, 1)
        assert "AttributeError" in tests.result["failures"][0]["message"]
        await code.edit("shop/service.py", old="source.fe\n", new="source.fee\n")
        tests = await code.run_tests()
        assert (tests.success, tests.result["passed"]) == (True, 1)
        committed = await code.git_commit("service: charge a fee")
        assert set(committed.result["files"]) == {
            "shop/model.py", "shop/service.py", "tests/test_service.py",
        }  # fmt: skip
        opened = await code.git_create_pr("Charge a fee", "Each transfer costs one.", base="main")
        patch = (await code.git_diff("HEAD~1")).result["diff"]
        bundle = (await code.git_bundle(base="main")).result
        await session.files.download(bundle["file"], tmp_path / "work.bundle")
    assert opened.result["number"] == 1
    assert opened.result["repository"] == "acme/shop"
    [pull] = forge.pulls
    assert (pull["head"], pull["base"], pull["title"]) == ("fees", "main", "Charge a fee")
    bare = forge.root / "acme" / "shop.git"
    assert git(bare, "rev-parse", "fees") == committed.result["commit"]
    assert git(bare, "log", "-1", "--format=%s", "fees") == "service: charge a fee"
    assert "+    source.balance -= amount + source.fee" in patch
    copy = tmp_path / "copy"
    git(tmp_path, "clone", "--quiet", "-b", "main", str(bare), str(copy))
    git(copy, "fetch", "--quiet", str(tmp_path / "work.bundle"), "fees:taken")
    assert git(copy, "rev-parse", "taken") == committed.result["commit"]
    (copy / "p.diff").write_text(patch)
    git(copy, "apply", "p.diff")
    assert "source.fee" in (copy / "shop" / "service.py").read_text()
    git(bare, "branch", "-D", "fees")


@pytest.mark.parametrize(("host", "name"), [("tea.example", "tea"), ("lab.example", "lab")])
async def test_other_forges(
    client: kernelbroker.Broker, forge: ScriptedForge, host: str, name: str
) -> None:
    """Gitea and GitLab are asked in their own ways; the base is the repository's default branch."""
    forge.pulls.clear()
    async with client.session(project=f"https://{host}/acme/{name}") as session:
        await session.code.git_branch("work")
        await session.code.edit("new.txt", "x\n")
        await session.code.git_commit("a file")
        opened = await session.code.git_create_pr("A file", "Why.")
    [pull] = forge.pulls
    assert opened.result["url"].startswith("https://forge.example/")
    assert opened.result["base"] == "main"
    if host == "tea.example":
        assert pull["path"] == f"/api/v1/repos/acme/{name}/pulls"
        assert (pull["head"], pull["base"], pull["body"]) == ("work", "main", "Why.")
    else:
        assert pull["path"] == f"/api/v4/projects/acme/{name}/merge_requests"
        assert (pull["source_branch"], pull["target_branch"]) == ("work", "main")


async def test_the_token_stays_outside(
    client: kernelbroker.Broker, local: BrokerProcess, forge: ScriptedForge
) -> None:
    """Code in the sandbox pushes with any form of the URL, and finds no token."""
    async with client.session(project="https://hub.example/acme/shop") as session:
        said = await session.code.run(
            "git config --list; env; git remote -v; cat .git/config;"
            " git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x &&"
            " git push -q git@hub.example:acme/shop.git HEAD:direct &&"
            " git ls-remote http://hub.example/acme/shop.git direct && git fetch -q && echo done"
        )
        assert said.success, said.stdout + said.stderr
        assert said.stdout.endswith("done\n")
        everything = await session.run("""
import os, subprocess
found = subprocess.run(["grep", "-rl", "token-of-the" + "-forge", "/data", "/tmp", "/home"],
                       capture_output=True, text=True).stdout
print(found, "token-of-the" + "-forge" in str(os.environ))
""")
        assert everything.stdout.strip() == "False"
        assert TOKEN not in said.stdout + said.stderr
        assert TOKEN not in await asyncio.to_thread(local.log.read_text)
    assert git(forge.root / "acme" / "shop.git", "rev-parse", "direct")


async def test_only_listed_repositories(client: kernelbroker.Broker, forge: ScriptedForge) -> None:
    """Neither operations nor code reach other repositories, other forges, or the forge's API."""
    with pytest.raises(BadRequest, match="cannot be cloned"):
        async with client.session(project="https://hub.example/other/secret"):
            pass
    async with client.session(project="https://read.example/acme/shop") as session:
        with pytest.raises(SandboxSecurityError, match="only be read"):
            await session.code.git_push()
        refused = await session.code.run("git push origin HEAD:x")
        assert not refused.success
        for url in ("hub.example/other/secret.git", "unknown.example/acme/shop"):
            await session.code.run(f"git remote set-url origin https://{url}")
            with pytest.raises(SandboxSecurityError, match="operator"):
                await session.code.git_create_pr("t")
        forge.requests.clear()
        asked = await session.run(
            "import urllib.request as u\n"
            "for path in ('hub.example/api/v3/user', 'hub.example/acme/../other/secret.git/info/refs',\n"
            "             'hub.example/acme/%2e%2e/other/secret/info/refs', 'hub.example/'):\n"
            "    try: print(u.urlopen('http://forge.internal/' + path).status)\n"
            "    except u.HTTPError as e: print(e.code)"
        )
        assert asked.stdout.split() == ["403", "400", "400", "403"]
        assert forge.requests == []
    with pytest.raises(BadRequest, match="cannot be cloned"):
        async with client.session(template="alone", project="https://hub.example/acme/shop"):
            pass


async def test_pull_requests_that_are_refused(
    client: kernelbroker.Broker, forge: ScriptedForge
) -> None:
    """What the forge says is told, without the token; nothing is pushed for an invalid request."""
    async with client.session(project="https://hub.example/acme/shop") as session:
        with pytest.raises(CodeOperationError, match="branch to merge into") as caught:
            await session.code.git_create_pr("On main")
        assert caught.value.code == "conflict"
        for title in ("", " ", "a\nb", "x" * 300):
            with pytest.raises(CodeOperationError, match="title"):
                await session.code.git_create_pr(title)
        with pytest.raises(CodeOperationError, match="no name of a branch"):
            await session.code.git_create_pr("t", base="--upload-pack=x")
        await session.code.git_branch("refused")
        await session.code.edit("r.txt", "x")
        await session.code.git_commit("r")
        forge.refuse = (422, {"message": "Validation Failed", "errors": [{"m": f"x {TOKEN}"}]})
        with pytest.raises(CodeOperationError, match="Validation Failed") as caught:
            await session.code.git_create_pr("Again")
        assert caught.value.code == "conflict"
        assert TOKEN not in str(caught.value)
        forge.refuse = (500, {})
        with pytest.raises(CodeOperationError, match="status 500"):
            await session.code.git_create_pr("Again")
        with pytest.raises(CodeOperationError, match="no remote 'origin'"):
            await session.code.run("git remote remove origin")
            await session.code.git_push()


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c id",
        "file:///etc",
        "--upload-pack=touch /tmp/x",
        "-u./x",
        "ssh://hub.example/acme/shop",
        "git@hub.example:acme/shop",
        "https://user:secret@hub.example/acme/shop",
        "https://hub.example/acme/shop\nx",
        "https://",
        "git://hub.example/x",
    ],
)
async def test_odd_urls_are_refused(client: kernelbroker.Broker, url: str) -> None:
    """Only plain http and https URLs are cloned."""
    with pytest.raises(BadRequest):
        async with client.session(project=url):
            pass


async def test_what_a_clone_takes(client: kernelbroker.Broker, forge: ScriptedForge) -> None:
    """A branch, some commits only; a branch that is missing is told, and the session is closed."""
    bare = forge.root / "acme" / "shop.git"
    for number in range(3):
        tree = git(bare, "rev-parse", "main^{tree}")
        parent = git(bare, "rev-parse", "long") if number else git(bare, "rev-parse", "main")
        commit = git(bare, "commit-tree", tree, "-p", parent, "-m", f"number {number}")
        git(bare, "update-ref", "refs/heads/long", commit)
    asked = ProjectOptions(git="https://hub.example/acme/shop", ref="long", depth=2)
    async with client.session(project=asked) as session:
        assert (await session.code.git_branch()).result["current"] == "long"
        commits = (await session.code.git_log()).result["commits"]
        assert [each["subject"] for each in commits] == ["number 2", "number 1"]
        env = await session.run("import os; print(os.environ['PROJECT_PATH'])")
        assert env.stdout == "/workspace/project\n"
    with pytest.raises(BadRequest, match="missing"):
        async with client.session(
            "closed", project=ProjectOptions(git="https://hub.example/acme/shop", ref="missing")
        ):
            pass
    with pytest.raises(BadRequest, match="no name of a branch"):
        async with client.session(project=ProjectOptions(git="https://hub.example/a/b", ref="-x")):
            pass


async def test_a_hostile_project_is_pushed(
    client: kernelbroker.Broker, forge: ScriptedForge
) -> None:
    """What a project configures runs nothing when it is pushed or bundled, and leads nowhere else."""
    async with client.session(project="https://hub.example/acme/shop") as session:
        code = session.code
        prepared = await code.run(
            "for h in pre-push reference-transaction post-index-change; do"
            " printf '#!/bin/sh\\ntouch /data/pwned-hook\\n' > .git/hooks/$h; chmod +x .git/hooks/$h; done;"
            " git config core.fsmonitor 'touch /data/pwned-monitor';"
            " git config core.sshCommand 'touch /data/pwned-ssh';"
            " git config credential.helper '!touch /data/pwned-helper';"
            " git config core.askPass 'touch /data/pwned-ask';"
            " git config remote.origin.pushurl 'ext::sh -c touch% /data/pwned-ext';"
            " git config remote.origin.receivepack 'touch /data/pwned-receive';"
            " git config push.gpgSign true; git config gpg.program 'touch /data/pwned-gpg';"
            " printf '[submodule \"s\"]\\n path = s\\n url = -u./x\\n' > .gitmodules;"
            " git config push.recurseSubmodules on-demand; echo > 'a\nb'"
        )
        assert prepared.success, prepared.stderr
        await code.git_branch("hostile")
        await code.git_commit("all")
        pushed = await code.git_push()
        assert pushed.result["branch"] == "hostile"
        assert (await code.git_bundle()).result["size"] > 100
        for url in ("ext::sh -c id", "file:///etc", "/etc", "-u./x", "ssh://other.example/a/b"):
            await session.run(
                f"git -C /data/project remote set-url origin '{url}'", language="shell"
            )
            with pytest.raises(CodeOperationError):
                await code.git_push()
        found = await session.run(
            "import os; print([n for n in os.listdir('/data') if n.startswith('pwned')])"
        )
        assert found.stdout == "[]\n"
    assert git(forge.root / "acme" / "shop.git", "rev-parse", "hostile") == pushed.result["commit"]


async def test_the_story_by_mcp(
    client: kernelbroker.Broker, local: BrokerProcess, forge: ScriptedForge
) -> None:
    """The tools of MCP search, edit, test, fix, commit, and open the pull request."""
    forge.pulls.clear()
    async with (
        client.session(project="https://hub.example/acme/shop") as session,
        connected(local, path="/mcp/project") as mcp,
    ):
        await session.code.git_branch("by-mcp")

        async def tool(name: str, **arguments: Any) -> dict[str, Any]:
            answered = await mcp_call(mcp, name, session_id=session.session_id, **arguments)
            assert answered.structured_content is not None, answered
            return dict(answered.structured_content)

        found = await tool("code_search", pattern="def transfer")
        path = found["result"]["matches"][0]["path"]
        await tool("code_edit", path=path, old="balance -= amount", new="balance -= amounts")
        tests = await tool("run_tests")
        assert (tests["success"], tests["result"]["failed"]) == (False, 1)
        await tool("code_edit", path=path, old="amounts", new="amount  # in cents")
        assert (await tool("run_tests"))["success"]
        await tool("git_commit", message="service: say the unit")
        opened = await tool("git_create_pr", title="Say the unit")
    assert opened["result"]["number"] == 1
    assert (forge.pulls[0]["head"], forge.pulls[0]["base"]) == ("by-mcp", "main")


async def test_the_story_by_grpc(forge: ScriptedForge) -> None:
    """Over gRPC: read, search, edit, a failing test, edit, pass, commit, pull request, patch."""
    forge.pulls.clear()
    port = free_port()
    with running_broker(**settings(forge), GRPC__PORT=port) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session(project="https://hub.example/acme/shop") as session,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub: Any = SandboxCodeServiceStub(channel)
            metadata = [
                ("authorization", f"Bearer {broker.token}"),
                ("sandbox-id", session.session_id),
            ]

            async def ask(method: str, **fields: Any) -> Any:
                request = getattr(messages, f"{method}Request")(**fields)
                call = {"Read": "ReadFile", "Edit": "EditFile", "Search": "SearchFiles"}
                call |= {"Test": "RunTest", "Commit": "GitCommit", "CreatePR": "GitCreatePR"}
                return await getattr(stub, call[method])(request, metadata=metadata, timeout=100)

            await session.code.git_branch("by-grpc")
            assert "class Account" in (await ask("Read", path="shop/model.py")).content
            found = await ask("Search", pattern="def transfer", glob="*.py")
            assert [each.path for each in found.matches] == ["shop/service.py"]
            for file, old, new in (
                ("shop/model.py", "balance=0", "balance=0, fee=1"),
                ("shop/model.py", "= balance\n", "= balance\n        self.fee = fee\n"),
                ("shop/service.py", "balance -= amount", "balance -= amount + source.fe"),
                ("tests/test_service.py", "(6, 4)", "(5, 4)"),
            ):
                edited = await ask("Edit", path=file, old=old, new=new)
                assert edited.success, edited.error
            tested = await ask("Test")
            assert (tested.success, tested.failed) == (False, 1)
            assert "AttributeError" in tested.failures[0].message
            assert (
                await ask("Edit", path="shop/service.py", old="source.fe\n", new="source.fee\n")
            ).success
            tested = await ask("Test")
            assert (tested.success, tested.passed) == (True, 1)
            committed = await ask("Commit", message="service: charge a fee")
            assert committed.branch == "by-grpc"
            opened = await ask("CreatePR", title="Charge a fee", body="One each.", base="main")
            assert (opened.success, opened.number, opened.error) == (True, 1, "")
            patch = (await session.code.git_diff("HEAD~1")).result["diff"]
            again = await ask("CreatePR", title="", base="main")
            assert (again.success, again.number) == (False, 0)
            assert again.error
    [pull] = forge.pulls
    assert (pull["head"], pull["base"], pull["title"]) == ("by-grpc", "main", "Charge a fee")
    bare = forge.root / "acme" / "shop.git"
    assert git(bare, "rev-parse", "by-grpc") == committed.commit
    assert "+    source.balance -= amount + source.fee" in patch
    git(bare, "branch", "-D", "by-grpc")


async def test_operations_are_audited(forge: ScriptedForge, tmp_path: Path) -> None:
    """Each operation has a record with its session, path and outcome, and none has the token."""
    log = tmp_path / "audit.log"
    with running_broker(**settings(forge), AUDIT_LOG=log) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session("audited", project="https://hub.example/acme/shop") as session,
        ):
            await session.code.read("shop/model.py")
            with pytest.raises(SandboxSecurityError):
                await session.code.read("/etc/shadow")
            await session.code.run("true")
            await session.code.git_branch("audited")
            await session.code.git_push()
            with pytest.raises(CodeOperationError):
                await session.code.git_create_pr("x", base="audited")
        text = await asyncio.to_thread(log.read_text)
    records = [json.loads(line) for line in text.splitlines()]
    operations = [
        (each["operation"], each["path"], each["outcome"])
        for each in records
        if each["event"] == "operation"
    ]
    assert operations == [
        ("clone", "", "success"),
        ("read", "shop/model.py", "success"),
        ("read", "/etc/shadow", "security"),
        ("run", "", "queued"),
        ("git_branch", "", "success"),
        ("git_push", "", "success"),
        ("git_create_pr", "", "conflict"),
    ]
    assert {each["session"] for each in records if each["event"] == "operation"} == {"audited"}
    through = [each for each in records if each["event"] == "network.request"]
    assert {each["upstream"] for each in through} == {"forge/hub.example"}
    assert TOKEN not in text


async def test_resources_that_run_out(forge: ScriptedForge) -> None:
    """A full workspace is an error of resources, and the session goes on."""
    with running_broker(**settings(forge), SANDBOX__WORKSPACE_SIZE="30MiB") as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session(project="https://hub.example/acme/shop") as session,
        ):
            with pytest.raises(SandboxResourceError):
                await session.code.run(
                    "for i in 1 2 3 4 5 6; do head -c 10000000 /dev/zero > big$i; done; sleep 30"
                )
            await session.code.run("rm -f big*")
            assert (await session.code.read("shop/model.py")).success
