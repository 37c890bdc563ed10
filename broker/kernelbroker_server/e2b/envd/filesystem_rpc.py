"""E2B's service `filesystem.Filesystem`: directories of a sandbox."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound

from ...service import files, filesystem
from ...sessions.session import Session
from .connect import ConnectError
from .entries import entry_info
from .places import Place, place_of
from .rpc import Call, Fields, Method
from .watchers import Watchers, event_of

_MAX_DEPTH = 64


async def _stat(call: Call, request: Fields) -> Fields:
    return {"entry": await _entry(call.session, place_of(request.get("path", "")))}


async def _make_dir(call: Call, request: Fields) -> Fields:
    place = place_of(request.get("path", ""))
    with contextlib.suppress(NotFound):
        found = await filesystem.details(call.session, place.path, system=place.system)
        if found.kind == "directory":
            raise ConnectError("already_exists", f"{place.absolute}: the directory exists already")
        raise BadRequest(f"{place.absolute}: it exists already, and is no directory")
    await files.make_directory(call.session, place.path, system=place.system)
    return {"entry": await _entry(call.session, place)}


async def _move(call: Call, request: Fields) -> Fields:
    source = place_of(request.get("source", ""))
    target = place_of(request.get("destination", ""))
    if source.system != target.system:
        raise BadRequest(
            f"{source.absolute}: it cannot be renamed into or out of the home directory; run 'mv' for that"
        )
    await files.move(call.session, source.path, target.path, system=source.system)
    return {"entry": await _entry(call.session, target)}


async def _list_dir(call: Call, request: Fields) -> Fields:
    place = place_of(request.get("path", ""))
    depth = request.get("depth", 0)
    if depth > _MAX_DEPTH:
        raise BadRequest(f"the depth is at most {_MAX_DEPTH}")
    try:
        listing = await filesystem.listing(call.session, place.path, depth, system=place.system)
    except Conflict as exc:
        raise BadRequest(f"{place.absolute}: it is no directory") from exc
    if listing.truncated:
        raise ConnectError(
            "resource_exhausted", f"{place.absolute} has more than {len(listing.entries):,} entries"
        )
    return {"entries": [entry_info(each, place) for each in listing.entries]}


async def _remove(call: Call, request: Fields) -> Fields:
    place = place_of(request.get("path", ""))
    if not place.path:
        raise BadRequest(f"{place.absolute} itself cannot be removed")
    with contextlib.suppress(NotFound):
        await files.delete(call.session, place.path, recursive=True, system=place.system)
    return {}


async def _watch_dir(call: Call, request: Fields) -> AsyncGenerator[Fields, None]:
    place = place_of(request.get("path", ""))
    recursive = request.get("recursive", False)
    with_entry = request.get("include_entry", False)
    async with _watched(call.session, place, recursive) as changes:
        yield {"start": {}}
        async for change in changes:
            if isinstance(change, filesystem.Change):
                yield {"filesystem": await event_of(call.session, place, change, with_entry)}
            else:
                yield {"keepalive": {}}


def methods(watchers: Watchers) -> dict[str, Method]:
    """Return the methods of the service."""

    async def create_watcher(call: Call, request: Fields) -> Fields:
        place = place_of(request.get("path", ""))
        recursive = request.get("recursive", False)
        watching = _watched(call.session, place, recursive)
        with_entry = request.get("include_entry", False)
        return {
            "watcherId": await watchers.create(call.session, place, watching, with_entry=with_entry)
        }

    async def get_watcher_events(call: Call, request: Fields) -> Fields:
        return {"events": await watchers.events(call.session, request.get("watcher_id", ""))}

    async def remove_watcher(call: Call, request: Fields) -> Fields:
        await watchers.remove(call.session, request.get("watcher_id", ""))
        return {}

    return {
        "Stat": _method("Stat", takes_turns=True, unary=_stat),
        "MakeDir": _method("MakeDir", takes_turns=True, unary=_make_dir),
        "Move": _method("Move", takes_turns=True, unary=_move),
        "ListDir": _method("ListDir", takes_turns=True, unary=_list_dir),
        "Remove": _method("Remove", takes_turns=True, unary=_remove),
        "WatchDir": _method("WatchDir", server_stream=_watch_dir),
        "CreateWatcher": _method("CreateWatcher", unary=create_watcher),
        "GetWatcherEvents": _method("GetWatcherEvents", unary=get_watcher_events),
        "RemoveWatcher": _method("RemoveWatcher", unary=remove_watcher),
    }


def _method(name: str, **function: Any) -> Method:
    return Method(f"filesystem.{name}Request", f"filesystem.{name}Response", **function)


async def _entry(session: Session, place: Place) -> Fields:
    found = await filesystem.details(session, place.path, system=place.system)
    return entry_info(found, place)


@contextlib.asynccontextmanager
async def _watched(
    session: Session, place: Place, recursive: bool
) -> AsyncGenerator[AsyncGenerator[filesystem.Change | filesystem.Mark | None, None], None]:
    try:
        async with filesystem.watch(
            session, place.path, recursive=recursive, system=place.system
        ) as changes:
            yield changes
    except Conflict as exc:
        raise BadRequest(f"{place.absolute}: it is no directory") from exc
