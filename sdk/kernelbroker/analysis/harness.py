"""What runs in the sandbox around an analysis: it reads files, and makes a report of the result.

The source of this module is the beginning of a cell. Its names begin with `_kb_`, so that they are not in
the way of the user's. It uses what the kernels' environment has, and nothing of the SDK.
"""

from typing import Any

_KB_ROWS = 500
_KB_BYTES = 3_000_000


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


def _kb_text(file: Any) -> str:
    """A file's text in UTF-8, UTF-16 with a mark, or GBK."""
    data = file.read_bytes()
    encodings = ["utf-16"] if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ["utf-8-sig", "gb18030"]
    for encoding in encodings:
        try:
            return str(data.decode(encoding))
        except UnicodeDecodeError:
            continue
    raise _KbError(f"the text of {file} is neither UTF-8 nor GBK")


def _kb_read(path: str) -> Any:
    """The tables of a file, each with its name: `path`, or `path#sheet` for a workbook."""
    import io

    import pandas

    path, _, wanted = path.partition("#")
    file = _kb_path(path)
    suffix = file.suffix.lower()
    if suffix in (".xlsx", ".xlsm", ".xls"):
        sheets = pandas.read_excel(file, sheet_name=None)
        if wanted and wanted not in sheets:
            raise _KbError(f"{path} has no sheet {wanted!r}; it has: {', '.join(sheets)}")
        names = [wanted] if wanted else list(sheets)
        return [(path if len(sheets) == 1 else f"{path}#{name}", sheets[name]) for name in names]
    if suffix in (".parquet", ".pq"):
        return [(path, pandas.read_parquet(file))]
    if suffix in (".json", ".jsonl", ".ndjson"):
        return [(path, _kb_json(_kb_text(file), is_lines=suffix != ".json"))]
    if suffix not in (".csv", ".tsv", ".tab", ".txt"):
        raise _KbError(f"{path} is no CSV, TSV, Excel, Parquet or JSON file by its name")
    text = _kb_text(file)
    head = text.partition("\n")[0]
    separator = "," if suffix == ".csv" and "," in head else max("\t,;", key=head.count)
    if suffix in (".tsv", ".tab"):
        separator = "\t"
    if not head.strip():
        raise _KbError(f"{path} is empty, or its first line is: it must name the columns")
    return [(path, pandas.read_csv(io.StringIO(text), sep=separator))]


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
    return {"tables": [{"name": name, **_kb_facts(table)} for name, table in tables.items()]}


def _kb_facts(table: Any) -> Any:
    columns = [str(name) for name in table.columns[:200]]
    dtypes = [str(dtype) for dtype in table.dtypes[:200]]
    return {
        "rows": len(table),
        "width": len(table.columns),
        "columns": columns,
        "dtypes": dtypes,
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
