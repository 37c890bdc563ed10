"""docs/sdk.md matches the SDK."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

import kernelbroker
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_sdk", ROOT / "docs" / "make_sdk.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(reference: ModuleType) -> None:
    """Signatures, docstrings and examples are the same as in the SDK."""
    assert reference.page() == reference.PAGE.read_text(), "run: make docs"
    assert reference.modules_page() == reference.MODULES_PAGE.read_text(), "run: make docs"


def test_every_public_name_is_documented(reference: ModuleType) -> None:
    """Every public name is on the page, and each class and function has a docstring."""
    assert set(kernelbroker.__all__) <= reference.documented()
    page = reference.PAGE.read_text()
    for name in kernelbroker.__all__:
        assert name in page
        assert inspect.getdoc(getattr(kernelbroker, name))


@pytest.mark.parametrize("name", ["Broker", "Session", "Files"])
def test_every_call_has_an_example(reference: ModuleType, name: str) -> None:
    """Each public method has an example with its output."""
    kind = getattr(kernelbroker, name)
    methods = {label for label, m in vars(kind).items() if inspect.isfunction(m)}
    calls = {f"{name}.{label}" for label in methods if not label.startswith("_")}
    assert calls - {"Broker.close"} <= set(reference.EXAMPLES)
