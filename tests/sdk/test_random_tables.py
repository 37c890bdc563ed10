"""Random DataFrames reach a client exactly, or with every change told, or are refused with words.

The kernel's converter runs in the kernels' interpreter, the SDK's reader in another. To try more tables:

    KERNELBROKER_TEST_TABLES=5000 python -m pytest tests/sdk/test_random_tables.py
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pyarrow
import pytest
from hypothesis import HealthCheck, assume, given, settings
from pyarrow import parquet

from tests.support.tables import text_formats
from tests.support.tables.frame_source import evaluate
from tests.support.tables.processes import Tables
from tests.support.tables.random_frames import frames

TABLES = int(os.environ.get("KERNELBROKER_TEST_TABLES", "150"))
"""Of each test."""

often = settings(
    max_examples=TABLES,
    deadline=None,
    derandomize="KERNELBROKER_TEST_TABLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def tables() -> Iterator[Tables]:
    tables = Tables(fork=False)
    yield tables
    tables.close()


def made(tables: Tables, expression: str, format: str, *, lossy: bool = False) -> dict[str, object]:
    answer = tables.made(expression, format, lossy=lossy)
    assume("invalid" not in answer)
    return answer


@pytest.mark.slow
@often
@given(expression=frames())
def test_a_table_is_exact_or_refused(tables: Tables, expression: str) -> None:
    """A DataFrame comes back as it was, or is refused with the part and the remedy."""
    answer = made(tables, expression, "arrow")
    if "refused" in answer:
        assert "with lossy=True it comes with" in str(answer["refused"])
        return
    found = tables.read("compare", expression, answer["made"], expression)
    assert not found["differences"]
    assert not found["changes"] and not found["warned"]


@pytest.mark.slow
@often
@given(expression=frames())
def test_a_lossy_table_lists_its_changes(tables: Tables, expression: str) -> None:
    """With `lossy` no DataFrame is refused, and every difference is listed."""
    answer = made(tables, expression, "arrow", lossy=True)
    assert "refused" not in answer
    found = tables.read("compare", expression, answer["made"], expression)
    listed = [(each["part"], each["column"]) for each in found["changes"]]
    for part, place, words in found["differences"]:
        name = None if place is None else found["names"][place]
        assert any(
            part == one and (name is None or str(column).startswith(name)) for one, column in listed
        ), words
    if not found["differences"]:
        assert not listed
    assert not found["warned"]


@pytest.mark.slow
@often
@given(expression=frames())
def test_a_preview_never_contradicts_its_table(tables: Tables, expression: str) -> None:
    """The preview becomes a frame without an error, and a dtype of the table has its values."""
    facts, _ = made(tables, expression, "preview")["made"]
    found = tables.read("preview", expression, facts, expression)
    assert not found["differences"] and not found["warned"]


@pytest.mark.slow
@often
@given(expression=frames())
@pytest.mark.parametrize("format", ["csv", "json"])
def test_text_formats_have_the_documented_values(
    tables: Tables, format: str, expression: str
) -> None:
    """Each cell of CSV and JSON is what docs/api.md says."""
    answer = made(tables, expression, format)
    assert not text_formats.mismatches(str(answer["made"]), format, evaluate(expression))


@pytest.mark.slow
@often
@given(expression=frames())
def test_parquet_holds_the_arrow_table(tables: Tables, expression: str) -> None:
    """A Parquet file has the columns and the values of the Arrow stream, or is refused as well."""
    arrow, file = (made(tables, expression, format) for format in ("arrow", "parquet"))
    if "refused" in arrow or "refused" in file:
        assert "refused" in file
        return
    table = pyarrow.ipc.open_stream(arrow["made"]).read_all()
    assert not text_formats.parquet_differences(parquet.read_table(io.BytesIO(file["made"])), table)
