"""Analyses of data files in a session: with given code, without code, or with code from a model.

    async with kernelbroker.connect() as broker:
        tools = AnalysisTools(broker)
        answer = await tools.analyze_data("uploads/sales.csv", "descriptive")

`AnalysisTools` has the tools that agents call, `CodeExecutor` is the loop that corrects failing code, and
`chat_model` makes a function of a model's client.
"""

from .answers import Answer
from .executor import CodeExecutor
from .models import chat_model
from .paths import PathMapper
from .tools import AnalysisTools, analyze_data, table_operation

__all__ = [
    "AnalysisTools",
    "Answer",
    "CodeExecutor",
    "PathMapper",
    "analyze_data",
    "chat_model",
    "table_operation",
]
