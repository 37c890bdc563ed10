"""An export of a hostile object is refused with a reason."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from kernelbroker_kernel import exports
from kernelbroker_kernel.errors import Refused

TICKET = "0" * 32


class Exits(pd.DataFrame):
    @property
    def index(self) -> Any:  # type: ignore[override]
        raise SystemExit(9)


class Loops(pd.DataFrame):
    @property
    def index(self) -> Any:  # type: ignore[override]
        while True:
            pass


class Text(str):
    def __str__(self) -> str:
        raise SystemExit(9)


@pytest.fixture
def short_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel's directory, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", directory)
        yield


@pytest.mark.parametrize("format", ["arrow", "parquet", "csv", "json"])
@pytest.mark.parametrize("kind", [Exits, Loops])
def test_a_hostile_table_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: Any, format: str
) -> None:
    """A table that exits or loops when it is looked at is refused within the time limit."""
    monkeypatch.setattr(exports, "PREPARE_S", 0.1)
    with pytest.raises(Refused, match=f"df cannot be sent as {format}: ") as caught:
        exports.Export({"df": kind({"a": [1]})}, "df", format, TICKET)
    assert caught.value.code == "conflict"


@pytest.mark.usefixtures("short_directory")
@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_lossy_reaches_both_binary_formats(format: str) -> None:
    """With `lossy` a table that would be refused is prepared, and its schema lists the changes."""
    names = {"df": pd.DataFrame({"a": pd.Series([Text("x")], dtype=object)})}
    with pytest.raises(Refused, match=r"column a holds .* lossy=True"):
        exports.Export(names, "df", format, TICKET)
    with exports.Export(names, "df", format, TICKET, lossy=True) as export:
        body: Any = export._body
        schema = body._source.schema if format == "arrow" else pq.read_schema(body._file)
    (change,) = json.loads(schema.metadata[b"kernelbroker"])["changes"]
    assert change["column"] == "a" and "Text as str" in change["change"]
