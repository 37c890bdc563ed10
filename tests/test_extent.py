"""The list of what only `make test-all` runs names tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.extent import MAIN, THOROUGH, is_thorough

TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", [*THOROUGH, *MAIN])
def test_a_listed_path_exists(path: str) -> None:
    """A renamed file does not silently join the short run, or leave it."""
    assert (TESTS / path).exists()


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("security/test_files.py", "test_x", True),
        ("e2e/test_sessions.py", "test_x", False),
        ("e2e/test_sessions.py", "test_x[gvisor]", True),
        ("e2e/test_docker.py", "test_x", False),
        ("e2e/test_browser_tools.py", "test_x", True),
        ("cluster_of_others/test_x.py", "test_x", False),
    ],
)
def test_what_is_thorough(path: str, name: str, expected: bool) -> None:
    """Listed directories and files, and other kinds of sandboxes but for their main stories."""
    assert is_thorough(path, f"tests/{path}::{name}") is expected
