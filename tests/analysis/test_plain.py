"""What the analysis package does without a sandbox: paths, languages, models, prompts, answers."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import kernelbroker
import pandas
import pytest
from kernelbroker import assess
from kernelbroker.analysis import PathMapper, cells, chat_model, harness, language, usual
from kernelbroker.analysis.executor import _result_of
from kernelbroker.analysis.models import ask


def test_paths_of_one_session() -> None:
    """Uploads are the session's, data sets are shared, outputs are below outputs/."""
    mapper = PathMapper("s1")
    assert mapper.map_input_path("uploads/a.csv") == "/data/uploads/a.csv"
    assert mapper.map_input_path("datasets/b.csv") == "/data/shared/datasets/b.csv"
    assert mapper.map_input_path("/mnt/c.csv") == "/mnt/c.csv"
    assert mapper.map_input_path("d.csv") == "d.csv"
    assert mapper.map_output_path("e.csv") == "/data/outputs/e.csv"
    assert mapper.map_output_path("outputs/deep/f.csv") == "/data/outputs/deep/f.csv"
    assert mapper.map_output_path("/data/g.csv") == "/data/g.csv"


def test_paths_of_many_sessions() -> None:
    """A root of many sessions has a directory for each; none leads into another."""
    mapper = PathMapper("s1", shared_root="/mnt/shared", session_root="/data/sessions")
    assert mapper.map_input_path("uploads/a.csv") == "/data/sessions/s1/uploads/a.csv"
    assert mapper.map_input_path("datasets/a.csv") == "/mnt/shared/datasets/a.csv"
    assert mapper.map_output_path("a.csv") == "/data/sessions/s1/outputs/a.csv"
    for path in ("uploads/../../s2/uploads/a.csv", "datasets/../x"):
        with pytest.raises(ValueError, match="leads out"):
            mapper.map_input_path(path)
    for path in ("../x", "", "."):
        with pytest.raises(ValueError, match=r"leads out|names no file"):
            mapper.map_output_path(path)
    for name in ("", "..", "a/b"):
        with pytest.raises(ValueError, match="no session id"):
            PathMapper(name)


def test_language() -> None:
    """Automatic is Chinese if a text has a Chinese character; a choice wins."""
    assert language.chosen("auto", [None, "sales", "销售"]) == "zh"
    assert language.chosen("auto", [None, "sales"]) == "en"
    assert language.chosen("en", ["销售"]) == "en"
    assert language.shape(8, 5, "en") == "8 rows × 5 columns"
    assert language.shape(8, 5, "zh") == "8 行 × 5 列"


def test_bound_names() -> None:
    """Definitions, assignments and imports bind a name; code with a syntax error may."""
    for code in (
        "def analyze(df): ...",
        "analyze = lambda df: df",
        "from m import f as analyze",
        "def (",
    ):
        assert cells.binds(code, "analyze"), code
    for code in ("result = 1", "analyze(df)", ""):
        assert not cells.binds(code, "analyze"), code


def test_result_of_an_expression_keeps_the_lines() -> None:
    """The last expression becomes the result, in its own line, whatever is before it."""
    for code, changed in (
        ("x = 1\nx + 1", "x = 1\nresult = (x + 1)"),
        ("'é'; f(\n 1)", "'é'; result = (f(\n 1))"),
    ):
        assert _result_of(code, "df") == (changed, "result")
    assert _result_of("def analyze(df): ...", "df")[1] == "analyze(df)"
    assert _result_of("def analyze(): ...", "df")[1] == "analyze()"


def test_policies_do_not_object_to_our_cells() -> None:
    """The code that this package sends is safe by the broker's own rules."""
    for code in (cells.source_of("harness.py"), usual.code("distribution", "en")):
        assessment = assess(code)
        assert assessment.level in ("safe", "low"), assessment.findings


def test_values_become_json() -> None:
    """Times, missing values, numbers of numpy and odd labels are what JSON has."""
    frame = pandas.DataFrame(
        [[pandas.Timestamp("2026-01-02"), float("nan"), 1, b"x", pandas.NaT]],
        columns=["t", "n", ("a", "b"), "n", 3],
        index=["row"],
    )
    (record,) = harness._kb_records(frame, 500)
    assert json.loads(json.dumps(record)) == {
        "index": "row",
        "t": "2026-01-02T00:00:00",
        "n": None,
        "a / b": 1,
        "n.4": "b'x'",
        "3": None,
    }
    wide = pandas.DataFrame({"x": ["é" * 100_000] * 50})
    assert 10 < len(harness._kb_records(wide, 500)) < 50


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.csv", "x;y\n1;2\n", [{"x": 1, "y": 2}]),
        ("a.txt", "x\ty\n1\t2\n", [{"x": 1, "y": 2}]),
        ("bom.csv", "\ufeffx,y\n1,2\n", [{"x": 1, "y": 2}]),
        ("a.jsonl", '{"x": 1}\n{"x": 2}\n', [{"x": 1}, {"x": 2}]),
        ("a.json", '{"n": 1, "rows": [{"x": 1}]}', [{"x": 1}]),
        ("b.json", '{"x": 1}', [{"x": 1}]),
        ("c.json", '{"x": [1, 2]}', [{"x": 1}, {"x": 2}]),
    ],
)
def test_texts_are_read(tmp_path: Path, name: str, content: str, rows: list[Any]) -> None:
    """Other separators, marks of Unicode and forms of JSON are read."""
    (tmp_path / name).write_text(content)
    ((_, table),) = harness._kb_read(str(tmp_path / name))
    assert table.to_dict("records") == rows


ENCODED = {
    "cp1252": "stadt;betrag\nM\xfcnchen;5\nK\xf6ln;6\n",
    "gb18030": "姓名,分数\n张三,90\n",
    "gbk": "部门,姓名\n市场部,李小明\n研发部,王芳\n",
    "big5": "城市,金額\n臺北,10\n高雄,20\n",
    "cp932": "都市,金額\n東京,10\nカタカナ,30\n",
    "euc_jp": "都市,金額\n東京,10\nひらがな,40\n",
    "euc_kr": "도시,금액\n서울,10\n부산,20\n",
    "cp1251": "город,сумма\nМосква,10\nКазань,20\n",
    "cp1250": "miasto,kwota\nŁódź,10\nKraków,20\n",
    "utf-16-le": "city,amount\nOslo,5\n",
    "utf-16-be": "city,amount\nOslo,5\n",
    "utf-16": "城市,金额\n北京,10\n",
    "utf-8-sig": "city,amount\nZürich,5\n",
}
FRENCH = "ville,montant\nOrl\xe9ans,5\nBesan\xe7on,7\n\xc0 c\xf4t\xe9,3\n"


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_text_in_any_encoding_is_read(tmp_path: Path, encoding: str) -> None:
    """The text is right, and the encoding that was taken is told."""
    (tmp_path / "a.csv").write_bytes(ENCODED[encoding].encode(encoding))
    text, name = harness._kb_text(tmp_path / "a.csv")
    assert text == ENCODED[encoding]
    ((_, table),) = harness._kb_read(str(tmp_path / "a.csv"))
    assert table.attrs["read"]["encoding"] == name
    assert table.attrs["read"]["header_line"] == 1 and len(table.columns) == 2


def test_western_text_is_not_taken_for_another(tmp_path: Path) -> None:
    """Texts of Western Europe, also short ones, are neither Chinese nor Eastern European."""
    for text in (FRENCH, "a\xf1o,ni\xf1o\n2024,Mu\xf1oz\n", "x,y\n5 \u20ac,\xfcber\n"):
        (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
        assert harness._kb_text(tmp_path / "a.csv") == (text, "cp1252")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """The message shows what was seen, and says what to do."""
    (tmp_path / "a.csv").write_bytes(b"a,b\n\x81\xff\xfe\x80\x90,\x01\x02\x8f\xfd\n")
    with pytest.raises(harness._KbError, match=r"cannot be told.*x81.*Save it as UTF-8"):
        harness._kb_text(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("content", "rows", "read"),
    [
        ("x;y\n1;2,5\n3;4,25\n", [{"x": 1, "y": 2.5}, {"x": 3, "y": 4.25}], {"decimal": ","}),
        ("n|v\na,b|1\nc|2\n", [{"n": "a,b", "v": 1}, {"n": "c", "v": 2}], {"separator": "|"}),
        ("a;b\n1.234,50;x\n12,00;y\n", [{"a": 1234.5, "b": "x"}, {"a": 12.0, "b": "y"}], {}),
        (
            "Report of May\n\nx,y\n1,2\n3,4\n",
            [{"x": 1, "y": 2}, {"x": 3, "y": 4}],
            {"header_line": 3},
        ),
        ("\nx,y\n1,2\n", [{"x": 1, "y": 2}], {"header_line": 2}),
        ("one\n1\n2\n", [{"one": 1}, {"one": 2}], {"separator": ","}),
        ('t,n\n"a;b;c",1\n"d;e;f",2\n', [{"t": "a;b;c", "n": 1}, {"t": "d;e;f", "n": 2}], {}),
        ('n;v\nx;"1,234"\ny;"5,678"\n', [{"n": "x", "v": "1,234"}, {"n": "y", "v": "5,678"}], {}),
    ],
)
def test_forms_of_separated_values(
    tmp_path: Path, content: str, rows: list[Any], read: dict[str, Any]
) -> None:
    """Separators, lines above the header and decimal commas are found, and told."""
    (tmp_path / "a.csv").write_text(content)
    ((_, table),) = harness._kb_read(str(tmp_path / "a.csv"))
    assert table.to_dict("records") == rows
    assert read.items() <= table.attrs["read"].items()


def test_a_workbook_by_its_name_alone(tmp_path: Path) -> None:
    """What is no workbook is read as what it is, or refused."""
    (tmp_path / "text.xls").write_text("x;y\n1;2\n")
    ((_, found),) = harness._kb_read(str(tmp_path / "text.xls"))
    assert found.to_dict("records") == [{"x": 1, "y": 2}]
    (tmp_path / "page.xls").write_text("<html><table><tr><td>1</td></tr></table></html>")
    with pytest.raises(harness._KbError, match="is HTML, whatever its name says"):
        harness._kb_read(str(tmp_path / "page.xls"))


async def test_models_are_functions_or_coroutine_functions() -> None:
    """The code of the last block is taken, else the whole answer."""

    async def slow(prompt: str) -> str:
        return f"No.\n```\nx\n```\nYes:\n```python\n{prompt}\n```\n"

    assert await ask(slow, "1 + 1") == "1 + 1\n"
    assert await ask(lambda prompt: prompt, "2") == "2\n"
    with pytest.raises(TypeError, match="a model is"):
        chat_model(3)


@pytest.fixture
def vendor() -> Iterator[tuple[str, list[Any]]]:
    """The HTTP APIs of both vendors: their address, and the requests."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            text = "```python\n6 * 7\n```"
            answer: dict[str, Any] = {"id": "1", "model": "m"}
            if "messages" in self.path:
                content = [{"type": "text", "text": text}]
                usage = {"input_tokens": 1, "output_tokens": 1}
                answer |= {"type": "message", "role": "assistant", "content": content}
                answer |= {"stop_reason": "end_turn", "stop_sequence": None, "usage": usage}
            else:
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "finish_reason": "stop", "message": message}
                answer |= {"object": "chat.completion", "created": 1, "choices": [choice]}
            data = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()
    server.server_close()


async def test_clients_of_anthropic(vendor: tuple[str, list[Any]]) -> None:
    """Both clients of anthropic are models; the name is the caller's or the default."""
    import anthropic

    url, asked = vendor
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        assert await ask(client, "hello") == "6 * 7\n"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as later:
        assert await ask(chat_model(later, "mine"), "hello") == "6 * 7\n"
    assert [body["messages"] for _, body in asked] == [[{"role": "user", "content": "hello"}]] * 2
    assert asked[1][1]["model"] == "mine"


async def test_clients_of_openai(vendor: tuple[str, list[Any]]) -> None:
    """Both clients of openai are models."""
    import openai

    url, asked = vendor
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
        assert await ask(chat_model(client, "m1"), "hello") == "6 * 7\n"
    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as later:
        assert await ask(chat_model(later, "m2"), "hello") == "6 * 7\n"
    assert [body["model"] for _, body in asked] == ["m1", "m2"]


def test_import_is_light() -> None:
    """`import kernelbroker` does not import the analyses, and those import no pandas."""
    import subprocess

    code = (
        "import sys, kernelbroker\nassert 'kernelbroker.analysis' not in sys.modules\n"
        "import kernelbroker.analysis\nassert not {'pandas', 'anthropic', 'openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert importlib.util.find_spec("kernelbroker.analysis") is not None
    assert "analysis" not in kernelbroker.__all__
