"""Pictures, tables and markup of a cell, each once and in order."""

from __future__ import annotations

import base64
import re

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import BrokerProcess, opened, whole_system

pytestmark = whole_system

PNG = b"\x89PNG\r\n\x1a\n"
PLOT = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\n_ = ax.plot([1, 3, 2])\n"


@pytest.mark.parametrize(
    ("ending", "count"),
    [
        ("plt.show()", 1),
        ("fig", 1),
        ("plt.show()\nfig", 1),
        ("", 1),
        ("fig; None", 1),
        ("display(fig)\nplt.close(fig)", 1),
        ("plt.show()\nplt.figure(); plt.plot([1])\nplt.show()", 2),
        ("for _ in range(2):\n    plt.figure(); plt.plot([1])\n", 3),
        ("plt.close('all')", 0),
    ],
)
async def test_a_figure_arrives_once(
    session: kernelbroker.Session, ending: str, count: int
) -> None:
    """A figure arrives once: when it is shown, as the last expression, or when its cell ends."""
    result = await session.run(PLOT + ending)
    assert result.success, result.error
    # After plt.show() a figure as the last expression is a picture of its own in Jupyter, too.
    expected = count + (ending == "plt.show()\nfig")
    assert len(result.images) == expected
    for image in result.images:
        assert image.mime == "image/png"
        assert image.content.startswith(PNG)
        assert image.width is not None
        assert image.width > 100
    assert (await session.run("1")).images == []


@pytest.mark.parametrize("before", ["", PLOT + "plt.show()\n", "import matplotlib.pyplot as plt\n"])
async def test_figures_of_agg_are_shown(client: kernelbroker.Broker, before: str) -> None:
    """`plt.show()` shows each open figure once, though the backend is for machines without a display."""
    async with client.session() as session:
        await session.run(before)
        result = await session.run(f"import matplotlib\nmatplotlib.use('Agg')\n{PLOT}plt.show()")
        assert (result.text, len(result.images)) == ("<Figure size 640x480 with 1 Axes>", 1)
        assert result.images[0].content.startswith(PNG)
        silent = await session.run(
            f"{PLOT}plt.savefig('a.png')\nplt.close()\nmatplotlib.get_backend().lower()"
        )
        assert (silent.text, silent.images) == ("'agg'", [])
        shown = await session.run(
            "for n in range(2): plt.figure(); plt.plot([n])\nplt.show()\nplt.get_fignums()"
        )
        assert len(shown.images) == 2
        assert shown.text.endswith("[]")


async def test_pictures_of_pillow_are_shown(client: kernelbroker.Broker) -> None:
    """`Image.show()` shows the picture, whatever programs the machine has to show it with."""
    async with client.session() as session:
        result = await session.run("from PIL import Image\nImage.new('RGB', (9, 7), 'red').show()")
        assert [(each.width, each.height) for each in result.images] == [(9, 7)]
        assert result.images[0].content.startswith(PNG)


async def test_figure_in_tags(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """In the text form a picture is an <img> tag with base64 PNG."""
    path = f"/api/v1/sessions/{session.session_id}/exec"
    async with opened(broker, "POST", path, {"code": PLOT + "plt.show()"}) as response:
        body = (await response.rest()).decode()
    (picture,) = re.findall("<img>([^<]+)</img>", body)
    assert base64.b64decode(picture).startswith(PNG)


@pytest.mark.parametrize(
    "style",
    [
        "",
        "import seaborn; seaborn.set_theme()",
        "plt.rcParams['font.sans-serif'] = ['SimHei']; plt.rcParams['axes.unicode_minus'] = False",
        "plt.rcParams['font.family'] = 'Microsoft YaHei'",
        "plt.style.use('ggplot')",
    ],
)
async def test_labels_in_any_script(session: kernelbroker.Session, style: str) -> None:
    """Chinese, Japanese, Greek and Cyrillic labels are drawn, without a warning, under any style."""
    code = (
        f"import matplotlib.pyplot as plt\nplt.rcdefaults()\n{style}\n"
        "fig, ax = plt.subplots()\n"
        "ax.set_title('销售额（万元） 売上高'); ax.set_xlabel('日期 Ωμέγα Ж')\n"
        "ax.bar(['一月', '二月'], [-1, 2])\n"
        "plt.show()"
    )
    result = await session.run(code)
    assert result.success, result.error
    assert (len(result.images), result.stderr) == (1, "")


async def test_a_picture_keeps_its_other_forms(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """A value with a picture keeps its HTML, LaTeX and text in events, results and chunks."""
    code = """
import base64
class Picture:
    def _repr_png_(self): return base64.b64decode("iVBORw0KGgo="), {"width": 2}
    def _repr_html_(self): return "<p>picture</p>", {"isolated": True}
    def _repr_latex_(self): return "$picture$"
    def __repr__(self): return "Picture()"
Picture()
"""
    others = {"text/html": "<p>picture</p>", "text/latex": "$picture$", "text/plain": "Picture()"}
    metadata = {"image/png": {"width": 2}, "text/html": {"isolated": True}}
    (event,) = [e async for e in session.stream(code) if isinstance(e, events.Image)]
    assert (event.data, event.metadata, event.is_result) == (others, metadata, True)
    result = await session.run(code)
    (output,) = result.outputs
    assert output["output_type"] == "execute_result"
    assert output["data"] == {"image/png": "iVBORw0KGgo=", **others}
    assert output["metadata"] == metadata
    assert result.images[0].bundle == others
    assert result.text == "Picture()"
    async with kernelbroker.SandboxClient(broker.url, token=broker.token) as client:
        (chunk,) = [c async for c in client.stream_execute(code) if c.type == "image"]
    assert isinstance(chunk.event, events.Image)
    assert (chunk.event.data, chunk.event.metadata) == (others, metadata)


@pytest.mark.parametrize(
    ("text", "shown", "lost"),
    [
        ("'é' * 3 * 1024**2", 6 * 1024**2, 0),
        ("'1, 2, ' * 1024**2", 6 * 1024**2, 0),
        ("'é' * 6 * 1024**2", 10 * 1024**2, 2 * 1024**2),
        ("'x' * 20 * 1024**2", 10 * 1024**2, 10 * 1024**2),
    ],
)
async def test_a_large_text_counts_its_bytes(
    session: kernelbroker.Session, text: str, shown: int, lost: int
) -> None:
    """The text of a value counts as UTF-8, and is cut at the limit of 10 MiB."""
    code = f"class Text:\n    def __repr__(self): return {text}\nText()"
    result = await session.run(code)
    (display,) = result.displays
    assert shown - 1000 < len(display.text.encode()) <= shown
    if lost:
        assert result.truncated is not None
        assert lost <= result.truncated.output_bytes < lost + 1000
        assert result.truncated.rich_outputs == 0
    else:
        assert result.truncated is None


async def test_errors_that_a_cell_survives(session: kernelbroker.Session) -> None:
    """An error that a cell shows is an output in its place, and the cell goes on."""
    code = (
        "print('before')\ntry:\n    1 / 0\n"
        "except ZeroDivisionError:\n    get_ipython().showtraceback()\nprint('after')"
    )
    result = await session.run(code)
    assert [output["output_type"] for output in result.outputs] == ["stream", "error", "stream"]
    assert (result.outputs[1]["ename"], result.outputs[1]["evalue"]) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert "ZeroDivisionError" in result.stderr


async def test_svg_is_an_image(session: kernelbroker.Session) -> None:
    """SVG is an image whose content is text."""
    result = await session.run(
        "from IPython.display import SVG\n"
        'SVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>\')'
    )
    (image,) = result.images
    assert image.mime == "image/svg+xml"
    assert isinstance(image.data, str)
    assert image.data.startswith("<svg")


async def test_markup_is_a_display(session: kernelbroker.Session) -> None:
    """HTML, LaTeX, Markdown and JSON are displays, in order, each with its MIME type."""
    result = await session.run(
        "from IPython.display import HTML, JSON, Latex, Markdown\n"
        "display(HTML('<b>bold</b>'), Latex('$x^2$'), Markdown('*it*'))\n"
        "JSON({'a': [1, None]})"
    )
    assert [
        display.data[mime]
        for display, mime in zip(
            result.displays,
            ["text/html", "text/latex", "text/markdown", "application/json"],
            strict=True,
        )
    ] == ["<b>bold</b>", "$x^2$", "*it*", {"a": [1, None]}]


async def test_a_plotly_bundle_is_one_display(session: kernelbroker.Session) -> None:
    """A bundle such as Plotly's is one display, even if it contains a picture."""
    result = await session.run(
        "figure = {'data': [{'y': [1, 2], 'type': 'scatter'}], 'layout': {'title': '</script>'}}\n"
        "display({'application/vnd.plotly.v1+json': figure, 'text/html': '<div></div>',\n"
        "         'image/png': 'iVBORw0KGgo='}, raw=True)"
    )
    assert result.images == []
    (display,) = result.displays
    assert display.data["application/vnd.plotly.v1+json"]["data"][0]["y"] == [1, 2]
    assert set(display.data) == {"application/vnd.plotly.v1+json", "text/html", "image/png"}


async def test_the_last_expression_is_shown(session: kernelbroker.Session) -> None:
    """A table as the last expression is shown as HTML and as text; None is not shown."""
    result = await session.run("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    (display,) = result.displays
    assert "<table" in display.data["text/html"]
    assert display.text.split()[0] == "a"
    assert (await session.run("None")).displays == []
    assert (await session.run("6 * 7")).displays[0].text == "42"


async def test_clear_output_is_an_event(session: kernelbroker.Session) -> None:
    """`clear_output` is an event; the collected output has only the later content."""
    code = (
        "from IPython.display import clear_output\n"
        "for i in range(3):\n    clear_output(wait=True); print('step', i, flush=True)"
    )
    seen = [event async for event in session.stream(code)]
    assert sum(isinstance(event, events.Clear) and event.wait for event in seen) == 3
    assert [e.content for e in seen if isinstance(e, events.Stdout)] == [
        f"step {i}\n" for i in range(3)
    ]
    assert (await session.run(code)).stdout == "step 2\n"


async def test_a_display_is_updated(session: kernelbroker.Session) -> None:
    """A display with an id is updated in place, also by a later cell."""
    result = await session.run(
        "handle = display('one', display_id=True)\nprint('between')\nhandle.update('two')"
    )
    (display,) = result.displays
    assert display.data["text/plain"] == "'two'"
    assert display.display_id
    (event,) = [
        e async for e in session.stream("handle.update('three')") if isinstance(e, events.Display)
    ]
    assert event.update
    assert event.display_id == display.display_id


async def test_help_is_shown_as_text(session: kernelbroker.Session) -> None:
    """`name?` shows the help that a terminal would show in a pager."""
    result = await session.run("len?")
    assert result.success
    assert "Return the number of items in a container." in result.displays[0].text


async def test_outputs_keep_their_order(session: kernelbroker.Session) -> None:
    """Text, displays and pictures arrive in the order of the cell."""
    code = PLOT + (
        "import sys\n"
        "print('first'); display('second'); print('third', file=sys.stderr); plt.show()\n"
        "print('fifth')\n'sixth'"
    )
    kinds = [type(event) async for event in session.stream(code)]
    assert kinds == [
        events.Started,
        events.Stdout,
        events.Display,
        events.Stderr,
        events.Image,
        events.Stdout,
        events.Display,
        events.Result,
    ]


async def test_input_is_answered_by_the_client(session: kernelbroker.Session) -> None:
    """`input()` is answered by the client; without a client that can answer it is an error."""
    code = "import getpass\nname = input('name? ')\nprint(name + '!' + getpass.getpass('secret? '))"
    prompts = []

    async def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "anna" if prompt == "name? " else "s3"

    result = await session.run(code, on_input=answer)
    assert (result.stdout, prompts) == ("anna!s3\n", ["name? ", "secret? "])
    result = await session.run(code)
    assert result.error is not None
    assert result.error.startswith("StdinNotImplementedError")


async def test_a_figure_comes_with_its_data(session: kernelbroker.Session) -> None:
    """However it is shown, a figure has a chart, and its notebook output too; an image has none."""
    plot = "import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2], [3, 4], label='v')\n"
    for end in ("plt.show()", "fig", "display(fig)\nplt.close(fig)"):
        result = await session.run(f"{plot}{end}")
        (image,) = result.images
        assert image.chart is not None, end
        assert image.chart["type"] == "line"
        assert image.chart["elements"] == [{"label": "v", "points": [[1, 3], [2, 4]]}]
        (shown,) = [each for each in result.outputs if "image/png" in each.get("data", {})]
        assert shown["data"]["application/vnd.kernelbroker.chart+json"] == image.chart
    (image,) = (await session.run("plt.imshow([[1, 2]]); plt.show()")).images
    assert image.chart is None
    secret = await session.run(
        "import os\nax.set_title(os.environ['KEY'])\nfig", secrets={"KEY": "a hidden title"}
    )
    assert secret.images[0].chart is not None
    assert "hidden" not in str(secret.images[0].chart)
