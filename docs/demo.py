"""The demo: a data file analysed in one session, cell by cell, as `make demo` shows it.

Each cell is shown before its output, and the output appears while the cell runs. One cell fails
because of a spelling mistake, and the next one continues with the state of the session. The picture
is saved as `demo-output/wine.png`. If no broker runs, the demo starts one.

The data are 178 Italian wines of three cultivars (UCI, 1991), in the file that scikit-learn ships.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import kernelbroker
from kernelbroker.terminal import aligned, harmless

OUTPUT = Path("demo-output")

LOAD = """
from importlib.util import find_spec
from pathlib import Path
import pandas as pd

file = Path(find_spec("sklearn").origin).parent / "datasets/data/wine_data.csv"
names = (
    "alcohol malic_acid ash alcalinity magnesium phenols flavanoids nonflavanoids "
    "proanthocyanins color hue od280 proline cultivar"
).split()
wine = pd.read_csv(file, skiprows=1, names=names)
print(f"{len(wine)} wines, {wine.shape[1]} columns, from {file.name}")
"""

DESCRIBE = """
facts = wine.drop(columns="cultivar").describe().T[["mean", "std", "min", "max"]].round(2)
"""

GROUP = """
import time

for cultivar, group in wine.groupby("cultivar"):
    print(f"cultivar {cultivar}: {len(group)} wines ...", end=" ", flush=True)
    time.sleep(0.4)   # as if it were work: the line is seen in two parts
    print(f"{group.alcohol.mean():.1f} % alcohol, proline {group.proline.median():.0f} mg/l")
"""

MISTAKE = """
intensity = wine.groupby("cultivar")["colour"].agg(["mean", "std"])
"""

CORRECTED = """
intensity = wine.groupby("cultivar")["color"].agg(["mean", "std"]).round(2)
"""

PLOT = """
import matplotlib.pyplot as plt

fig, ax = plt.subplots(figsize=(7, 4.5))
for cultivar, group in wine.groupby("cultivar"):
    ax.scatter(group.flavanoids, group.color, s=18, alpha=0.8, label=f"cultivar {cultivar}")
ax.set(xlabel="flavanoids", ylabel="color intensity", title="Three cultivars, two measurements")
ax.legend(frameon=False)
plt.show()
"""

ANSWER = """
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

rows = []
for columns in (["flavanoids"], ["color"], ["flavanoids", "color"], names[:-1]):
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    score = cross_val_score(model, wine[columns], wine.cultivar, cv=5).mean()
    label = " + ".join(columns) if len(columns) < 3 else f"all {len(columns)}"
    rows.append((label, round(100 * score, 1)))
    print(".", end="", flush=True)
answer = pd.DataFrame(rows, columns=["measured", "cultivar told right, %"])
"""

CELLS = [
    ("Load the file", LOAD, None),
    ("What is in it", DESCRIBE, "facts"),
    ("By cultivar, streamed", GROUP, None),
    ("A mistake", MISTAKE, "intensity"),
    ("Corrected: the session has kept its state", CORRECTED, "intensity"),
    ("A picture", PLOT, None),
    ("How much do two measurements tell?", ANSWER, "answer"),
]


async def main() -> None:
    async with found_or_started() as broker, broker.session() as session:
        print(f"broker {broker.url}, session {session.session_id}")
        for number, (title, code, result_var) in enumerate(CELLS, 1):
            heading(f"{number}. {title}")
            show_code(code)
            result = await session.run(
                code, result_var=result_var, preview_rows=15, on_stdout=write, on_stderr=write,
                on_image=save,
            )  # fmt: skip
            show_result(result)


@asynccontextmanager
async def found_or_started() -> AsyncIterator[kernelbroker.Broker]:
    """Yield the running broker, or start one for this demo with its own port and runtime file."""
    async with kernelbroker.connect() as broker:
        try:
            await broker.health()
        except kernelbroker.ConnectionFailed:
            if "KERNELBROKER_URL" in os.environ:
                raise
        else:
            yield broker
            return
    print("no broker is running; starting one for the demo")
    with TemporaryDirectory() as directory:
        os.environ["KERNELBROKER_RUNTIME_FILE"] = f"{directory}/broker.json"
        os.environ["KERNELBROKER_PORT"] = "0"
        server = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kernelbroker_server", stdout=asyncio.subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            if not await server.stdout.readline():
                sys.exit("demo: the broker did not start")
            async with kernelbroker.connect() as broker:
                yield broker
        finally:
            if server.returncode is None:
                server.terminate()
            await server.communicate()


def show_code(code: str) -> None:
    for line in code.strip().splitlines():
        print(paint("2", "  │ ") + paint("36", line))
    print()


def show_result(result: kernelbroker.ExecutionResult) -> None:
    if result.stdout and not result.stdout.endswith("\n"):
        print()
    if result.dataframe is not None:
        print(aligned(result.dataframe.markdown))
    verdict = paint("32", "ok") if result.success else paint("31", f"failed: {result.error}")
    seconds = result.execution_time or 0.0
    print(f"{paint('2', f'[{seconds * 1000:.0f} ms]')} {verdict}")


def save(image: kernelbroker.Image) -> None:
    OUTPUT.mkdir(exist_ok=True)
    path = image.save(OUTPUT / f"wine{image.suffix}")
    size = f", {image.width} x {image.height}" if image.width else ""
    print(f"picture saved: {path} ({len(image.content):,} bytes{size})")


def write(text: str) -> None:
    sys.stdout.write(harmless(text))
    sys.stdout.flush()


def heading(text: str) -> None:
    print(f"\n{paint('1', text)}\n")


def paint(style: str, text: str) -> str:
    return f"\x1b[{style}m{text}\x1b[0m" if sys.stdout.isatty() else text


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except kernelbroker.KernelBrokerError as exc:
        sys.exit(f"demo: {exc}")
