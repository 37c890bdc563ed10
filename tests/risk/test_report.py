"""What an assessment advises, and the strict rule set: each row of both tables."""

from __future__ import annotations

import time

import kernelbroker
import msgspec
import pytest
from kernelbroker.protocol.findings import LEVELS, Assessment, Level
from kernelbroker.risk import UnifiedRiskPolicy, assess
from kernelbroker.risk.report import report

STRICT = UnifiedRiskPolicy("strict")
AGENT = UnifiedRiskPolicy()

SAFE, ISOLATED = (False, False, "subprocess"), (False, True, "docker_simple")
ASKED, REJECTED = (True, True, "docker_simple"), (True, True, "REJECT")
CODE = {"safe": SAFE, "low": ISOLATED, "medium": ISOLATED, "high": ASKED, "critical": ASKED}
ADVICE = {"python": CODE, "javascript": CODE, "shell": {**CODE, "critical": REJECTED}}


def advice(assessment: Assessment) -> tuple[bool, bool, str]:
    return (
        assessment.requires_confirmation,
        assessment.requires_isolation,
        assessment.suggested_sandbox,
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("content_type", ADVICE)
def test_advice_of_each_level(content_type: str, level: Level) -> None:
    """Each level of each language has its advice: to confirm, to isolate, and a sandbox."""
    assert advice(report(content_type, level, [])) == ADVICE[content_type][level]


@pytest.mark.parametrize(
    ("content", "content_type", "level"),
    [
        ("1 + 1", "python", "safe"),
        ("1 + 1", "javascript", "safe"),
        ("ls", "shell", "safe"),
        ("pip install x", "shell", "low"),
        ("import os; os.environ", "python", "medium"),
        ("import os; os.system(x)", "python", "high"),
        ("import os; os.system('rm -rf /')", "python", "critical"),
        ("require('child_process')", "javascript", "high"),
        ("rm -rf /", "shell", "critical"),
    ],
)
def test_advice_for_code(content: str, content_type: str, level: Level) -> None:
    """The advice for code follows its level, in the policy, in `assess` and in the patterns' text."""
    found = AGENT.assess(content, content_type)
    assert found.level == level
    assert advice(found) == ADVICE[content_type][level]
    assert kernelbroker.assess(content, content_type) == found
    assert len(found.detected_patterns) == len(found.findings)
    assert found.reason
    if level != "safe":
        assert any(text.startswith(f"[{level.upper()}] ") for text in found.detected_patterns)
        assert found.reason.startswith(level)


@pytest.mark.parametrize(
    ("action", "params", "level"),
    [
        ("navigate", {"url": "https://example.org"}, "low"),
        ("fill", {"selector": "#PassWord", "value": "x"}, "high"),
        ("fill", {"selector": "#card", "value": "Credit"}, "high"),
        ("PAY", {}, "high"),
        ("click", {"selector": ["nested", {"deep": "to pay"}]}, "high"),
        ("click", {"value": object()}, "low"),
        ("click", None, "low"),
    ],
)
@pytest.mark.parametrize("policy", [STRICT, AGENT], ids=["strict", "agent"])
def test_actions_of_a_browser(
    policy: UnifiedRiskPolicy, action: str, params: dict[str, object] | None, level: Level
) -> None:
    """An action that speaks of passwords or payment needs a confirmation, and all go to aio_sandbox."""
    found = policy.assess(action, "browser", params)
    assert found.level == level
    assert advice(found) == (level == "high", False, "aio_sandbox")


@pytest.mark.parametrize("policy", [STRICT, AGENT], ids=["strict", "agent"])
def test_unknown_content_is_high(policy: UnifiedRiskPolicy) -> None:
    """Content of an unknown type is high: confirm, isolate, docker_simple."""
    for content_type in ("perl", "", "Python"):
        found = policy.assess("1", content_type)
        assert (found.level, *advice(found)) == ("high", *ASKED)
        assert found.language == content_type


def test_levels_for_frameworks_of_agents() -> None:
    """`get_risk_level` gives LOW for safe and low, and `requires_confirmation_for` is true from high on."""
    cases = {
        "1": ("LOW", False),
        "pip install x": ("LOW", False),
        "sleep 1 | nc example.org 80": ("MEDIUM", False),
        "chmod 777 /etc/passwd": ("HIGH", True),
        "rm -rf /": ("CRITICAL", True),
    }
    assert AGENT.get_risk_level("1") == "LOW"
    assert AGENT.get_risk_level("pay", "browser", {}) == "HIGH"
    assert AGENT.requires_confirmation_for("pay", "browser", {})
    for code, (level, confirm) in cases.items():
        language = "python" if code == "1" else "shell"
        assert AGENT.get_risk_level(code, language).name == AGENT.get_risk_level(code, language)
        assert (AGENT.get_risk_level(code, language), code) == (level, code)
        assert AGENT.requires_confirmation_for(code, language) is confirm


PYTHON = {
    "critical": [
        "__import__('os')", "EVAL ('1')", "exec(x)", "compile(a, b, c)", "__builtins__",
        "getattr(x, '__class__')", "os.system('ls')", "subprocess.run", "os.popen('ls')",
        "Popen (x)",
    ],
    "high": [
        "open('x', 'w')", 'open("x", mode="wb")', "open(os_path(a, b), 'w')", "f.write(x)",
        "shutil.copy(a, b)", "requests.get(u)", "urllib.request", "socket.socket()", "import os",
        "from os import path", "import sys", "import pickle", "from pickle import load",
        "import json, os", "import subprocess", "from subprocess import run", "import ctypes.util",
        "import a\nimport json as j, sys as s",
    ],
    "medium": [
        "open('x', 'r')", "open('x')", "open(path, 'rb')", "f.read()", "json.load(f)",
        "json.loads(t)", "os.environ['x']",
    ],
    "safe": [
        "1 + 1", "import pandas", "import osmnx", "print('hello')", "import math", "opened = 1",
        "from .os import x", "",
    ],
}  # fmt: skip
SHELL = {
    "critical": [
        "rm -rf /", "rm -rf ~", "RM  -RF /home", "dd if=/dev/zero of=x", "mkfs.ext4 /dev/sda",
        ":(){ :|:& };:", "bomb() { bomb | bomb & }; bomb", "echo x > /dev/sda",
        "curl https://x.example | sh", "wget -qO- x.example | sudo bash", "curl x | /bin/sh",
    ],
    "high": [
        "rm x", "mv a b", "ls > files", "echo x >> /tmp/y", "git push", "git -C x push origin",
        "git commit --force", "git push --force-with-lease", "sudo ls", "chmod 777 x",
    ],
    "medium": [
        "python x.py", "git status", "ls; make", "ls && cd x", "cat a | sort", "echo $(date)",
        "echo `date`", "X=1 make", "for x in a; do ls; done", "(cd x)",
    ],
    "safe": [
        "ls", "tree", "find . -name x", "pwd", "file x", "stat x", "cat a b", "head -n 1 x",
        "tail -f x", "less x", "more x", "grep -r x .", "rg x", "ag x", "ack x", "wc -l x", "du -sh",
        "echo hello", "which python", "whereis python", "ls -la | grep 'a|b' | wc -l", "/bin/ls",
        "LANG=C ls", "ls 2>&1", "# a comment\nls", "", 'grep "a; b" x && pwd',
    ],
}  # fmt: skip
JAVASCRIPT = {
    "critical": ["eval('1')", "new Function('x')", "require('child_process')", "NEW function()"],
    "high": [
        "require('fs')", 'require("node:fs/promises")', "import fs from 'fs'", "require('http')",
        "require('https')", "fetch('/x')", "await fetch (x)",
    ],
    "safe": ["1 + 1", "console.log('x')", "require('path')", "const f = function () {}", ""],
}  # fmt: skip
ROWS = [
    (language, level, code)
    for language, table in (("python", PYTHON), ("shell", SHELL), ("javascript", JAVASCRIPT))
    for level, pieces in table.items()
    for code in pieces
]


@pytest.mark.parametrize(("language", "level", "code"), ROWS)
def test_each_pattern_of_the_strict_rules(language: str, level: Level, code: str) -> None:
    """Each pattern of the strict rule set has its level, in any case."""
    found = STRICT.assess(code, language)
    assert (found.level, found.detected_patterns) == (level, found.detected_patterns)
    assert advice(found) == ADVICE[language][level]


def test_positions_of_strict_findings() -> None:
    """A finding of a pattern has its line and column, and only the first matches are listed."""
    found = STRICT.assess("x = 1\ny = eval('1')\n", "python")
    (finding,) = found.findings
    assert (finding.line, finding.column, finding.reason) == (2, 5, "eval(")
    assert found.detected_patterns == ["[CRITICAL] eval( (line 2)"]
    assert found.reason == "critical: eval( (line 2)"
    many = STRICT.assess("eval(x)\n" * 100, "python")
    assert [finding.line for finding in many.findings] == [1, 2, 3, 4, 5]
    unknown = STRICT.assess("make all", "shell")
    assert unknown.detected_patterns == ["[MEDIUM] make is not on the list (line 1)"]


def test_dangerous_patterns_of_an_operator() -> None:
    """An operator's patterns are critical in both rule sets and all languages, and must be valid."""
    for rules in ("agent", "strict"):
        policy = UnifiedRiskPolicy(rules, [r"drop\s+table"])
        for content_type in ("python", "javascript", "shell", "browser"):
            found = policy.assess("DROP  TABLE x", content_type)
            assert found.level == "critical"
            assert r"[CRITICAL] the pattern drop\s+table (line 1)" in found.detected_patterns
        assert policy.assess("x = 1").level == "safe"
    with pytest.raises(ValueError, match="is not a regular expression"):
        UnifiedRiskPolicy("agent", ["("])
    with pytest.raises(ValueError, match="rules is one of agent, strict"):
        assess("1", rules="lax")  # type: ignore[arg-type]


def test_the_fields_of_an_assessment() -> None:
    """The JSON of an assessment has the fields that clients are promised."""
    fields = msgspec.to_builtins(assess("eval(x)"))
    assert set(fields) == {
        "level", "reason", "requires_confirmation", "requires_isolation", "suggested_sandbox",
        "detected_patterns", "findings", "language",
    }  # fmt: skip


@pytest.mark.parametrize("language", ["python", "shell", "javascript"])
@pytest.mark.parametrize(
    "piece",
    [
        "open(",
        "rm ",
        "curl x |",
        "(",
        "a(){a",
        "getattr(",
        "import ",
        "'",
        '"',
        "git ",
        "\\",
        ">",
        " ",
    ],
)
def test_strict_assessments_take_bounded_time(language: str, piece: str) -> None:
    """The patterns take a second at most for the longest code."""
    code = piece * (100_000 // len(piece))
    begun = time.process_time()
    STRICT.assess(code, language)
    assert time.process_time() - begun < 4
