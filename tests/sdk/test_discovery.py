"""How the client finds a broker, and which runtime files it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from kernelbroker import ConnectionFailed, discovery
from kernelbroker.protocol.runtime_file import runtime_file

LEFT = {"url": "http://127.0.0.1:4321", "token": "secret", "pid": 1}


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "run" / "broker.json"
    path.parent.mkdir(mode=0o700)
    path.write_text(json.dumps(LEFT))
    path.chmod(0o600)
    return path


def find(file, url=None, token=None, **environ):
    return discovery.find(url, token, {"KERNELBROKER_RUNTIME_FILE": str(file), **environ})


def test_arguments_come_before_environment_and_runtime_file(file):
    """The argument is used first, then the environment, then the runtime file; each has its source."""
    environ = {"KERNELBROKER_URL": "http://env:1/", "KERNELBROKER_TOKEN": "e"}
    given = find(file, "https://given:2/", "g", **environ)
    assert (given.url, given.token, given.source) == ("https://given:2", "g", "the argument")
    assert given.websocket_url == "wss://given:2/api/v1/ws"
    from_env = find(file, **environ)
    assert (from_env.url, from_env.token) == ("http://env:1", "e")
    assert (from_env.source, from_env.token_source) == ("KERNELBROKER_URL", "KERNELBROKER_TOKEN")
    found = find(file)
    assert (found.url, found.token, found.source) == (LEFT["url"], "secret", str(file))


def test_the_default_address_has_no_token(tmp_path):
    """Without any setting the default address is used, without a token."""
    address = find(tmp_path / "none" / "broker.json")
    assert (address.url, address.token) == ("http://127.0.0.1:8720", None)


def test_the_files_token_goes_to_the_files_address_only(file):
    """The token of the runtime file is sent only to the address in that file."""
    assert find(file, "http://elsewhere:1").token is None
    assert find(file, LEFT["url"] + "/").token == "secret"
    assert find(file, KERNELBROKER_TOKEN="mine").token == "mine"


def test_the_token_is_in_no_repr(file):
    """The repr does not contain the token."""
    assert "secret" not in repr(find(file))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(file, mode):
    """Only the owner may have access to the file."""
    file.chmod(mode)
    with pytest.raises(ConnectionFailed, match="should be 0600"):
        find(file)


def test_a_directory_that_others_may_write_to_is_refused(file):
    """If others can write to the directory, they could replace the file."""
    file.parent.chmod(0o777)
    with pytest.raises(ConnectionFailed, match="write to its directory"):
        find(file)


def test_a_symlink_or_a_pipe_is_refused(file, tmp_path):
    """The path must be a regular file."""
    link = file.parent / "link.json"
    link.symlink_to(file)
    with pytest.raises(ConnectionFailed, match="cannot be read"):
        find(link)
    pipe = file.parent / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(ConnectionFailed, match="not a regular file"):
        find(pipe)


def test_another_users_file_is_refused(file, monkeypatch):
    """The file must belong to the user, since code is sent to its address."""
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(ConnectionFailed, match="owns it"):
        find(file)


def test_a_damaged_file_is_an_error(file):
    """A file with invalid content is an error, and is not ignored."""
    file.write_text("{}")
    with pytest.raises(ConnectionFailed, match="damaged"):
        find(file)


@pytest.mark.parametrize("url", ["localhost:8888", "ftp://host", "http://"])
def test_an_invalid_url_is_refused(file, url):
    """An address without http or https is refused, with an example."""
    with pytest.raises(ConnectionFailed, match="not a URL like"):
        find(file, url)


def test_the_path_of_the_runtime_file():
    """The path is the configured one, or in the runtime directory, or in a private directory in /tmp."""
    assert runtime_file({"KERNELBROKER_RUNTIME_FILE": "/a", "XDG_RUNTIME_DIR": "/x"}, 7) == Path(
        "/a"
    )
    assert runtime_file({"XDG_RUNTIME_DIR": "/x"}, 7) == Path("/x/kernelbroker/broker.json")
    assert runtime_file({}, 7) == Path("/tmp/kernelbroker-7/broker.json")
