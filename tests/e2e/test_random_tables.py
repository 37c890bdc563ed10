"""Random tables through a real sandbox, and tables of a client that has just been started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import kernelbroker
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.e2e.support import BrokerProcess, whole_system
from tests.support.tables import frame_source
from tests.support.tables.frame_comparison import differences
from tests.support.tables.random_frames import frames

pytestmark = whole_system

TABLES = 60
SOURCE = Path(frame_source.__file__).read_text(encoding="utf-8")


def random_expressions() -> list[str]:
    """The same expressions in each run."""
    found: list[str] = []

    @settings(
        max_examples=TABLES,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(expression=frames())
    def collect(expression: str) -> None:
        found.append(expression)

    collect()
    return found


MAKE_ALL = """
import json
from frame_source import evaluate
made = []
for place, expression in enumerate(json.load(open("expressions.json"))):
    try:
        globals()[f"t{place}"] = evaluate(expression)
    except Exception:  # pandas has no such table
        continue
    made.append(place)
print(json.dumps(made))
"""


@pytest.mark.filterwarnings("ignore::kernelbroker.LossyTableWarning")
async def test_random_tables_are_exact_or_list_their_changes(client: kernelbroker.Broker) -> None:
    """A table of a real sandbox is as it was there, apart from the changes that it lists."""
    expressions = random_expressions()
    async with client.session() as session:
        await session.files.write("frame_source.py", SOURCE)
        await session.files.write("expressions.json", json.dumps(expressions))
        ran = await session.run(MAKE_ALL)
        assert ran.success, ran.error
        made = json.loads(ran.stdout)
        assert len(made) > TABLES * 0.8
        for place in made:
            table = await session.table(f"t{place}", lossy=True)
            found = differences(table, frame_source.evaluate(expressions[place]))
            parts = {each["part"] for each in table.attrs.get("kernelbroker_changes", [])}
            assert {part for part, _, _ in found} <= parts, (expressions[place], found)


FRESH_CLIENT = """
import kernelbroker
with kernelbroker.sync.connect() as client, client.session() as session:
    ran = session.run('''
import pandas
numbers = pandas.date_range('2020', periods=3, freq='ME')
df = pandas.Series([1, 2, 3], index=numbers).to_period('M').to_frame('v')
bins = pandas.DataFrame({'v': [1, 2]}, index=pandas.interval_range(0, 2))
levels = bins.set_index(pandas.Index(['a', 'b']), append=True)
''')
    assert ran.success, ran.error
    for name in ('df', 'bins', 'levels'):
        print(repr(session.table(name).index))
"""


def test_row_labels_of_a_client_that_imports_only_the_sdk(broker: BrokerProcess) -> None:
    """Row labels are right in a process that has not used pandas before."""
    ran = subprocess.run(
        [sys.executable, "-c", FRESH_CLIENT],
        env=broker.client_environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    import pandas

    index = pandas.date_range("2020", periods=3, freq="ME").to_period("M")
    bins = pandas.interval_range(0, 2)
    levels = pandas.MultiIndex.from_arrays([bins, ["a", "b"]])
    assert ran.stdout == f"{index!r}\n{bins!r}\n{levels!r}\n"


async def test_changes_of_each_format_and_of_the_synchronous_client(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """The changes are in `attrs`, in the schema, and in a warning, also of the synchronous client."""
    async with client.session() as session:
        await session.run(
            "import pandas\n"
            "odd = pandas.Series([len, 1], dtype=object)\n"
            "df = pandas.DataFrame({'odd': odd, 'n': [1, 2]})"
        )
        with pytest.raises(kernelbroker.Conflict, match=r"odd .*lossy=True"):
            await session.table("df")
        with pytest.warns(kernelbroker.LossyTableWarning, match="column odd"):
            table = await session.table("df", "arrow", lossy=True)
        metadata = json.loads(table.schema.metadata[b"kernelbroker"])
        assert [each["column"] for each in metadata["changes"]] == ["odd"]
        with pytest.warns(kernelbroker.LossyTableWarning, match="column odd"):
            assert (await session.table("df", "polars", lossy=True))["n"].to_list() == [1, 2]
        with kernelbroker.sync.connect(broker.url, broker.token) as other:
            attached = other.attach(session.session_id, keep=True)
            with pytest.warns(kernelbroker.LossyTableWarning, match="column odd") as caught:
                frame = attached.table("df", lossy=True)
        assert frame["odd"].tolist() == ["<built-in function len>", 1]
        assert caught[0].message.changes == frame.attrs["kernelbroker_changes"]
