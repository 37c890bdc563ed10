"""Pictures, tables and markup that a cell shows, each once, in the order in which it was shown."""

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
async def test_figures(session: kernelbroker.Session, ending: str, count: int) -> None:
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


async def test_svg(session: kernelbroker.Session) -> None:
    """SVG is an image whose content is text."""
    result = await session.run(
        "from IPython.display import SVG\n"
        'SVG(\'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>\')'
    )
    (image,) = result.images
    assert image.mime == "image/svg+xml"
    assert isinstance(image.data, str)
    assert image.data.startswith("<svg")


async def test_markup(session: kernelbroker.Session) -> None:
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


async def test_plotly_bundle(session: kernelbroker.Session) -> None:
    """A bundle such as Plotly's stays a whole display, though there is a picture in it."""
    result = await session.run(
        "figure = {'data': [{'y': [1, 2], 'type': 'scatter'}], 'layout': {'title': '</script>'}}\n"
        "display({'application/vnd.plotly.v1+json': figure, 'text/html': '<div></div>',\n"
        "         'image/png': 'iVBORw0KGgo='}, raw=True)"
    )
    assert result.images == []
    (display,) = result.displays
    assert display.data["application/vnd.plotly.v1+json"]["data"][0]["y"] == [1, 2]
    assert set(display.data) == {"application/vnd.plotly.v1+json", "text/html", "image/png"}


async def test_last_expression(session: kernelbroker.Session) -> None:
    """A table as the last expression is shown as HTML and as text; None is not shown."""
    result = await session.run("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    (display,) = result.displays
    assert "<table" in display.data["text/html"]
    assert display.text.split()[0] == "a"
    assert (await session.run("None")).displays == []
    assert (await session.run("6 * 7")).displays[0].text == "42"


async def test_clear_output(session: kernelbroker.Session) -> None:
    """`clear_output` is an event of its own; the collected output holds what came after it."""
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


async def test_updated_display(session: kernelbroker.Session) -> None:
    """A display with an id is updated in place, from a later cell as well."""
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


async def test_help(session: kernelbroker.Session) -> None:
    """`name?` shows the help that a person at a terminal would page through."""
    result = await session.run("len?")
    assert result.success
    assert "Return the number of items in a container." in result.displays[0].text


async def test_order(session: kernelbroker.Session) -> None:
    """Text, displays and pictures come in the order in which the cell produced them."""
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


async def test_input(session: kernelbroker.Session) -> None:
    """`input()` is answered by the client; where nobody could answer, it is an error at once."""
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
