"""Small Arrow streams with large tables."""

from __future__ import annotations

import base64
import json
import struct

import pyarrow
import pytest
from kernelbroker import ProtocolError, TooLarge, from_arrow

LIMIT = 10 * 2**20
MANY = 2**24


def stream(table: pyarrow.Table, compression: str | None = None) -> pyarrow.Buffer:
    sink = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def beside(**metadata: object) -> pyarrow.Table:
    table = pyarrow.table({"n": [1, 2, 3]})
    return table.replace_schema_metadata({"kernelbroker": json.dumps(metadata)})


ZEROS = pyarrow.table(
    {
        "n": pyarrow.Array.from_buffers(
            pyarrow.int64(), 2**22, [None, pyarrow.py_buffer(bytes(2**25))]
        )
    }
)
TEXT = pyarrow.array(["x" * 10_000])
VIEWS = struct.pack("<i4sii", 10_000, b"xxxx", 0, 0) * 10_000
BOMBS = {
    "zstd": stream(ZEROS, "zstd"),
    "lz4": stream(ZEROS, "lz4"),
    "compressed dictionary": stream(
        pyarrow.table(
            {"c": pyarrow.DictionaryArray.from_arrays([0], pyarrow.array(["x" * 2**25]))}
        ),
        "zstd",
    ),
    "nulls": stream(pyarrow.table({"n": pyarrow.nulls(MANY)})),
    "nulls in lists": stream(
        pyarrow.table({"n": pyarrow.FixedSizeListArray.from_arrays(pyarrow.nulls(MANY), MANY // 2)})
    ),
    "empty bytes": stream(
        pyarrow.table(
            {
                "n": pyarrow.Array.from_buffers(
                    pyarrow.binary(0), MANY, [None, pyarrow.py_buffer(b"")]
                )
            }
        )
    ),
    "one text in all rows": stream(
        pyarrow.table(
            {
                "t": pyarrow.Array.from_buffers(
                    pyarrow.string_view(),
                    10_000,
                    [None, pyarrow.py_buffer(VIEWS), pyarrow.py_buffer(b"x" * 10_000)],
                )
            }
        )
    ),
    "one text in nested rows": stream(
        pyarrow.table(
            {
                "t": pyarrow.StructArray.from_arrays(
                    [pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10_000), TEXT)], ["a"]
                )
            }
        )
    ),
    "one run": stream(pyarrow.table({"t": pyarrow.RunEndEncodedArray.from_arrays([10_000], TEXT)})),
    "labels by range": stream(beside(columns={"range": [0, 10**12, 1], "names": [None]})),
    "labels by table": stream(
        beside(
            rows={
                "table": base64.b64encode(stream(ZEROS, "zstd")).decode(),
                "names": [None],
                "multi": False,
            }
        )
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_stream_with_a_large_table_is_refused(name: str) -> None:
    """A stream whose table exceeds the limit is refused before the memory is allocated."""
    bomb = BOMBS[name]
    assert bomb.size < LIMIT
    before = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(TooLarge, match="give a larger max_bytes"):
        from_arrow.read_table(bomb, "pandas", LIMIT)
    assert pyarrow.default_memory_pool().max_memory() - before < LIMIT


@pytest.mark.parametrize("format", ["arrow", "polars"])
def test_a_compressed_stream_is_bounded_in_each_format(format: str) -> None:
    """The decompressed size counts, in each format."""
    with pytest.raises(TooLarge):
        from_arrow.read_table(BOMBS["zstd"], format, LIMIT)


def test_the_limit_can_be_raised() -> None:
    """With a larger limit the same stream is a table."""
    assert len(from_arrow.read_table(BOMBS["zstd"], "pandas", 2**26)) == 2**22


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_compressed_table_within_the_limit_is_read(compression: str) -> None:
    """Compressed buffers are accepted, also those that compression did not make smaller."""
    table = pyarrow.table({"n": list(range(1000)), "t": ["a", None] * 500})
    made = from_arrow.read_table(stream(table, compression), "arrow", LIMIT)
    assert made.equals(table)


@pytest.mark.parametrize("size", [-2, -(2**62)])
def test_a_negative_size_is_refused(size: int) -> None:
    """A compressed buffer with a negative size is refused as damaged."""
    data = bytearray(BOMBS["zstd"].to_pybytes())
    place = data.index(struct.pack("<q", 2**25))
    place = data.rindex(struct.pack("<q", 2**25)) if place < 400 else place
    data[place : place + 8] = struct.pack("<q", size)
    with pytest.raises(ProtocolError, match="no table"):
        from_arrow.read_table(pyarrow.py_buffer(bytes(data)), "pandas", LIMIT)


def test_damaged_streams_are_refused() -> None:
    """A change of any byte of the metadata gives a table or an error of the SDK."""
    good = stream(pyarrow.table({"n": list(range(50))}), "zstd").to_pybytes()
    outcomes = set()
    for place in range(len(good)):
        for value in (0, 1, 0x7F, 0xFF):
            data = bytearray(good)
            data[place] = value
            try:
                from_arrow.read_table(pyarrow.py_buffer(bytes(data)), "arrow", LIMIT)
                outcomes.add("table")
            except (ProtocolError, TooLarge) as error:
                outcomes.add(type(error).__name__)
    assert outcomes == {"table", "ProtocolError", "TooLarge"}
