"""Where the paths that agents name are in a sandbox."""

from __future__ import annotations

from pathlib import PurePosixPath


class PathMapper:
    """Maps the paths that agents name to absolute ones.

    Args:
        session_id: the session whose files are meant.
        shared_root: the directory with the data sets of all sessions.
        session_root: the session's workspace; or a directory named `sessions`, which holds those of many
            sessions, each in a directory with the session's id.

    Raises:
        ValueError: the id cannot be the name of a directory.
    """

    def __init__(
        self, session_id: str, shared_root: str = "/data/shared", session_root: str = "/data"
    ) -> None:
        if session_id in ("", ".", "..") or "/" in session_id or "\0" in session_id:
            raise ValueError(f"{session_id!r} is no session id: it is not empty, and has no slash")
        self.session_id = session_id
        self.shared_root = PurePosixPath(shared_root)
        root = PurePosixPath(session_root)
        self.session_root = root / session_id if root.name == "sessions" else root

    def map_input_path(self, path: str) -> str:
        """Return where an input is: `uploads/...` in the session's directory, `datasets/...` in the shared
        one. Other paths are returned unchanged.

        Raises:
            ValueError: the path leads out of that directory.
        """
        match _parts(path):
            case ["uploads", *_] as parts:
                return str(self.session_root.joinpath(*parts))
            case ["datasets", *_] as parts:
                return str(self.shared_root.joinpath(*parts))
        return path

    def map_output_path(self, path: str) -> str:
        """Return where an output goes: a relative path is below `outputs/` in the session's directory.

        Raises:
            ValueError: the path leads out of that directory.
        """
        if path.startswith("/"):
            return path
        parts = _parts(path, is_output=True)
        if not parts or parts == ["outputs"]:
            raise ValueError(f"{path!r} names no file")
        if parts[0] != "outputs":
            parts.insert(0, "outputs")
        return str(self.session_root.joinpath(*parts))


def _parts(path: str, *, is_output: bool = False) -> list[str]:
    """The parts of a relative path; none of an absolute one."""
    if path.startswith("/"):
        return []
    parts = list(PurePosixPath(path).parts)
    if ".." in parts and (is_output or parts[0] in ("uploads", "datasets")):
        raise ValueError(f"{path!r} leads out of its directory: name it without '..'")
    return parts
