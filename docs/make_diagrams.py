"""Draws the diagrams in docs/pictures: boxes and arrows as SVG, which browsers show without any script.

    make docs

A test compares the states in them with those of the code.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

DIRECTORY = Path(__file__).with_name("pictures")
INK, FAINT, PAPER = "#1f2937", "#6b7280", "#ffffff"
COLOURS = {
    "client": ("#eef2ff", "#6366f1"),
    "broker": ("#ecfdf5", "#059669"),
    "sandbox": ("#fff7ed", "#ea580c"),
    "store": ("#f3f4f6", "#6b7280"),
    "group": ("#fafafa", "#9ca3af"),
}
_LINE = 17
_CHARACTER = 6.5
"""The width of a character of a label, about."""


class Drawing:
    """A picture with a white ground, so that it can be read on dark pages as well."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._parts: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, text: str, colour: str, *, top: bool = False
    ) -> None:
        """Draw a box. The first line of its text is its name.

        Args:
            top: the text is at the top, since other boxes are inside.
        """
        fill, stroke = COLOURS[colour]
        dashed = ' stroke-dasharray="5 4"' if colour == "group" else ""
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.5"{dashed}/>'
        )
        lines = text.split("\n")
        first = y + 20 if top else y + height / 2 - (len(lines) - 1) * _LINE / 2 + 5
        for number, line in enumerate(lines):
            weight, ink = ("600", INK) if number == 0 else ("400", FAINT)
            self._text(x + width / 2, first + number * _LINE, line, weight, ink)

    def arrow(
        self,
        points: list[tuple[int, int]],
        label: str = "",
        *,
        at: tuple[int, int] | None = None,
        both: bool = False,
        dashed: bool = False,
    ) -> None:
        """Draw a line from the first point to the last, with an arrowhead at its end.

        Args:
            at: the middle of the label; that of the line if omitted.
            both: an arrowhead at the start as well.
        """
        path = " ".join(f"{x},{y}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        dashes = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.4"{dashes} '
            f'marker-end="url(#head)"{start}/>'
        )
        if label:
            (left, upper), (right, lower) = points[0], points[-1]
            self.label(*(at or ((left + right) // 2, (upper + lower) // 2 - 8)), label)

    def label(self, x: int, y: int, text: str) -> None:
        """Draw a text on a white ground, so that it can lie on a line."""
        for number, line in enumerate(text.split("\n")):
            width = len(line) * _CHARACTER + 6
            top = y + number * _LINE
            self._parts.append(
                f'<rect x="{x - width / 2}" y="{top - 12}" width="{width}" height="16" fill="{PAPER}"/>'
            )
            self._text(x, top, line, "400", INK)

    def lifeline(self, x: int, top: int, bottom: int, name: str, colour: str) -> None:
        """Draw a participant of a sequence, with the line of its time."""
        self._parts.append(
            f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{FAINT}" stroke-dasharray="3 4"/>'
        )
        self.box(x - 75, top - 40, 150, 40, name, colour)

    def svg(self) -> str:
        """Return the picture."""
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L10,5 L0,10 z" fill="{INK}"/></marker>'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}" '
                f'role="img" font-family="system-ui, sans-serif" font-size="13">',
                f"<title>{escape(self._title)}</title>",
                f"<defs>{head}</defs>",
                f'<rect width="{self._width}" height="{self._height}" rx="10" fill="{PAPER}"/>',
                *self._parts,
                "</svg>\n",
            ]
        )

    def _text(self, x: float, y: float, text: str, weight: str, ink: str) -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="middle" font-weight="{weight}" fill="{ink}">'
            f"{escape(text)}</text>"
        )


def parts() -> Drawing:
    """Clients, the broker, and the sandboxes."""
    drawing = Drawing(900, 430, "Clients speak to the broker, which leases sandboxes to sessions")
    clients = [
        "SDK, command line",
        "MCP clients",
        "E2B clients",
        "Jupyter clients",
        "REST, gRPC",
        "console",
    ]
    for number, name in enumerate(clients):
        drawing.box(20, 40 + number * 50, 160, 38, name, "client")
        drawing.arrow([(180, 59 + number * 50), (250, 59 + number * 50)], both=True)
    drawing.box(250, 20, 380, 330, "broker", "broker", top=True)
    drawing.box(265, 55, 110, 280, "surfaces\none for each\nprotocol", "client")
    drawing.box(400, 55, 215, 60, "policy and tenants\nrisk, tokens, limits", "broker")
    drawing.box(400, 135, 215, 60, "sessions\nordered executions, events", "broker")
    drawing.box(400, 215, 215, 60, "pool\nwarm sandboxes", "broker")
    drawing.box(400, 295, 215, 40, "egress proxy", "broker")
    drawing.arrow([(375, 85), (400, 85)])
    drawing.arrow([(507, 115), (507, 135)])
    drawing.arrow([(507, 195), (507, 215)], both=True)
    drawing.box(690, 20, 190, 110, "sandbox of a session", "sandbox", top=True)
    drawing.box(705, 50, 75, 65, "gateway\nof Jupyter", "sandbox")
    drawing.box(795, 50, 70, 65, "kernel\n/data", "sandbox")
    drawing.arrow([(780, 82), (795, 82)], both=True)
    drawing.box(690, 150, 190, 50, "warm sandbox", "sandbox")
    drawing.box(690, 220, 190, 50, "sandbox of a session", "sandbox")
    drawing.arrow([(615, 155), (655, 155), (655, 82), (705, 82)], both=True)
    drawing.arrow([(615, 245), (665, 245), (665, 175), (690, 175)], both=True)
    drawing.arrow([(840, 270), (840, 315), (615, 315)], "allow list", at=(720, 310), dashed=True)
    drawing.box(400, 370, 215, 45, "state_dir\nexecutions, events, results", "store")
    drawing.box(690, 370, 190, 45, "data_dir\nworkspaces, checkpoints", "store")
    drawing.arrow([(400, 165), (388, 165), (388, 392), (400, 392)])
    drawing.arrow([(785, 370), (785, 270)], "/data", at=(785, 350), both=True)
    return drawing


def cell() -> Drawing:
    """One cell, from the request to its result."""
    drawing = Drawing(900, 560, "A cell from the request to its result")
    client, broker, store, kernel = 100, 340, 580, 800
    for x, name, colour in (
        (client, "client", "client"),
        (broker, "broker", "broker"),
        (store, "event store", "store"),
        (kernel, "kernel", "sandbox"),
    ):
        drawing.lifeline(x, 60, 545, name, colour)
    steps: list[tuple[int, int, str]] = [
        (client, broker, "code"),
        (broker, broker, "assess its risk: allow, warn, confirm or refuse"),
        (broker, store, "accepted: it will run once"),
        (broker, broker, "wait for its turn; lease a warm sandbox"),
        (broker, kernel, "run the cell"),
        (kernel, broker, "a line that the cell prints"),
        (broker, store, "event 2: stdout"),
        (broker, client, "event 2: stdout"),
        (kernel, broker, "a plot"),
        (broker, store, "event 3: image"),
        (client, broker, "connection lost; again, after event 2"),
        (broker, client, "event 3: image"),
        (kernel, broker, "the cell ends"),
        (broker, client, "event 4: result, the last, exactly once"),
    ]
    for number, (start, end, label) in enumerate(steps):
        y = 92 + number * 33
        if start == end:
            drawing.label(start, y, label)
        else:
            drawing.arrow([(start, y), (end, y)], label, dashed="lost" in label)
    return drawing


def sandbox() -> Drawing:
    """The states of a sandbox in its pool."""
    drawing = Drawing(900, 230, "The states of a sandbox")
    states = {"starting": 50, "idle": 280, "leased": 510, "removing": 740}
    for name, x in states.items():
        drawing.box(x, 90, 120, 50, name, "sandbox")
    drawing.box(280, 10, 120, 40, "checking", "sandbox")
    drawing.arrow([(170, 115), (280, 115)], "launched")
    drawing.arrow([(400, 115), (510, 115)], "leased once")
    drawing.arrow([(630, 115), (740, 115)], "released")
    drawing.arrow([(340, 90), (340, 50)], both=True)
    drawing.arrow([(400, 30), (800, 30), (800, 90)], "unhealthy", at=(590, 24))
    drawing.arrow(
        [(340, 140), (340, 190), (800, 190), (800, 140)], "died, or no longer needed", at=(570, 184)
    )
    drawing.label(110, 165, "processes start, modules are")
    drawing.label(110, 182, "imported, a cell is tried")
    drawing.label(780, 212, "processes and files are removed")
    return drawing


def session() -> Drawing:
    """What a session goes through, as its clients see it."""
    drawing = Drawing(900, 310, "The states of a session")
    drawing.box(20, 120, 110, 50, "opened", "client")
    drawing.box(270, 120, 140, 50, "idle\na sandbox waits", "broker")
    drawing.box(560, 120, 140, 50, "busy\na cell runs", "broker")
    drawing.box(270, 240, 140, 50, "asleep\nno sandbox", "store")
    drawing.box(560, 240, 140, 50, "closed\nresults are kept", "store")
    drawing.arrow([(130, 145), (270, 145)], "leases a sandbox")
    drawing.arrow([(410, 135), (560, 135)], "a cell")
    drawing.arrow([(560, 157), (410, 157)], "its result", at=(485, 174))
    drawing.arrow([(300, 170), (300, 240)], "not used", at=(262, 209))
    drawing.arrow([(380, 240), (380, 170)], "next use", at=(415, 209))
    drawing.arrow([(410, 265), (560, 265)], "unused for long", at=(485, 257))
    drawing.arrow([(630, 170), (630, 240)], "closed, or too old", at=(697, 209))
    drawing.arrow([(630, 120), (630, 65), (340, 65), (340, 120)])
    drawing.label(485, 38, "kernel died, out of memory, timeout ignored:")
    drawing.label(485, 57, "a fresh sandbox with the same files")
    drawing.box(755, 120, 130, 50, "next broker\ngoes on with it", "client")
    drawing.arrow([(700, 145), (755, 145)], both=True, dashed=True)
    return drawing


PICTURES = {"parts": parts, "cell": cell, "sandbox": sandbox, "session": session}


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (DIRECTORY / f"{name}.svg").write_text(draw().svg())
    print(f"wrote {DIRECTORY}")
