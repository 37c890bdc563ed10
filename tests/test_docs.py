"""The documentation matches the code."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from kernelbroker import cli_operating
from kernelbroker_server.api.openapi import methods_of
from kernelbroker_server.api.routes import ROUTES
from kernelbroker_server.config_file import load
from kernelbroker_server.pool.sandboxes import SandboxState
from kernelbroker_server.telemetry import metrics

from tests.support.documentation import Block, blocks_of, pages
from tests.support.requires import require

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "benchmarks" / "README.md"]
BLOCKS = [block for page in pages() for block in blocks_of(page)]

RUN_BY = {
    "agent-task.md": "e2e/test_agent_task.py",
    "agents.md": "e2e/test_agents.py",
    "analysis.md": "e2e/test_analysis.py",
    "api.md": "e2e/test_pages.py",
    "browser.md": "e2e/test_browser_network.py",
    "checkpoints.md": "e2e/test_pages.py",
    "coding-agents.md": "e2e/test_coding_agents.py",
    "e2b.md": "e2b/test_docs.py",
    "embedding.md": "e2e/test_embedding.py",
    "grpc.md": "grpc_api/test_service.py",
    "guides/agent-author.md": "e2e/test_pages.py",
    "guides/data-team.md": "e2e/test_pages.py",
    "jupyter.md": "jupyter/test_clients.py",
    "langchain.md": "e2e/test_langchain.py",
    "mcp.md": "e2e/test_mcp.py",
    "risk.md": "e2e/test_pages.py",
    "sdk.md": "e2e/test_reference.py",
    "sdk-modules.md": "sdk/test_reference.py",
    "session-events.md": "e2e/test_embedding.py",
    "start.md": "e2e/test_pages.py",
    "templates.md": "e2e/test_pages.py",
    "workspaces.md": "e2e/test_pages.py",
    "zh/start.md": "e2e/test_pages.py",
}
"""The tests that run the programs of pages."""
CHECKED_KINDS = {"dockerfile", "ini", "js", "json", "python", "sh", "text", "toml", "yaml"}

NAVIGATION = (ROOT / "mkdocs.yml").read_text()
OPERATIONS = (DOCS / "operations.md").read_text()
AUDIT_LOG = OPERATIONS.partition("## The audit log")[2].partition("\n## ")[0]


def load_maker(name: str) -> ModuleType:
    """One of the programs that write pages."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


@pytest.mark.parametrize("name", ["make_configuration", "make_rest", "make_cli"])
def test_generated_pages_are_up_to_date(name: str) -> None:
    """The pages of settings, calls and commands are what their programs write now."""
    maker = load_maker(name)
    assert maker.page() == maker.PAGE.read_text(), "run: make docs"


def test_diagrams_are_up_to_date() -> None:
    """The diagrams are what their program draws, and that of sandboxes has all their states."""
    maker = load_maker("make_diagrams")
    for name, draw in maker.PICTURES.items():
        assert (maker.DIRECTORY / f"{name}.svg").read_text() == draw().svg(), "run: make docs"
    assert {path.stem for path in maker.DIRECTORY.iterdir()} == set(maker.PICTURES)
    drawn = (maker.DIRECTORY / "sandbox.svg").read_text()
    boxes = set(re.findall(r'font-weight="600"[^>]*>([^<]+)<', drawn))
    assert boxes == {state.value for state in SandboxState}


def test_every_call_is_on_the_page_of_calls() -> None:
    """docs/rest.md has a section for each method of each documented route."""
    page = (DOCS / "rest.md").read_text()
    shown = set(re.findall(r"^### ([A-Z]+ /\S+)$", page, re.MULTILINE))
    documented = {
        f"{method} {path.removeprefix('/api/v1')}"
        for path, handler in ROUTES
        for method in methods_of(handler)
        if hasattr(getattr(handler, method.lower()), "operation")
    }
    assert shown == documented


def test_every_program_is_run_by_a_test() -> None:
    """Each page with Python is run by the test that is named for it, which reads that page."""
    assert {block.page for block in BLOCKS if block.kind == "python"} == set(RUN_BY)
    for page, test in RUN_BY.items():
        name = "make_sdk" if page.startswith("sdk") else page
        assert f'"{name}"' in (ROOT / "tests" / test).read_text(), f"{test} does not read {page}"
    assert {block.kind for block in BLOCKS} <= CHECKED_KINDS


def test_examples_in_docstrings_are_python() -> None:
    """The indented examples of the SDK's pages, which come from docstrings, are valid Python."""
    shown = "".join((DOCS / name).read_text() for name in ("sdk.md", "sdk-modules.md"))
    text = re.sub(r"^```.*?^```$", "", shown, flags=re.MULTILINE | re.DOTALL)
    examples = re.findall(r"(?<=\n\n)((?:    .*\n|\n(?=    ))+)", text)
    assert len(examples) > 5
    for example in examples:
        compile(textwrap.dedent(example), "sdk.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def shell_blocks() -> list[Block]:
    """Blocks of commands: those with a fence, and indented ones that begin with a command."""
    fenced = [block for block in BLOCKS if block.kind == "sh"]
    indented = re.compile(r"(?<=\n\n)((?:    .*\n|\n(?=    ))+)")
    command = re.compile(
        r" {4}(make|kernelbroker|kernelbroker-server|\.venv/bin/\S+|export|docker|sh) "
    )
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for match in indented.finditer(text):
            if command.match(match[1]):
                fenced.append(Block(str(path.relative_to(ROOT)), 0, "sh", match[1]))
    return fenced


def test_commands_exist() -> None:
    """Shown shell commands are valid shell, and name targets of make and commands of ours that exist."""
    targets = set(
        re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    targets = {name for line in targets for name in line.split()}
    cli = "".join(path.read_text() for path in (ROOT / "sdk" / "kernelbroker").glob("cli*.py"))
    commands = {*re.findall(r'add_parser\(\s*"([a-z]+)"', cli), *cli_operating.COMMANDS}
    count = 0
    for block in shell_blocks():
        text = re.sub(r"^    ", "", block.text, flags=re.MULTILINE)
        subprocess.run(
            ["bash", "-n"], input=text.replace("curl ...", "curl"), text=True, check=True
        )
        for line in text.replace("\\\n", " ").splitlines():
            words = line.partition(" #")[0].split()
            match words:
                case ["make", *named]:
                    named = [name for name in named if "=" not in name]
                    assert set(named) <= targets, f"{block}: {line}"
                    count += len(named)
                case [program, named, *_] if program.rpartition("/")[2] == "kernelbroker":
                    assert named in commands or named.startswith("-"), f"{block}: {line}"
                    count += 1
    assert count > 20


def test_shown_json_is_valid() -> None:
    """Each block of JSON holds one or more values."""
    decoder = json.JSONDecoder()
    found = [block for block in BLOCKS if block.kind == "json"]
    assert found
    for block in found:
        rest = block.text.strip()
        while rest:
            _, end = decoder.raw_decode(rest)
            rest = rest[end:].strip()


def test_shown_javascript_is_valid(tmp_path: Path) -> None:
    """Node.js can parse each block of JavaScript."""
    require("npm")
    for number, block in enumerate(each for each in BLOCKS if each.kind == "js"):
        file = tmp_path / f"{number}.js"
        file.write_text(block.text)
        subprocess.run(["node", "--check", file], check=True)


def test_shown_dockerfiles_and_units_are_valid() -> None:
    """Dockerfiles have instructions that exist, in a shell's syntax; a unit has keys with values."""
    for block in BLOCKS:
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.kind == "dockerfile":
            assert lines[0].startswith("FROM ")
            for line in lines:
                instruction, _, rest = line.partition(" ")
                assert instruction in {"FROM", "USER", "RUN", "COPY", "ENV", "ARG", "WORKDIR"}
                assert shlex.split(rest)
        elif block.kind == "ini":
            plain = [line for line in lines if line and not line.startswith(("#", "["))]
            assert all(re.fullmatch(r"[A-Z]\w+=.+", line) for line in plain)


def test_shown_yaml_is_valid() -> None:
    """Manifests and values on the pages can be read."""
    shown = [block for block in BLOCKS if block.kind == "yaml"]
    assert shown
    for block in shown:
        assert all(isinstance(each, dict) for each in yaml.safe_load_all(block.text)), str(block)


def test_page_of_licenses_is_complete() -> None:
    """The page has each package of the images and of the console in its version, with a license."""
    spec = importlib.util.spec_from_file_location("licenses", ROOT / "docs" / "make_licenses.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", made.PAGE.read_text(), re.MULTILINE)
    wanted = {
        each
        for files in made.IMAGES.values()
        for f in files
        for each in made.requirements(ROOT / f)
    }
    wanted |= {(name, version) for name, version, _ in made.console()}
    shown = {(name, version) for name, version, _ in rows if name not in ("package", "---")}
    assert wanted == shown, "run: make docs"
    assert [row for row in rows if row[2] in ("", "unknown", "None")] == []


def test_shown_settings_are_valid(tmp_path: Path) -> None:
    """The broker accepts every configuration file that a page shows."""
    files = [(block.page, block.text) for block in BLOCKS if block.kind == "toml"]
    assert {page for page, _ in files} >= {"configuration.md", "network.md", "docker.md", "risk.md"}
    for number, (_, text) in enumerate(files):
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        load(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    """Every file that a page links to exists."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_exist(page: Path) -> None:
    """A link to a part of a page names one of its headings, in GitHub's form."""
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
        assert anchor in anchors, f"{target}#{anchor}"


def test_every_page_is_linked() -> None:
    """Every page is linked by another page."""
    linked = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)#\s:]+)", page.read_text())
        if (page.parent / link).resolve() != page
    }
    linked |= {DOCS / page for page in re.findall(r": (\S+\.md)$", NAVIGATION, re.MULTILINE)}
    assert [page for page in DOCS.rglob("*.md") if page not in linked] == []


def test_table_of_calls_is_complete() -> None:
    """The table of calls has every method of every route, and no other."""
    calls = {
        f"{method} {path.removeprefix('/api/v1')}"
        for path, handler in ROUTES
        for method in methods_of(handler)
    }
    table = (DOCS / "api.md").read_text().partition("## Calls")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z]+ [^`]+)` \|", table, re.MULTILINE)) == calls


def test_table_of_metrics_is_complete() -> None:
    """The table of metrics has every metric with its labels, and no other."""
    gauges = {name: labels for name, (_, labels) in metrics._GAUGES.items()}
    collectors = metrics.Metrics(dict)._registry._collector_to_names
    named = {
        f"{each._name}_total" if each._type == "counter" else each._name: each._labelnames
        for each in collectors
        if hasattr(each, "_labelnames")
    } | {f"kernelbroker_{name}": labels for name, labels in gauges.items()}
    rows = re.findall(r"^\| `(kernelbroker_\w+)` \| ([^|]+) \|", OPERATIONS, re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == named


def test_table_of_audit_events_is_complete() -> None:
    """The table of the audit log has every event, and no other."""
    server = ROOT / "broker" / "kernelbroker_server"
    sources = "".join(path.read_text() for path in server.rglob("*.py"))
    events = set(re.findall(r'\.record\(\s*"([a-z.]+)"', sources))
    assert events == set(re.findall(r"^\| `([a-z.]+)` \| `", AUDIT_LOG, re.MULTILINE))
