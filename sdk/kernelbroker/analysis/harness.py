"""What runs in the sandbox around an analysis: it reads files, and makes a report of the result.

The source of this module is the beginning of a cell. Its names begin with `_kb_`, so that they are not in
the way of the user's. It uses what the kernels' environment has, and nothing of the SDK.
"""

from typing import Any

_KB_ROWS = 500
_KB_BYTES = 3_000_000
_KB_HEAD = 200_000
"""Characters of a text by which its form is judged."""


class _KbError(Exception):
    """An input cannot be read. The message is for the caller."""


class _KbTables(list):  # type: ignore[type-arg]
    """The tables of the inputs in order: `tables[0]`, and by name: `tables["sales.csv"]`.

    A workbook has one table for each sheet; `tables["book.xlsx#Sheet2"]` is one of them.
    """

    def __init__(self, named: Any) -> None:
        self.names = [name for name, _ in named]
        super().__init__(table for _, table in named)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for place, name in enumerate(self.names):
            path, _, sheet = name.partition("#")
            file = path.rpartition("/")[2]
            if key in (name, path, file, f"{file}#{sheet}", file.rpartition(".")[0], sheet):
                return self[place]
        raise KeyError(f"{key!r}; there are: {', '.join(self.names)}")

    def keys(self) -> Any:
        return list(self.names)

    def values(self) -> Any:
        return list(self)

    def items(self) -> Any:
        return list(zip(self.names, self, strict=True))


def _kb_path(path: str) -> Any:
    """The file, or an error that names what is beside it."""
    from pathlib import Path

    file = Path(path)
    if file.is_file():
        return file
    if not file.parent.is_dir():
        raise _KbError(f"there is no file {path}, and no directory {file.parent}")
    beside = sorted(each.name for each in file.parent.iterdir())[:20]
    raise _KbError(f"there is no file {path}. {file.parent} has: {', '.join(beside) or 'nothing'}")


def _kb_text(file: Any) -> Any:
    """A file's text, and its encoding: by its mark, UTF-8, or what it most likely is."""
    data = file.read_bytes()
    marks = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
    encoding = next((name for mark, name in marks if data.startswith(mark)), "utf-8")
    zeros = data[:4096].count(0)
    if encoding == "utf-8" and zeros > len(data[:4096]) // 5:
        # UTF-16 without a mark: every other byte of a Western text is 0.
        encoding = "utf-16-be" if data[:4096:2].count(0) > zeros // 2 else "utf-16-le"
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        pass
    name = _kb_encoding(data)
    try:
        if name is not None:
            return data.decode(name), name
    except UnicodeDecodeError:
        pass
    first = next(line for line in data.splitlines() if not line.isascii())[:60]
    raise _KbError(
        f"the encoding of {file} cannot be told. Its first line with other characters is {first!r}"
        + (f", and it is not {name} throughout" if name else "")
        + ". Save it as UTF-8"
    )


def _kb_encoding(data: bytes) -> Any:
    """The likely encoding of a text that is not UTF-8, by the characters that it would have; else None."""
    import io
    import re

    from charset_normalizer import from_bytes

    sample = b""
    for line in io.BytesIO(data):
        if not line.isascii():
            sample += line
        if len(sample) > 65536:
            break
    names = ["gb18030", "big5", "cp932", "euc_jp", "euc_kr", "cp1252", "cp1250", "cp1251", "koi8_r"]
    best = from_bytes(sample, cp_isolation=names).best()
    if best is None or best.chaos > 0.2:
        return None
    text = str(best)
    if best.encoding in ("euc_kr", "big5", "euc_jp") and _kb_decodes(sample, "gb18030"):
        # Short texts fit several. Korean has no Chinese characters, and Japanese has kana.
        is_korean = not any("\u4e00" <= each <= "\u9fff" for each in text)
        has_kana = any("\u3040" <= each <= "\u30ff" for each in text)
        plain = bytes(each for each in sample if each > 127)
        is_gb2312 = all(each >= 0xA1 for each in plain) and _kb_decodes(sample, "gb2312")
        wanted = {"euc_kr": is_korean, "euc_jp": has_kana, "big5": not is_gb2312}[best.encoding]
        return best.encoding if wanted else "gb18030"
    if best.encoding == "cp1250" and _kb_decodes(sample, "cp1252"):
        # Both are letters for most bytes; some letters of the one are signs of the other, within a word.
        odd = r"[\u00a3\u00a5\u00bc\u00be](?=[a-z])|(?<=[a-z])\u0178"
        odd += r"|(?<=[A-Za-z])[\u00b3\u00b9\u00bf\u00af\u00bc\u00be]"
        return "cp1250" if re.search(odd, sample.decode("cp1252")) else "cp1252"
    return best.encoding


def _kb_decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _kb_read(path: str) -> Any:
    """The tables of a file, each with its name: `path`, or `path#sheet` for a workbook.

    `attrs["read"]` of a table says what was taken: encoding, separator, header and sheet.
    """
    path, _, wanted = path.partition("#")
    file = _kb_path(path)
    suffix = file.suffix.lower()
    with file.open("rb") as opened:
        head = opened.read(4096)
    is_workbook = head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0"))
    if suffix in (".xlsx", ".xlsm", ".xls") and not is_workbook:
        if b"<html" in head.lower() or b"<table" in head.lower():
            raise _KbError(f"{path} is HTML, whatever its name says: save it as .xlsx or CSV")
        suffix = ".csv"
    if suffix in (".xlsx", ".xlsm", ".xls"):
        return _kb_workbook(path, file, wanted)
    if suffix in (".parquet", ".pq"):
        import pandas

        return [(path, pandas.read_parquet(file))]
    if suffix not in (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".tab", ".txt"):
        raise _KbError(f"{path} is no CSV, TSV, Excel, Parquet or JSON file by its name")
    text, encoding = _kb_text(file)
    if suffix in (".json", ".jsonl", ".ndjson"):
        table = _kb_json(text, is_lines=suffix != ".json")
        table.attrs["read"] = {"encoding": encoding}
        return [(path, table)]
    return [(path, _kb_separated(path, text, encoding, "\t" if suffix in (".tsv", ".tab") else ""))]


def _kb_separated(path: str, text: str, encoding: str, separator: str) -> Any:
    """The table of a text with separated values. Lines above its header, such as a title, are left out."""
    import csv
    import io
    from collections import Counter
    from itertools import islice

    import pandas

    if not text.strip():
        raise _KbError(f"{path} is empty: a line must name the columns")
    head = text if len(text) < _KB_HEAD else text[: text.rfind("\n", 0, _KB_HEAD) + 1] or text
    tried = {}
    for each in [separator] if separator else [",", ";", "\t", "|"]:
        rows = csv.reader(io.StringIO(head, newline=""), delimiter=each)
        lines, last = [], 0
        for row in islice(rows, 100):
            lines.append((last, len(row) if any(cell.strip() for cell in row) else 0))
            last = rows.line_num
        widths = Counter(width for _, width in lines if width > 1)
        width, count = widths.most_common(1)[0] if widths else (1, 0)
        tried[each] = (count / max(1, sum(1 for _, width in lines if width)), width, lines)
    separator = max(tried, key=lambda each: (round(tried[each][0], 1), tried[each][1]))
    share, width, lines = tried[separator]
    header = next((line for line, found in lines if found == width), None) if share >= 0.5 else None
    if header is None:  # one column, or rows of many widths
        header = next(line for line, found in lines if found)
    table = pandas.read_csv(io.StringIO(text), sep=separator, skiprows=header)
    decimal = "."
    for name in table.columns:
        if (numbers := _kb_decimal_commas(table[name])) is not None:
            table[name], decimal = numbers, ","
    table.attrs["read"] = {"encoding": encoding, "separator": separator, "header_line": header + 1}
    table.attrs["read"] |= {"decimal": ","} if decimal == "," else {}
    return table


def _kb_decimal_commas(column: Any) -> Any:
    """The numbers of a column of texts such as 1.234,50; None if it has others."""
    import re

    import pandas

    if not isinstance(column, pandas.Series) or pandas.api.types.is_numeric_dtype(column):
        return None
    texts = column.dropna().astype(str).str.strip()
    is_number = texts.str.fullmatch(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?")
    # 1,234 alone may be a thousand.
    is_clear = texts.map(lambda each: bool(re.search(r"\.\d{3},|,(?!\d{3}$)\d+$", each)))
    if texts.empty or not is_number.all() or not is_clear.any():
        return None
    plain = column.astype(str).str.strip().str.replace(".", "", regex=False)
    return pandas.to_numeric(plain.str.replace(",", ".", regex=False), errors="coerce")


def _kb_workbook(path: str, file: Any, wanted: str) -> Any:
    """The sheets of a workbook that have something in them, or the one that is wanted."""
    import pandas

    sheets = pandas.read_excel(file, sheet_name=None, header=None)
    if wanted and wanted not in sheets:
        raise _KbError(f"{path} has no sheet {wanted!r}; it has: {', '.join(sheets)}")
    full = [name for name, sheet in sheets.items() if not sheet.empty]
    names = [wanted] if wanted else full or list(sheets)
    tables = []
    for name in names:
        filled = sheets[name].head(50).notna().sum(axis=1)
        width = int(filled.max()) if len(filled) else 0
        header = next((row for row, cells in enumerate(filled) if cells * 2 > width), 0)
        table = pandas.read_excel(file, sheet_name=name, header=header)
        table.attrs["read"] = {"sheet": name, "header_line": header + 1}
        tables.append((path if len(names) == 1 and len(sheets) == 1 else f"{path}#{name}", table))
    return tables


def _kb_json(text: str, *, is_lines: bool) -> Any:
    import json

    import pandas

    if is_lines:
        return pandas.DataFrame([json.loads(line) for line in text.splitlines() if line.strip()])
    value = json.loads(text)
    if isinstance(value, dict):
        lists = [each for each in value.values() if isinstance(each, list)]
        if len(lists) == 1 and lists[0] and isinstance(lists[0][0], dict):
            value = lists[0]
        elif not any(isinstance(each, dict | list) for each in value.values()):
            value = [value]
        elif "columns" in value and "data" in value:
            return pandas.DataFrame(value["data"], columns=value["columns"])
    return pandas.DataFrame(value)


def _kb_load(key: str, paths: Any, frames: Any) -> Any:
    """Read the inputs, keep them under `key` for the next cell, and describe them.

    An input that cannot be read is a report, not an exception: its traceback would be ours.
    """
    while len(frames) > 3:  # of cells that did not get to them
        del frames[next(iter(frames))]
    try:
        tables = _KbTables([each for path in paths for each in _kb_read(path)])
    except _KbError as exc:
        return {"error": str(exc)}
    except Exception as exc:
        return {"error": f"{', '.join(paths)} cannot be read: {type(exc).__name__}: {exc}"}
    frames[key] = tables
    described = [{"name": name, **_kb_facts(table)} for name, table in tables.items()]
    for table in tables:
        table.attrs.pop("read", None)  # else results would have it
    return {"tables": described}


def _kb_facts(table: Any) -> Any:
    columns = [str(name) for name in table.columns[:200]]
    dtypes = [str(dtype) for dtype in table.dtypes[:200]]
    return {
        "rows": len(table),
        "width": len(table.columns),
        "columns": columns,
        "dtypes": dtypes,
        "read": dict(table.attrs.get("read") or {}),
        "head": _kb_records(table.iloc[:, :200], 5, 100_000),
    }


def _kb_records(table: Any, rows: int, most_bytes: int = _KB_BYTES) -> Any:
    """The first rows as records; fewer if they are too large. Row labels that say something are columns."""
    import json

    import pandas

    table = pandas.DataFrame(table).head(rows)
    if not isinstance(table.index, pandas.RangeIndex):
        taken = set(map(str, table.columns))
        names = [name or f"level_{place}" for place, name in enumerate(table.index.names)]
        if table.index.nlevels == 1 and table.index.name is None:
            names = ["index"]
        names = [f"{name}_" if str(name) in taken else name for name in names]
        table = table.reset_index(names=names)
    keys: list[str] = []
    for label in table.columns:
        key = " / ".join(map(str, label)) if isinstance(label, tuple) else str(label)
        keys.append(key if key not in keys else f"{key}.{len(keys)}")
    records = []
    for values in table.itertuples(index=False, name=None):
        record = _kb_plain(dict(zip(keys, values, strict=True)))
        most_bytes -= len(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace"))
        if most_bytes < 0:
            break
        records.append(record)
    return records


def _kb_plain(value: Any, depth: int = 8) -> Any:
    """The value as JSON has it; what JSON has not is text, and what is missing is None."""
    import math

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth and isinstance(value, dict):
        return {str(key): _kb_plain(each, depth - 1) for key, each in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [_kb_plain(each, depth - 1) for each in value]
    if depth and hasattr(value, "tolist"):  # numpy
        return _kb_plain(value.tolist(), depth - 1)
    if depth and hasattr(value, "item"):
        return _kb_plain(value.item(), depth - 1)
    if type(value).__name__ in ("NaTType", "NAType"):
        return None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _kb_prepare(path: str) -> Any:
    """Make the directories of an output. Returns when it was written, or None."""
    from pathlib import Path

    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target.stat().st_mtime_ns if target.exists() else None


def _kb_written(_done: Any, before: Any, path: str) -> Any:
    """Whether the output was written since then."""
    from pathlib import Path

    target = Path(path)
    return {"written": target.is_file() and target.stat().st_mtime_ns != before}


def _kb_operate(operation: Any, tables: Any, input_paths: Any, output_path: str) -> Any:
    """Call `operation` with an output whose directories exist. Reports whether it was written."""
    before = _kb_prepare(output_path)
    return _kb_written(operation(tables, input_paths, output_path), before, output_path)


def _kb_table(result: Any) -> Any:
    """The whole result as one table."""
    import pandas

    if isinstance(result, dict) and "data" in result:
        result = result["data"]
    if isinstance(result, pandas.Series):
        return result.to_frame()
    if isinstance(result, pandas.DataFrame):
        return result
    if isinstance(result, dict) and not any(isinstance(each, list) for each in result.values()):
        return pandas.DataFrame([result])
    if isinstance(result, dict | list):
        return pandas.DataFrame(result)
    return pandas.DataFrame() if result is None else pandas.DataFrame({"result": [result]})


def _kb_variables(namespace: Any) -> Any:
    """The user's variables with their types, and the columns of those that are tables."""
    import pandas

    hidden = ("In", "Out", "exit", "quit", "get_ipython", "open")
    names = [name for name in list(namespace) if name[0] != "_" and name not in hidden][-100:]
    tables = [name for name in names if isinstance(namespace[name], pandas.DataFrame)][-10:]
    return {
        "variables": [f"{name}: {type(namespace[name]).__name__}" for name in names],
        "tables": [{"name": name, **_kb_facts(namespace[name])} for name in tables],
    }


def _kb_report(result: Any) -> Any:
    """The result for the caller: a frame, a dict with markdown and data, or any other value."""
    import pandas

    if isinstance(result, pandas.Series):
        result = result.to_frame()
    if isinstance(result, pandas.DataFrame):
        records = _kb_records(result, _KB_ROWS)
        return {"frame": {**_kb_size(result, records), "data": records}}
    if isinstance(result, dict) and result.keys() & {"markdown", "data", "summary"}:
        return {"dict": _kb_dict(result)}
    return {"value": _kb_plain(result)}


def _kb_dict(result: Any) -> Any:
    import pandas

    data, size = result.get("data"), {}
    if isinstance(data, pandas.Series):
        data = data.to_frame()
    if isinstance(data, pandas.DataFrame):
        records = _kb_records(data, _KB_ROWS)
        size, data = _kb_size(data, records), records
    elif isinstance(data, list):
        size = {"rows": len(data), "columns": []}
        if data and isinstance(data[0], dict):
            size["columns"] = [str(key) for key in data[0]]
        data = _kb_plain(data[:_KB_ROWS])
    else:
        data = _kb_plain(data)
    shape = _kb_plain(result.get("shape"))
    texts = {key: str(result.get(key) or "") for key in ("markdown", "summary")}
    return {**texts, **size, "data": data, "shape": shape}


def _kb_size(table: Any, records: Any) -> Any:
    return {
        "rows": len(table),
        "columns": list(records[0]) if records else [str(name) for name in table.columns],
        "width": len(table.columns),
    }
