"""Bounds on the memory that an Arrow stream from a sandbox can take.

A few hundred bytes can announce gigabytes: buffers may be compressed, a column of nulls takes no bytes
at all, and a dictionary or a view repeats one value in every row. So sizes are computed from what the
stream announces, before pyarrow or pandas allocates.
"""

from __future__ import annotations

import struct
from typing import Any

from .protocol.errors import TooLarge

_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
"""Kinds of messages, as the format's `MessageHeader` numbers them."""
_POINTER = 8


def check_stream(buffer: Any, max_bytes: int) -> None:
    """Check the size that the stream's compressed buffers announce.

    Raises:
        TooLarge: together they take more than `max_bytes`.
        ValueError: the stream is damaged.
    """
    import pyarrow

    total = 0
    for message in pyarrow.ipc.MessageReader.open_stream(buffer):
        batch = _record_batch(memoryview(message.metadata))
        if batch is not None and message.body is not None:
            total += _body_size(batch, memoryview(message.body))
            check_size(total, max_bytes)


def check_frame(table: Any, max_bytes: int) -> None:
    """Check the size that a table takes as a DataFrame.

    Raises:
        TooLarge: it takes more than `max_bytes`.
    """
    total = 0
    for column in table.columns:
        for chunk in column.chunks:
            total += _expanded_size(chunk)
            check_size(total, max_bytes)


def check_size(size: int, max_bytes: int) -> None:
    """Raises TooLarge if `size` bytes are more than `max_bytes`."""
    if size > max_bytes:
        raise TooLarge(
            f"the table takes {size:,} bytes or more, and max_bytes is {max_bytes:,}: "
            "select a part of it in the kernel, or give a larger max_bytes"
        )


def _expanded_size(array: Any, *, is_nested: bool = False) -> int:
    """Bytes of an array's values when each row has a value of its own; an upper bound."""
    from pyarrow import types

    kind, rows = array.type, len(array)
    pointers: int = _POINTER * rows
    if hasattr(array, "storage"):  # an extension type
        return _expanded_size(array.storage, is_nested=is_nested)
    if types.is_dictionary(kind):
        values = _expanded_size(array.dictionary, is_nested=True)
        return max(pointers, rows * values) if is_nested else pointers + values
    if types.is_run_end_encoded(kind):
        return max(pointers, rows * _expanded_size(array.values, is_nested=True))
    if types.is_string_view(kind) or types.is_binary_view(kind):
        views = array.buffers()[1]
        if views is not None:
            pointers += sum(max(0, length) for (length,) in struct.iter_unpack("<i12x", views))
        return pointers
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        return max(pointers, rows * _expanded_size(array.values, is_nested=True))
    if types.is_map(kind):
        children = [array.keys, array.items]
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        children = [array.values]
    elif types.is_struct(kind) or types.is_union(kind):
        children = [array.field(place) for place in range(kind.num_fields)]
    else:
        return max(int(array.nbytes), pointers)
    return pointers + sum(_expanded_size(child, is_nested=True) for child in children)


# The metadata of a message is a FlatBuffer; pyarrow has no access to it. See `Message.fbs` and
# `Schema.fbs` of the Arrow format for the numbers of the fields.


def _record_batch(metadata: memoryview) -> tuple[memoryview, int] | None:
    """The place of the record batch in a message's metadata, if the message has one."""
    message = _integer("<I", metadata, 0)
    kind_at, header_at = _field(metadata, message, 1), _field(metadata, message, 2)
    if kind_at is None or header_at is None:
        return None
    kind, header = metadata[kind_at], _follow(metadata, header_at)
    if kind == _DICTIONARY_BATCH:
        data_at = _field(metadata, header, 1)
        return None if data_at is None else (metadata, _follow(metadata, data_at))
    return (metadata, header) if kind == _RECORD_BATCH else None


def _body_size(batch: tuple[memoryview, int], body: memoryview) -> int:
    """Bytes of a record batch's buffers when they are decompressed; 0 if they are not compressed."""
    metadata, place = batch
    buffers_at = _field(metadata, place, 2)
    if _field(metadata, place, 3) is None or buffers_at is None:
        return 0
    vector = _follow(metadata, buffers_at)
    total = 0
    for number in range(_integer("<I", metadata, vector)):
        offset, length = struct.unpack_from("<qq", metadata, vector + 4 + 16 * number)
        if length == 0:
            continue
        if offset < 0 or length < 8 or offset + length > len(body):
            raise ValueError("a compressed buffer lies outside of its message")
        size = _integer("<q", body, offset)
        if size < -1:
            raise ValueError("a compressed buffer has a negative size")
        total += length - 8 if size == -1 else size
    return total


def _field(data: memoryview, table: int, number: int) -> int | None:
    """The place of a field of a FlatBuffer's table; None if the table does not have it."""
    vtable = table - _integer("<i", data, table)
    if 4 + 2 * number >= _integer("<H", data, vtable):
        return None
    offset = _integer("<H", data, vtable + 4 + 2 * number)
    return table + offset if offset else None


def _follow(data: memoryview, place: int) -> int:
    return place + _integer("<I", data, place)


def _integer(form: str, data: memoryview, place: int) -> int:
    if place < 0:
        raise ValueError("an offset points outside of its message")
    value: int = struct.unpack_from(form, data, place)[0]
    return value
