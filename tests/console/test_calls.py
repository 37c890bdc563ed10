"""The calls that the console needs, with valid and with invalid requests."""

from __future__ import annotations

from urllib.request import Request, urlopen

import pyarrow
import pytest

from tests.e2e.support import whole_system

from .conftest import Console
from .test_watching import RISKY, WAIT_FOR_FILE, go_on

pytestmark = whole_system


def rows(console: Console, session_id: str, query: str) -> pyarrow.Table:
    request = Request(
        f"{console.broker.url}/api/v1/sessions/{session_id}/variables/table?{query}",
        headers={"Authorization": f"Bearer {console.alice}"},
    )
    with urlopen(request) as answer:
        return pyarrow.ipc.open_stream(answer.read()).read_all()


@pytest.mark.parametrize(
    "code",
    [
        "import pandas; table = pandas.DataFrame({'n': range(1000)})",
        "import pyarrow; table = pyarrow.table({'n': range(1000)})",
        "import pyarrow; table = pyarrow.RecordBatch.from_pydict({'n': list(range(1000))})",
    ],
)
def test_some_rows_of_a_table(console: Console, code: str) -> None:
    """`offset` and `limit` choose rows; beyond the end there are none; other values are refused."""
    name = f"pages-{len(code)}"
    with console.session(name) as session:
        assert session.run(code).success
        assert rows(console, name, "offset=990&limit=5")["n"].to_pylist() == [*range(990, 995)]
        assert rows(console, name, "offset=995&limit=50")["n"].to_pylist() == [*range(995, 1000)]
        assert rows(console, name, "offset=998").num_rows == 2
        assert rows(console, name, "limit=3")["n"].to_pylist() == [0, 1, 2]
        assert rows(console, name, "offset=5000&limit=5").num_rows == 0
        assert rows(console, name, "limit=0").schema.names == ["n"]
        for query in ("offset=-1", "limit=x", "limit=1.5", f"offset={'9' * 30}"):
            path = f"/sessions/{name}/variables/table?{query}"
            status, answer = console.call("GET", path)
            assert (status, answer["error"]["code"]) == (400, "bad_request"), query


def test_completion(console: Console) -> None:
    """Names, attributes and keys are completed, by characters; invalid requests are refused."""
    with console.session("completed") as session:
        session.run("überschrift = 'x'; table = {'städte': 1}")
        path = "/sessions/completed/complete"

        def complete(code: str, cursor: int | None = None) -> tuple[list[str], int, int]:
            place = len(code) if cursor is None else cursor
            status, found = console.call("POST", path, {"code": code, "cursor_pos": place})
            assert status == 200
            return found["matches"], found["cursor_start"], found["cursor_end"]

        assert complete("'😀'; übersch") == (["überschrift"], 5, 12)
        matches, start, _ = complete("überschrift.upp")
        assert (matches, start) == (["upper"], 12)
        assert complete("überschrift.upp + 1", 15)[0] == ["upper"]
        assert complete("nothing_has_this")[0] == []
        assert complete("übersch", 10_000)[0] == ["überschrift"]
        session.run("class Slow:\n    def __dir__(self):\n        while True: pass\nslow = Slow()")
        assert complete("slow.")[0] == []
        assert session.run("überschrift").success
        for body in ({}, {"code": 1, "cursor_pos": 0}, {"code": "a", "cursor_pos": -1}, []):
            assert console.call("POST", path, body)[0] == 400
        assert console.call("POST", path, {"code": "x" * 100_001, "cursor_pos": 1})[0] == 400
        console.call("POST", "/sessions/completed/executions", {"code": WAIT_FOR_FILE})
        status, answer = console.call("POST", path, {"code": "a", "cursor_pos": 1})
        assert (status, answer["error"]["code"]) == (409, "conflict")
        go_on(console, "completed")
        stranger = {"code": "a", "cursor_pos": 1}
        assert console.call("POST", path, stranger, token=console.stranger)[0] == 404


def test_who_a_token_is(console: Console) -> None:
    """The name, the tenant and the right of the token that is sent."""
    status, found = console.call("GET", "/me", token=console.bob)
    assert status == 200
    assert (found["tenant"], found["user"], found["operator"]) == ("team", "bob", False)
    assert found["templates"] == ["default", "strict"]
    assert console.call("GET", "/me")[1]["operator"] is True
    assert console.call("GET", "/me", token="the-settings-token")[1]["operator"] is True
    assert console.call("GET", "/me", token="wrong")[0] == 401


def test_confirmations_of_others_are_not_seen(console: Console) -> None:
    """A tenant sees and answers its own confirmations; an unknown or answered one is refused."""
    asked = {"code": f"{RISKY} if False else 5"}
    status, refusal = console.call("POST", "/exec", asked)
    assert status == 409
    _, listed = console.call("GET", "/confirmations")
    (own,) = [each for each in listed["confirmations"] if each["code"] == asked["code"]]
    assert own["session_id"] is None
    assert (own["client"], own["user"], own["level"]) == ("rest", "alice", "critical")
    path = f"/confirmations/{own['confirmation_id']}"
    assert console.call("GET", "/confirmations", token=console.stranger)[1]["confirmations"] == []
    answer = {"answer": "approve"}
    assert console.call("POST", path, answer, token=console.stranger)[0] == 404
    for body in ({}, {"answer": "perhaps"}, {"answer": "approve", "more": 1}):
        assert console.call("POST", path, body)[0] == 400
    status, found = console.call("POST", path, answer, token=console.bob)
    assert (status, found["answer"]) == (200, "approve")
    started = found["execution"]["execution_id"]
    assert console.call("POST", path, answer)[0] == 409
    confirmed = {**asked, "confirm": refusal["error"]["confirmation"]}
    status, again = console.call("POST", "/executions", confirmed)
    assert (status, again["execution_id"]) == (202, started)
    _, records = console.call("GET", "/audit?event=confirmation&limit=1")
    assert (records["records"][0]["answer"], records["records"][0]["user"]) == ("approve", "bob")


def test_declined_code_has_no_valid_token_left(console: Console) -> None:
    """Code that was sent several times waits once, and a person declines it for all its tokens."""
    asked = {"code": f"{RISKY} if False else 6"}
    _, refusal = console.call("POST", "/exec", asked)
    assert console.call("POST", "/exec", asked)[0] == 409
    _, listed = console.call("GET", "/confirmations")
    waiting = [each for each in listed["confirmations"] if each["code"] == asked["code"]]
    assert len(waiting) == 1, "the same code waits once"
    console.call("POST", f"/confirmations/{waiting[0]['confirmation_id']}", {"answer": "decline"})
    confirmed = {**asked, "confirm": refusal["error"]["confirmation"]}
    status, answer = console.call("POST", "/exec", confirmed)
    assert (status, answer["error"]["code"]) == (422, "policy_refused")


def test_the_client_of_a_confirmation_may_be_first(console: Console) -> None:
    """If the client sends the code again with its token, nothing waits for people any more."""
    asked = {"code": f"{RISKY} if False else 7"}
    _, refusal = console.call("POST", "/exec", asked)
    confirmed = {**asked, "confirm": refusal["error"]["confirmation"]}
    assert console.call("POST", "/exec", confirmed)[0] == 200
    _, listed = console.call("GET", "/confirmations")
    assert asked["code"] not in [each["code"] for each in listed["confirmations"]]


def test_input_over_rest(console: Console) -> None:
    """A cell that allows it waits for `input()`, which is answered by another request."""
    with console.session("asked"):
        code = {"code": "int(input()) + 1", "execution_id": "asking", "allow_stdin": True}
        assert console.call("POST", "/sessions/asked/executions", code)[0] == 202
        status = 409
        while status == 409:  # until it waits
            status, _ = console.call("POST", "/executions/asking/stdin", {"value": "41"})
        assert status == 204
        _, found = console.call("GET", "/executions/asking/events")
        assert '"42"' in str(found).replace("'", '"')
        assert console.call("POST", "/executions/asking/stdin", {"value": "1"})[0] == 409
        assert console.call("POST", "/executions/none/stdin", {"value": "1"})[0] == 404
        assert console.call("POST", "/executions/asking/stdin", {})[0] == 400


def test_origins_outlive_a_session(console: Console) -> None:
    """Who ran what is stored with the execution, and read after the end of its session."""
    with console.session("stored") as session:
        session.run("1")
        console.call("POST", "/sessions/stored/exec", {"code": "2"}, token=console.bob)
    _, listed = console.call("GET", "/sessions/stored/executions")
    found = [(each["client"], each["user"]) for each in listed["executions"]]
    assert found == [("sdk", "alice"), ("rest", "bob")]
