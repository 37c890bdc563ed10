"""Tables in a client process that has imported nothing but what `session.table` imports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.tables.processes import Tables

PERIODS = "pd.period_range('2020-01', periods=3, freq='M')"
INTERVALS = "pd.interval_range(0, 3)"
FRAMES = {
    "index of periods": f"frame([[1, 2, 3]], index={PERIODS})",
    "index of intervals": f"frame([[1, 2, 3]], index={INTERVALS})",
    "level of intervals": f"frame([[1, 2, 3]], index=multi([{INTERVALS}, list('abc')]))",
    "level of periods": f"frame([[1, 2, 3]], index=multi([list('abc'), {PERIODS}], ['a', None]))",
    "level of categories of intervals": (
        f"frame([[1, 2, 3]], index=multi([pd.Categorical({INTERVALS}), [1, 2, 3]]))"
    ),
    "index of categories of periods": f"frame([[1, 2, 3]], index=pd.CategoricalIndex({PERIODS}))",
    "column of periods": f"frame([{PERIODS}])",
    "column of intervals": f"frame([{INTERVALS}])",
    "categories of intervals": f"frame([pd.Categorical({INTERVALS})])",
    "categories of periods": f"frame([pd.Categorical({PERIODS})])",
    "labels of periods": f"frame([[1], [2], [3]], labels={PERIODS})",
    "labels of intervals": f"frame([[1], [2], [3]], labels={INTERVALS})",
    "labels with a level of intervals": f"frame([[1], [2], [3]], labels=multi([{INTERVALS}, list('abc')]))",
    "no columns": f"pd.DataFrame(index={PERIODS})",
    "crosstab of a cut": "pd.crosstab(pd.cut([1, 5, 9], 2), pd.Series(['a', 'b', 'a'], name='k'))",
    "zones": "frame([pd.date_range('2020', periods=2, tz='Asia/Tokyo', unit='s')])",
    "uuid of Arrow's": "frame([pd.array(pa.array([b'a' * 16], pa.uuid()), pd.ArrowDtype(pa.uuid()))])",
}


@pytest.fixture(scope="module")
def tables() -> Iterator[Tables]:
    tables = Tables(fork=True)
    yield tables
    tables.close()


@pytest.mark.parametrize("name", FRAMES)
def test_a_table_is_exact_in_a_fresh_process(tables: Tables, name: str) -> None:
    """Reading does not depend on what the client's process has done with pandas before."""
    found = tables.compared(FRAMES[name])
    assert "refused" not in found, found
    assert not found["differences"]
    assert not found["changes"] and not found["warned"]
