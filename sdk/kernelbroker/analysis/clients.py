"""The sessions that analyses run in, from any client of the SDK."""

from __future__ import annotations

from typing import TypeAlias

from ..client import Broker
from ..sandbox_client import SandboxClient
from ..session import Session

Client: TypeAlias = Broker | Session | SandboxClient


class Sessions:
    """Finds the session of a call."""

    def __init__(self, client: Client) -> None:
        if not isinstance(client, Broker | Session | SandboxClient):
            raise TypeError(
                "the client is a Broker, a Session or a SandboxClient of kernelbroker (not of .sync), "
                f"not {type(client).__name__}"
            )
        self._client = client
        self._open: dict[str, Session] = {}

    async def get(self, session_id: str | None = None) -> Session:
        """Return an open session.

        Args:
            session_id: of a broker's session, which is opened if it is not open. A client with one session
                has only that one.

        Raises:
            ValueError: the client has another session.
        """
        match self._client:
            case Session() as session:
                await session.open()
            case SandboxClient() as client:
                session = await client._opened()
            case broker:
                session = self._open.get(session_id or "") or broker.session(session_id)
                await session.open()
                self._open[session.session_id] = session
                return session
        if session_id not in (None, session.session_id):
            raise ValueError(f"this client has only the session {session.session_id}")
        return session
