"""Which functions of Python take paths, and what they do with them: a line for each.

A name with a dot is a full name, any other is the last part of one: of a function, or of a method. The full
name goes first.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

OBJECT = -1
"""The path is what the method is called on."""
Deed: TypeAlias = Literal["write", "delete", "move"]


class Use(NamedTuple):
    """What is done with the argument at a place (from 0, or `OBJECT`), or with one of these names."""

    deed: Deed
    at: int
    keywords: tuple[str, ...] = ()


def _takes(names: str, *uses: Use) -> dict[str, tuple[Use, ...]]:
    return dict.fromkeys(names.split(), uses)


def _write(at: int, *keywords: str) -> Use:
    return Use("write", at, keywords)


CHANGES: dict[str, tuple[Use, ...]] = {
    **_takes("copyfile copy copy2 copytree copymode copystat link symlink", _write(1, "dst")),
    **_takes("move os.rename os.renames os.replace", Use("move", 0, ("src",)), _write(1, "dst")),
    **_takes("rename replace", Use("move", OBJECT), _write(0, "target")),
    **_takes("unlink rmdir", Use("delete", OBJECT)),
    **_takes("write_text write_bytes touch mkdir chmod symlink_to hardlink_to", _write(OBJECT)),
    **_takes("os.mkdir makedirs mkfifo mknod truncate os.chmod os.chown os.lchown shutil.chown os.utime",
        _write(0, "path", "name")),
    **_takes("to_csv to_json to_hdf", _write(0, "path_or_buf")),
    **_takes("to_parquet to_feather to_pickle to_stata to_orc", _write(0, "path")),
    **_takes("to_excel to_html to_markdown to_latex", _write(0, "excel_writer", "buf")),
    **_takes("savefig savetxt imsave imwrite", _write(0, "fname", "filename")),
    **_takes("save savez savez_compressed", _write(0, "file", "fp", "path", "filename")),
    **_takes("joblib.dump torch.save", _write(1, "filename", "f")),
    **_takes("urlretrieve", _write(1, "filename")),
    **_takes("make_archive", _write(0, "base_name")),
    **_takes("unpack_archive", _write(1, "extract_dir")),
    **_takes("extractall", _write(0, "path")),
    **_takes("tarfile.TarFile.extract zipfile.ZipFile.extract", _write(1, "path")),
}  # fmt: skip
"""Functions and methods that change what is at a path."""

READERS = {
    "open", "Path", "PurePath", "listdir", "scandir", "walk", "glob", "iglob", "rglob", "iterdir",
    "loadtxt", "genfromtxt", "fromfile", "copy", "copy2", "copyfile", "copytree", "readlink", "symlink",
    "link", "read_text", "read_bytes", "getline", "getlines", "input", "FileInput", "load", "connect",
    "ZipFile", "unpack_archive", "make_archive", "stat", "read_table", "scan_csv", "tarfile.TarFile.add",
    "zipfile.ZipFile.write",
}  # fmt: skip
"""Functions whose arguments may be paths that are read; `read_...` are as well."""

OPENERS = {
    "builtins.open", "os.open", "pathlib.Path.open", "io.FileIO", "gzip.open", "bz2.open", "lzma.open",
    "tarfile.open", "zipfile.ZipFile", "tokenize.open",
}  # fmt: skip
"""Functions that open the path they are given first, in the mode that is given second."""
