"""The operator's model for analyses, and the confirmation of analyses' code."""

from __future__ import annotations

import pytest
from kernelbroker.analysis.models import ask
from kernelbroker_server.mcp.analysis_model import load_model


async def test_the_models_that_an_operator_can_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of a module and the vendors' clients are models; other texts are refused."""
    assert load_model(None) is None
    assert await ask(load_model("textwrap:dedent"), "  x") == "x\n"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert callable(load_model("anthropic:m"))
    for wrong in ("nowhere.at.all:f", "textwrap:nothing", "textwrap:__all__"):
        with pytest.raises(ValueError, match="gives no model"):
            load_model(wrong)
