"""How the broker is: the pool, and whether it is alive and isolates."""

from __future__ import annotations

from dataclasses import asdict

from .base import ApiHandler, Authenticated


class PoolStatus(ApiHandler):
    """GET /api/v1/pool/status."""

    async def get(self) -> None:
        self.reply(asdict(self.service.pool.status()))


class Health(Authenticated):
    """GET /health, without a token: alive, with the pool and what isolation is in force."""

    def authenticate(self) -> None:
        pass

    async def get(self) -> None:
        service = self.service
        self.reply(
            {
                "status": "ok",
                "version": service.version,
                "isolation": service.backend.isolation,
                "backend": service.backend.describe(),
                "pool": asdict(service.pool.status()),
                "last_launch_failure": service.pool.last_failure or None,
                "sessions": len(service.registry.list()),
            }
        )
