"""Questions to the person behind a client, by elicitation, and to its model, by sampling.

A client of the older revisions is asked while its call runs. A client of 2026-07-28 gets an answer that
says what to ask, and calls again with the response and the sealed state that it was given.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
from kernelbroker.protocol.codec import decode_json, encode
from kernelbroker.protocol.errors import Conflict
from kernelbroker.protocol.visible import visible
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
    TextContent,
)

from .call import Call

_KEY = "question"
_ANSWER_S = 300.0
"""How long a person may think; as long as a confirmation can be used."""
_YES_OR_NO: dict[str, Any] = {"type": "object", "properties": {}}


class State(msgspec.Struct, kw_only=True):
    """What a client echoes with the response.

    Attributes:
        step: what was asked: whether to run code, for the answer to `input()`, or the model for code.
        confirmation: of the code, for `confirm`.
        execution: that waits for input, and the `seq` of its request for it.
        cells: the executions of an analysis that have ended.
        texts: what the client's model has written for the analysis.
    """

    step: Literal["confirm", "input", "sample"]
    session: str
    confirmation: str = ""
    execution: str = ""
    seq: int = 0
    cells: list[str] = []
    texts: list[str] = []


def can_ask(call: Call) -> bool:
    """Whether the client can ask its person."""
    capabilities = call.ctx.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    form, url = capabilities.elicitation.form, capabilities.elicitation.url
    if form is None and url is not None:
        return False
    return call.is_modern or call.ctx.session.can_send_request


def state_of(call: Call) -> State | None:
    """Return the state of an earlier answer that the client calls again with."""
    given = call.params.request_state
    return None if given is None else decode_json(given, State)


def response_of(call: Call) -> ElicitResult | None:
    """Return the person's response that came with the call."""
    given = (call.params.input_responses or {}).get(_KEY)
    return given if isinstance(given, ElicitResult) else None


def question(message: str, schema: dict[str, Any] | None = None) -> ElicitRequestFormParams:
    """Return a question; without a schema, it is whether to go on."""
    return ElicitRequestFormParams(message=visible(message), requested_schema=schema or _YES_OR_NO)


def later(asked: ElicitRequestFormParams, state: State) -> InputRequiredResult:
    """Return the answer that lets a client of 2026-07-28 ask, and call again."""
    return InputRequiredResult(
        input_requests={_KEY: ElicitRequest(params=asked)}, request_state=encode(state).decode()
    )


def model_later(asked: CreateMessageRequestParams, state: State) -> InputRequiredResult:
    """Return the answer that lets a client of 2026-07-28 ask its model, and call again."""
    return InputRequiredResult(
        input_requests={_KEY: CreateMessageRequest(params=asked)},
        request_state=encode(state).decode(),
    )


def with_progress(
    answer: InputRequiredResult, cells: list[str], texts: list[str]
) -> InputRequiredResult:
    """Return the answer with what an analysis has done in its state."""
    assert answer.request_state is not None
    state = decode_json(answer.request_state, State)
    state.cells, state.texts = cells, texts
    return answer.model_copy(update={"request_state": encode(state).decode()})


def sampled(call: Call) -> str:
    """Return what the client's model has written. Raises Conflict if it did not come with the call."""
    given = (call.params.input_responses or {}).get(_KEY)
    if not isinstance(given, CreateMessageResult | CreateMessageResultWithTools):
        raise Conflict("the model's response is missing; call again without requestState")
    return text_of(given)


def text_of(message: CreateMessageResult | CreateMessageResultWithTools) -> str:
    """Return the text of a model's message, without what is no text."""
    blocks = message.content if isinstance(message.content, list) else [message.content]
    return "\n".join(each.text for each in blocks if isinstance(each, TextContent))


async def now(call: Call, asked: ElicitRequestFormParams) -> ElicitResult:
    """Ask through a client of the older revisions. No response in time counts as a cancelled question."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            return await call.ctx.session.elicit_form(
                asked.message, asked.requested_schema, call.ctx.request_id
            )
    except TimeoutError:
        return ElicitResult(action="cancel")
