"""Results from events, and how results are displayed."""

from __future__ import annotations

import base64
import sys

import kernelbroker
import pandas
import pytest
from kernelbroker import events
from kernelbroker.collector import Collector
from kernelbroker.rich_outputs import Display, Image

SCRIPT = "<script>alert(1)</script>"


def collected(*items):
    collector = Collector()
    for item in items:
        collector.add(item)
    if not isinstance(items[-1], events.Result):
        collector.add(events.Result(success=True))
    return collector.result()


def table(**changes):
    facts = {
        "var_name": "df",
        "kind": "pandas",
        "shape": (1000, 2),
        "columns": ["a", "b"],
        "dtypes": {"a": "int64", "b": "float64"},
        "preview": [{"a": 1, "b": 0.5}, {"a": 2, "b": None}],
        "markdown": "| a | b |\n| --- | --- |\n| 1 | 0.5 |\n| 2 | null |",
        "memory_usage": 16_000,
    }
    frame = events.DataFrame(**{**facts, **changes})
    return collected(events.Result(success=True, dataframe=frame)).dataframe


def test_a_result_has_the_collected_output():
    """Text is joined unchanged; pictures and displays keep their order."""
    result = collected(
        events.Started(),
        events.Stdout(content="10%\r"),
        events.Stdout(content="20%\n"),
        events.Stderr(content="warning"),
        events.Image(mime="image/png", content=base64.b64encode(b"png").decode(), width=3),
        events.Display(data={"text/plain": "x"}),
        events.Result(success=True, return_value={"a": 1}, execution_time=0.1),
    )
    assert (result.success, result.stdout, result.stderr) == (True, "10%\r20%\n", "warning")
    assert result.images == [Image("image/png", b"png", 3)]
    assert [display.text for display in result.displays] == ["x"]
    assert result.return_value == {"a": 1}


@pytest.mark.parametrize(("wait", "stdout"), [(False, "")])
def test_clear_removes_the_output_at_once(wait, stdout):
    """Without `wait` all earlier output is removed at once."""
    result = collected(
        events.Stdout(content="a"),
        events.Image(mime="image/png", content=""),
        events.Clear(wait=wait),
    )
    assert (result.stdout, result.images) == (stdout, [])


def test_clear_with_wait_removes_the_output_later():
    """With `wait` the output stays until new output arrives."""
    last = [events.Stdout(content="a"), events.Clear(wait=True)]
    assert collected(*last).stdout == "a"
    assert collected(*last, events.Stderr(content="b")).stdout == ""


def test_display_updates_replace_the_display():
    """An update replaces all displays with its id, at their place."""
    result = collected(
        events.Display(data={"text/plain": "1"}, display_id="p"),
        events.Display(data={"text/plain": "other"}),
        events.Display(data={"text/plain": "2"}, display_id="p", update=True),
    )
    assert [display.text for display in result.displays] == ["2", "other"]


def test_an_update_without_its_display_is_shown():
    """An update is shown if its display was in another execution."""
    result = collected(
        events.Display(data={"text/plain": "new"}, display_id="p", update=True),
    )
    assert [display.text for display in result.displays] == ["new"]


def test_invalid_base64_is_an_empty_picture():
    """A picture with invalid data does not make `run` fail."""
    result = collected(events.Image(mime="image/png", content="%%%"))
    assert result.images[0].data == b""


def test_pictures_are_displayed_and_saved(tmp_path):
    """A notebook shows a PNG, and an SVG as a picture whose scripts do not run."""
    png = Image("image/png", b"png")
    assert png.save(tmp_path / "a.png").read_bytes() == b"png"
    assert (png._repr_png_(), png._repr_jpeg_(), png._repr_html_()) == (b"png", None, None)
    svg = Image("image/svg+xml", f"<svg>{SCRIPT}</svg>")
    assert svg._repr_html_().startswith('<img src="data:image/svg+xml;base64,')
    assert not hasattr(svg, "_repr_svg_")


def test_raise_for_error():
    """A success is returned; a failure raises an error of one line, with the traceback as a note."""
    good = collected(events.Result(success=True))
    assert good.raise_for_error() is good
    detail = events.ErrorDetail(
        name="E", value="v", cause="exception", traceback=["line 1", "E: v"]
    )
    bad = collected(events.Result(success=False, error="E: v", error_detail=detail))
    with pytest.raises(kernelbroker.ExecutionFailed, match="E: v") as info:
        bad.raise_for_error()
    assert str(info.value) == "E: v"
    assert info.value.__notes__ == ["line 1\nE: v"]


def test_a_notebook_shows_a_result_safely():
    """All text is escaped, and HTML of the sandbox is in a frame without scripts."""
    result = collected(
        events.Stdout(content=SCRIPT),
        events.Stderr(content=SCRIPT + "\ud800"),
        events.Display(data={"text/html": SCRIPT, "application/javascript": "alert(1)"}),
        events.Display(data={"text/plain": SCRIPT}),
        events.Image(mime='image/"><script>', content="AAAA"),
        events.Result(success=False, error=SCRIPT * 2, return_value={SCRIPT: SCRIPT}),
    )
    html = result._repr_html_()
    assert "<script" not in html
    assert '<iframe sandbox="" srcdoc="' in html
    html.encode()
    assert repr(result).startswith("ExecutionResult(success=False, stdout='<script>")


def test_a_display_shows_only_safe_types():
    """Scripts, markdown and similar types are only in `data`."""
    display = Display(
        {"text/plain": "x", "text/html": SCRIPT, "text/markdown": SCRIPT, "image/png": "AAAA"}
    )
    bundle = display._repr_mimebundle_(include=None, exclude=None)
    assert set(bundle) == {"text/plain", "text/html", "image/png"}
    assert "<script" not in bundle["text/html"]


def test_a_table_is_displayed_as_html_and_markdown():
    """HTML has labels and sizes, escaped; `str` gives the markdown."""
    info = table(
        labels=[SCRIPT, ["x", 1]],
        index=events.IndexInfo(names=[None], dtypes=["str"], values=["<r0>", "<r1>"]),
    )
    html = info._repr_html_()
    assert "<script" not in html
    assert "<th>x / 1</th>" in html
    assert "<th>&lt;r0&gt;</th><td>1</td><td>0.5</td>" in html
    assert "df: 1,000 rows × 2 columns (pandas); the first 2 rows" in html
    assert str(info).startswith("| a | b |")


def test_to_pandas_has_the_dtypes():
    """JSON values get the dtypes of their columns; a missing value stays missing."""
    info = table(
        columns=list("abcdefg"),
        dtypes={
            "a": "int64",
            "b": "float64",
            "c": "datetime64[us, UTC]",
            "d": "timedelta64[us]",
            "e": "bool",
            "f": "category",
            "g": "object",
        },
        preview=[
            {
                "a": 1,
                "b": None,
                "c": "2026-01-02T03:04:05+00:00",
                "d": "P1DT2H3M4.5S",
                "e": True,
                "f": "x",
                "g": [1, {"k": 2}],
            },
            {"a": 2, "b": "inf", "c": None, "d": None, "e": False, "f": None, "g": None},
        ],
    )
    frame = info.preview_to_pandas()
    dtypes = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    assert dtypes == info.dtypes
    assert frame["b"].isna().tolist() == [True, False]
    assert frame["d"][0] == pandas.Timedelta("1 days 02:03:04.5")
    assert frame["g"][0] == [1, {"k": 2}]
    assert isinstance(frame.index, pandas.RangeIndex)


def test_to_pandas_keeps_missing_values():
    """If a dtype has no missing value, the column has another dtype; no value becomes False or 'None'."""
    frame = table(
        columns=["a", "b", "c"],
        dtypes={"a": "bool", "b": "int64", "c": "Utf8"},
        preview=[{"a": None, "b": None, "c": "x"}, {"a": True, "b": 1, "c": None}],
    ).preview_to_pandas()
    assert frame.isna().sum().tolist() == [1, 1, 1]


def test_to_pandas_without_pandas(monkeypatch):
    """If pandas is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'kernelbroker\[pandas\]'"):
        table().preview_to_pandas()


def test_to_pandas_keeps_labels():
    """Duplicate names, numbers, and MultiIndexes on both axes are unchanged."""
    frame = table(
        columns=["x", "x.1"],
        labels=["x", "x"],
        dtypes={"x": "int64", "x.1": "int64"},
        preview=[{"x": 1, "x.1": 2}],
        index=events.IndexInfo(names=["letter", None], dtypes=["str", "int64"], values=[["a", 1]]),
    ).preview_to_pandas()
    assert frame.columns.tolist() == ["x", "x"]
    assert frame.index.tolist() == [("a", 1)]
    assert frame.index.names == ["letter", None]

    frame = table(labels=[["a", 1], ["b", 2]]).preview_to_pandas()
    assert frame.columns.equals(pandas.MultiIndex.from_tuples([("a", 1), ("b", 2)]))

    index = events.IndexInfo(
        names=["when"], dtypes=["datetime64[us]"], values=["2026-01-01", "2026-01-02"]
    )
    frame = table(labels=[0, 1], index=index).preview_to_pandas()
    assert frame.columns.tolist() == [0, 1]
    assert str(frame.index.dtype) == "datetime64[us]"
    assert frame.index.name == "when"


def test_to_pandas_of_empty_tables():
    """Tables without rows or without columns become DataFrames."""
    index = events.IndexInfo(names=["i", "j"], dtypes=["int64", "str"], values=[])
    assert table(preview=[], shape=(0, 2), index=index).preview_to_pandas().shape == (0, 2)
    empty = table(columns=[], dtypes={}, preview=[{}, {}], shape=(2, 0)).preview_to_pandas()
    assert empty.shape == (2, 0)


def test_to_pandas_of_a_wide_table():
    """Of a very wide table only the previewed columns are converted."""
    frame = table(preview=[{"a": 1}]).preview_to_pandas()
    assert frame.columns.tolist() == ["a"]


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("int64[pyarrow]", 1, "int64[pyarrow]"),
        ("string[pyarrow]", "a", "string[pyarrow]"),
        ("binary[pyarrow]", "/w==", "str"),
        ("fixed_size_binary[1][pyarrow]", "/w==", "str"),
        ("string_view[pyarrow]", "a", "str"),
        ("decimal128(5, 2)[pyarrow]", "1.50", "str"),
        ("month_day_nano_interval[pyarrow]", [1, 2, 3], "object"),
        ("fixed_size_list<item: int8>[2][pyarrow]", [1, 2], "object"),
        ("interval[int64, right]", "(0, 1]", "str"),
        ("Sparse[int64, 0]", 3, "int64"),
        ("S1000000000", "a", "str"),
        ("datetime64[ns, dateutil//etc/passwd]", "2020-01-01T00:00:00+00:00", "str"),
        ("period[M]", "2020-01", "period[M]"),
        ("complex64", "(1+2j)", "complex64"),
        ("str", "\udcff", "object"),
        ("category", "\udcff", "object"),
    ],
)
def test_to_pandas_converts_only_what_json_can_hold(dtype, value, expected):
    """Columns of other dtypes hold the values of the preview, and no dtype allocates or raises."""
    rows = [{"a": value}] * 2
    frame = table(columns=["a"], dtypes={"a": dtype}, preview=rows).preview_to_pandas()
    assert str(frame["a"].dtype) == expected
    if expected in ("str", "object", "int64"):
        assert frame["a"].tolist() == [value, value]


def test_to_pandas_of_integers_with_missing_values():
    """Integers and bools that NumPy has no missing value for have pandas' nullable dtypes."""
    frame = table(
        columns=["a", "b"],
        dtypes={"a": "uint8", "b": "bool"},
        preview=[{"a": None, "b": True}, {"a": 3, "b": None}],
    ).preview_to_pandas()
    assert [*map(str, frame.dtypes)] == ["UInt8", "boolean"]
    assert frame["a"][1] == 3 and frame["b"][0]


def test_to_pandas_of_labels_with_lone_surrogates():
    """Labels that pandas' own text type does not hold are Python's texts."""
    index = events.IndexInfo(names=[None], dtypes=["str"], values=["\udcff", "b"])
    frame = table(labels=["a\ud800", "b"], index=index).preview_to_pandas()
    assert frame.columns.tolist() == ["a\ud800", "b"]
    assert frame.index.tolist() == ["\udcff", "b"]
    index = events.IndexInfo(
        names=["i", "j"], dtypes=["str", "object"], values=[["\udcff", [1]], ["b", {"k": 1}]]
    )
    frame = table(labels=[["a\ud800", 1], ["b", 2]], index=index).preview_to_pandas()
    assert frame.columns.tolist() == [("a\ud800", 1), ("b", 2)]
    assert frame.index.nlevels == 2 and frame.index.names == ["i", "j"]
