"""What a client does when the broker refuses its token."""

from __future__ import annotations

import asyncio
import json
import os

import kernelbroker
import pytest
from kernelbroker import sync
from kernelbroker.protocol.runtime_file import runtime_file

from tests.support.http import TOKEN


@pytest.mark.parametrize("made", ["a client", "a session", "a synchronous client"])
async def test_another_token_is_found_after_a_refusal(connected, monkeypatch, made):
    """A client whose token came from the runtime file looks there once more when the broker refuses it."""
    monkeypatch.delenv("KERNELBROKER_TOKEN")
    path = runtime_file(os.environ, os.getuid())
    path.parent.mkdir(mode=0o700)

    def leave(token):
        path.write_text(json.dumps({"url": connected.url, "token": token}))
        path.chmod(0o600)

    def work():
        with sync.connect() as broker:
            leave(TOKEN)
            assert broker.sessions() == []
            assert [each.name for each in broker.session("s").files.list()] == []

    leave("old")
    if made == "a synchronous client":
        await asyncio.to_thread(work)
        return
    async with kernelbroker.connect() as broker:
        with pytest.raises(kernelbroker.Unauthorized, match=r"broker\.json"):
            await broker.sessions()
        leave(TOKEN)
        if made == "a client":
            assert await broker.sessions() == []
        async with broker.session() as session:
            assert await session.files.list() == []
            leave("new")  # what is accepted is not asked for again
            assert await session.files.list() == []


async def test_only_the_runtime_file_is_read_again(connected, monkeypatch):
    """A token that was given is not replaced, and a file for another address has none for this one."""
    path = runtime_file(os.environ, os.getuid())
    path.parent.mkdir(mode=0o700)
    path.write_text(json.dumps({"url": connected.url, "token": TOKEN}))
    path.chmod(0o600)
    async with kernelbroker.connect(token="wrong") as broker:
        with pytest.raises(kernelbroker.Unauthorized, match="the argument"):
            await broker.sessions()
    monkeypatch.delenv("KERNELBROKER_TOKEN")
    async with kernelbroker.connect() as broker:
        path.write_text(json.dumps({"url": "http://127.0.0.1:1", "token": TOKEN}))
        assert await broker.sessions() == []
        path.write_text(json.dumps({"url": connected.url, "token": "old"}))
    async with kernelbroker.connect() as broker:
        path.write_text(json.dumps({"url": "http://127.0.0.1:1", "token": TOKEN}))
        with pytest.raises(kernelbroker.Unauthorized):
            await broker.sessions()
