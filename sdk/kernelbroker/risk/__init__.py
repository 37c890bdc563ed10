"""Judging code before it runs: what it would do, from its syntax, without running it. No I/O.

    assessment = kernelbroker.risk.assess("import os; os.system('ls')")
    assessment.level, assessment.findings

This is advice, not a boundary: code can hide what it does from any reader, and the sandbox is what
holds it. The rules are tables (`python_rules`, `shell_rules`, `javascript_rules`, `paths`); a rule more
is a line more. Shell and JavaScript are parsed by tree-sitter, which comes with `kernelbroker[risk]`.
Whatever the code is, judging it raises nothing on its account, and what is done with a syntax tree is
bounded in time and memory. Making the tree is not: there are malformed texts of a few KB for which
tree-sitter takes gigabytes. The broker judges in processes that have limits; where hostile code is
judged elsewhere, do the same.
"""

from __future__ import annotations

from ..protocol.findings import LEVELS, Assessment, Finding, Language, Level, at_least
from .judge import assess
from .trees import ParserMissing

__all__ = [
    "LEVELS",
    "Assessment",
    "Finding",
    "Language",
    "Level",
    "ParserMissing",
    "assess",
    "at_least",
]
