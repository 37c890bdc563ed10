"""Assesses the possible effects of code before it runs, by its syntax. Needs no I/O and no broker.

This is advice, not a boundary: code can hide its effects from any reader, and only a sandbox contains
it. Shell and JavaScript are parsed by tree-sitter, and cells are read by IPython's transformer; the extra
`kernelbroker[risk]` installs both.
"""

from __future__ import annotations

from ..protocol.findings import LEVELS, Assessment, Finding, Language, Level, RuleSet, at_least
from .assess import assess
from .syntax_trees import ParserMissing
from .unified import RiskLevel, UnifiedRiskPolicy

__all__ = [
    "LEVELS", "Assessment", "Finding", "Language", "Level", "ParserMissing", "RiskLevel", "RuleSet",
    "UnifiedRiskPolicy", "assess", "at_least",
]  # fmt: skip
