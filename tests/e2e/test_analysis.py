"""The tools of an analyst and the correcting loop, in a real sandbox."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernelbroker
import pandas
import pytest
from kernelbroker.analysis import AnalysisTools, CodeExecutor

from tests.e2e.support import ROOT, BrokerProcess, whole_system

pytestmark = whole_system

SALES = "region,product,units,price,date\n" + "".join(
    f"{region},{product},{units},{price},2026-0{1 + units % 4}-01\n"
    for units, (region, product, price) in enumerate(
        [
            ("North", "a", 1.5),
            ("North", "b", 2.0),
            ("South", "a", 1.5),
            ("South", "b", 2.5),
            ("West", "a", 1.0),
            ("West", "b", 9.5),
            ("North", "a", 1.5),
            ("South", "a", 2.0),
        ]
    )
)
FRAME = "def analyze(df):\n    print('working')\n    return df.sort_values('units')\n"


class Model:
    """A model whose answers are written beforehand."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        return f"Here it is:\n```python\n{self._answers.pop(0)}\n```\n"


@pytest.fixture
async def tools(session: kernelbroker.Session) -> AnalysisTools:
    await session.files.write("uploads/sales.csv", SALES)
    return AnalysisTools(session)


BOOK = """
import pandas as pd
with pd.ExcelWriter("uploads/book.xlsx") as writer:
    pd.DataFrame().to_excel(writer, sheet_name="Cover")
    pd.DataFrame({"x": [1, 2], "y": [3, 4]}).to_excel(writer, sheet_name="Data", startrow=2, index=False)
    writer.sheets["Data"]["A1"] = "Sales of May"
"""


async def test_how_a_file_was_read_is_told(
    tools: AnalysisTools, session: kernelbroker.Session
) -> None:
    """Encoding, separator, decimal comma, header and sheet are found, and stand in the answer."""
    german = "Umsatz Mai\nstadt;betrag\nM\xfcnchen;1.234,50\nK\xf6ln;12,00\n"
    await session.files.write("uploads/german.csv", german.encode("cp1252"))
    code = "def analyze(df):\n    return df\n"
    answer = await tools.analyze_data("uploads/german.csv", "custom", code=code)
    assert answer["data"] == [
        {"stadt": "M\xfcnchen", "betrag": 1234.5},
        {"stadt": "K\xf6ln", "betrag": 12.0},
    ]
    (read,) = answer["inputs"]
    assert read["name"].endswith("uploads/german.csv")
    told = {"encoding": "cp1252", "separator": ";", "header_line": 2, "decimal": ","}
    assert told.items() <= read.items()
    assert (await session.run(BOOK)).success
    answer = await tools.analyze_data("uploads/book.xlsx", "custom", code=code)
    assert answer["data"] == [{"x": 1, "y": 3}, {"x": 2, "y": 4}], answer
    (read,) = answer["inputs"]
    assert (read["sheet"], read["header_line"]) == ("Data", 3)


async def test_frame(tools: AnalysisTools, session: kernelbroker.Session) -> None:
    """A frame is described with its shape, columns, preview and data; `result` stays in the session."""
    answer = await tools.analyze_data("uploads/sales.csv", "custom", code=FRAME)
    assert answer["success"], answer
    assert answer["session_id"] == session.session_id
    assert re.fullmatch(r"\d+\.\d\ds", answer["execution_time"])
    assert answer["output"] == "working"
    assert answer["dataframe"]["var_name"] == "result"
    assert answer["dataframe"]["shape"] == "8 rows × 5 columns"
    assert answer["dataframe"]["columns"] == ["region", "product", "units", "price", "date"]
    assert answer["dataframe"]["preview"] == answer["data"]
    assert answer["data"][1]["price"] == 2.0
    assert "error" not in answer
    assert str(await session.run("len(result)")) == "8"
    names = {variable.name for variable in await session.variables()}
    assert {"result"} <= names
    assert not {name for name in names if "_kb" in name}


async def test_bounds_of_preview_and_data(tools: AnalysisTools) -> None:
    """The preview has 20 rows and the data 500, of a frame and of a dict."""
    many = "def analyze(df):\n    import pandas\n    return pandas.DataFrame({'数': range(700)})"
    answer = await tools.analyze_data("uploads/sales.csv", "x", "多少？", code=many)
    assert answer["dataframe"]["shape"] == "700 行 × 1 列"
    assert len(answer["dataframe"]["preview"]) == 20
    assert len(answer["data"]) == 500
    as_dict = many.replace("return ", "d = ") + (
        "\n    return {'markdown': '# Title', 'data': d.to_dict('records'), 'shape': d.shape}"
    )
    answer = await tools.analyze_data("uploads/sales.csv", "x", code=as_dict)
    assert answer["output"].startswith("# Title")
    assert len(answer["data"]) == 500
    assert answer["dataframe"]["shape"] == "700 rows × 1 column"


async def test_errors_show_the_callers_lines(tools: AnalysisTools) -> None:
    """A traceback has the caller's line numbers; missing files, columns and functions are explained."""
    failing = "import math\n\ndef analyze(df):\n    x = 1\n    return df['nowhere']\n"
    answer = await tools.analyze_data("uploads/sales.csv", "x", code=failing)
    assert not answer["success"]
    assert "line 5, in analyze" in answer["error"]
    assert "KeyError: 'nowhere'" in answer["error"]
    assert "data" not in answer
    answer = await tools.analyze_data("uploads/other.csv", "x", code=FRAME)
    assert "there is no file /data/uploads/other.csv" in answer["error"]
    assert "sales.csv" in answer["error"]
    answer = await tools.analyze_data("uploads/sales.csv", "x", code="result = 1")
    assert "def analyze(df):" in answer["error"]
    answer = await tools.analyze_data("uploads/sales.csv", "which region is best?")
    assert "def analyze(df):" in answer["error"]
    answer = await tools.analyze_data("uploads/../../etc/passwd", "describe")
    assert "leads out" in answer["error"]


async def test_table_operation_reads_and_writes_all_formats(
    session: kernelbroker.Session, tools: AnalysisTools
) -> None:
    """Each format is read and written, also text in GBK and workbooks with several sheets."""
    await session.files.write("uploads/gbk.csv", "城市,人口\n北京,2154\n".encode("gbk"))
    await session.files.write("uploads/t.tsv", "城市\t人口\n上海\t2428\n")
    join = """
import pandas
def operation(dataframes, input_paths, output_path):
    whole = pandas.concat(dataframes)
    if output_path.endswith("xlsx"):
        with pandas.ExcelWriter(output_path) as book:
            whole.to_excel(book, sheet_name="all", index=False)
            whole.head(1).to_excel(book, sheet_name="first", index=False)
    elif output_path.endswith("parquet"):
        whole.to_parquet(output_path)
    elif output_path.endswith("json"):
        whole.to_json(output_path, orient="records")
    print(len(whole), input_paths)
"""
    inputs = ["uploads/gbk.csv", "uploads/t.tsv"]
    for name in ("deep/er/x.xlsx", "x.parquet", "outputs/x.json"):
        answer = await tools.table_operation("join them", inputs, name, code=join)
        assert answer["success"], answer
        assert answer["output_path"] == f"/data/outputs/{name.removeprefix('outputs/')}"
        assert answer["output"].startswith("2 ['/data/")
        inputs = [answer["output_path"]]
        if name.endswith("xlsx"):
            inputs = [f"{inputs[0]}#all"]
    read = await session.files.read("outputs/x.json")
    frame = pandas.read_json(io.BytesIO(read))
    assert frame["城市"].tolist() == ["北京", "上海"]
    both = (
        "def operation(dataframes, input_paths, output_path):\n"
        "    print(dataframes.names, len(dataframes['first']), len(dataframes['x.xlsx#all']))\n"
    )
    answer = await tools.table_operation(
        "look", ["/data/outputs/deep/er/x.xlsx"], "y.csv", code=both
    )
    assert (
        "['/data/outputs/deep/er/x.xlsx#all', '/data/outputs/deep/er/x.xlsx#first'] 1 2"
        in (answer["output"])
    )
    assert "has not written /data/outputs/y.csv" in answer["error"]
    assert "output_path" not in answer


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("describe", "8 rows and 5 columns"),
        ("missing", "No value is missing"),
        ("correlation", "r = "),
        ("group", "By product there are 2 groups"),
        ("trend", "4 points ordered by date"),
        ("outliers", "price: 1, 12.5% of its values"),
        ("distribution", "Half of the values of"),
    ],
)
async def test_usual_analyses(tools: AnalysisTools, kind: str, said: str) -> None:
    """Each usual analysis needs no code, and ends with sentences about its figures; one draws."""
    answer = await tools.analyze_data("uploads/sales.csv", kind)
    assert answer["success"], answer
    assert said in answer["output"]
    assert answer["output"].rstrip().endswith(".")
    assert bool(answer.images) == (kind == "distribution")
    assert answer.get("data") or kind == "none"


async def test_usual_analyses_in_chinese_and_of_odd_tables(
    session: kernelbroker.Session, tools: AnalysisTools
) -> None:
    """Chinese columns get Chinese sentences; tables without rows or numbers are no failure."""
    await session.files.write(
        "uploads/zh.csv", "月份,销售额\n2026年1月,10\n2026年2月,\n2026年3月,30\n"
    )
    await session.files.write("uploads/empty.csv", "a,b\n")
    await session.files.write("uploads/words.csv", "a\nx\ny\nz\n")
    kinds = ("descriptive", "missing", "correlation", "group", "trend", "outliers", "distribution")
    said: dict[str, Any] = {}
    for kind in kinds:
        for name in ("zh", "empty", "words"):
            answer = await tools.analyze_data(f"uploads/{name}.csv", kind)
            assert answer["success"], (kind, name, answer)
            said[kind, name] = answer["output"]
        assert said[kind, "zh"].endswith("。"), said[kind, "zh"]
        assert said[kind, "words"].endswith("."), said[kind, "words"]
    assert "从 10 变为 30（+200.0%）" in said["trend", "zh"]


async def test_a_model_answers_a_question(
    session: kernelbroker.Session, tools: AnalysisTools
) -> None:
    """A model gets the columns, types and first rows; code of it that fails is corrected."""
    wrong = "def analyze(df):\n    return df['Region'].value_counts()"
    right = (
        "def analyze(df):\n    d = df.groupby('region', as_index=False)['units'].sum()\n"
        "    return {'markdown': d.to_markdown(), 'data': d.head(500), 'shape': d.shape, 'summary': 'So.'}"
    )
    model = Model(wrong, right)
    tools = AnalysisTools(session, llm=model)
    answer = await tools.analyze_data("uploads/sales.csv", "custom", "units by region?")
    assert answer["success"], answer
    assert answer["dataframe"]["shape"] == "3 rows × 2 columns"
    assert {row["region"] for row in answer["data"]} == {"North", "South", "West"}
    first, second = model.asked
    for part in ("units by region?", "'price': float64", '"region": "North"', "head(500)"):
        assert part in first
    assert wrong in second
    assert "KeyError: 'Region'" in second
    model = Model(
        "def operation(dataframes, input_paths, output_path):\n"
        "    dataframes[0].head(2).to_csv(output_path, index=False)"
    )
    tools = AnalysisTools(session, llm=model)
    answer = await tools.table_operation("first two rows", ["uploads/sales.csv"], "two.csv")
    assert answer["success"], answer
    assert "first two rows" in model.asked[0]


async def test_executor_corrects(session: kernelbroker.Session, tools: AnalysisTools) -> None:
    """A failure is corrected with the error, the variables and the columns; the whole table comes back."""
    await session.run("import pandas\ndf = pandas.read_csv('uploads/sales.csv')\nlimit = 3")
    right = "pandas.concat([df] * 200)[['units']]"
    model = Model("df['Units']", right)
    executor = CodeExecutor(session, llm=model)
    table = await executor.execute_analysis("units?", "1 / 0")
    assert table.shape == (1600, 1)
    assert [each["code"] for each in executor.error_history] == ["1 / 0", "df['Units']\n"]
    assert "ZeroDivisionError" in executor.error_history[0]["error"]
    for part in ("units?", "limit: int", "- 'units': int64", "ZeroDivisionError"):
        assert part in model.asked[0]
    table = await executor.execute_analysis(
        "x",
        "def analyze(df):\n    return {'markdown': '', 'data': df[['price']].to_dict('records')}",
    )
    assert (table.shape, executor.error_history) == ((8, 1), [])
    assert (await executor.execute_analysis("x", "result = 42")).to_dict() == {"result": {0: 42}}


async def test_executor_gives_up(session: kernelbroker.Session) -> None:
    """After three corrections the table is empty, with all four errors; without a model there is one."""
    executor = CodeExecutor(session, llm=Model("a0", "b0", "c0"))
    assert (await executor.execute_analysis("x", "z0")).empty
    assert [each["code"].strip() for each in executor.error_history] == ["z0", "a0", "b0", "c0"]
    executor = CodeExecutor(session)
    assert (await executor.execute_analysis("x", "z0")).empty
    assert len(executor.error_history) == 1


async def test_executor_operation(session: kernelbroker.Session, tools: AnalysisTools) -> None:
    """An operation succeeds if the output was written by this code."""
    model = Model("open(output_path, 'w').write('x')")
    executor = CodeExecutor(session, llm=model)
    assert await executor.execute_operation("write x", "pass", "made/x.txt")
    assert "has not written /data/outputs/made/x.txt" in executor.error_history[0]["error"]
    assert await session.files.read("outputs/made/x.txt") == b"x"
    operation = "def operation(d, i, o):\n    d[0].to_csv(o)"
    assert await executor.execute_operation("x", operation, "o.csv", ["uploads/sales.csv"])
    assert not await CodeExecutor(session).execute_operation("write x", "pass", "made/x.txt")


async def test_executor_on_other_clients(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """A broker gets a session of its own; a `SandboxClient` has one, whose variables stay."""
    executor = CodeExecutor(client)
    assert (await executor.execute_analysis("x", "6 * 7")).to_dict() == {"result": {0: 42}}
    async with kernelbroker.SandboxClient(broker.url, broker.token) as sandbox:
        await sandbox.execute("n = 6")
        model = Model("n * 7")
        table = await CodeExecutor(sandbox, llm=model).execute_analysis("x", "m * 7")
        assert table.to_dict() == {"result": {0: 42}}
        assert "n: int" in model.asked[0]


def _blocks() -> dict[str, str]:
    page = (ROOT / "docs" / "analysis.md").read_text()
    return dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))


def test_the_pages_program(tmp_path: Path, broker: BrokerProcess) -> None:
    """The first program of docs/analysis.md runs, and prints its analyses."""
    file = tmp_path / "descriptive.py"
    file.write_text(_blocks()["descriptive"])
    environment = {"KERNELBROKER_URL": broker.url, "KERNELBROKER_TOKEN": broker.token}
    printed = subprocess.run(
        [sys.executable, str(file)], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert printed.splitlines() == [
        "## Descriptive statistics",
        "2 rows × 2 columns [{'region': 'North', 'sales': 8}, {'region': 'South', 'sales': 4}]",
    ]


async def test_the_pages_functions(session: kernelbroker.Session) -> None:
    """The second program asks a model, and corrects code."""
    names: dict[str, Any] = {}
    exec(_blocks()["asking"], names)
    await session.files.write("uploads/sales.csv", "region,sales\nNorth,3\n")
    best = (
        "def analyze(df):\n    return {'markdown': 'North', 'data': [], 'summary': 'North leads.'}"
    )
    said = await names["ask"](session, Model(best), "m")
    assert said == "North\nNorth leads."
    right = "def analyze(df):\n    return df[['sales']]"
    table, history = await names["corrected"](session, Model(right), "m", "def analyze(df): 1 / 0")
    assert table["sales"].tolist() == [3]
    assert len(history) == 1
