"""Creates what a broker needs besides others that share its store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import state_factory
from ..adoption import Adoption
from ..backends.backend_set import BackendSet
from ..config import Settings
from ..service.tenant_service import TenantServices
from ..sessions.store import EventStore
from ..tenants.keyring import Keyring
from ..workspaces.directory_store import DirectoryStore

if TYPE_CHECKING:
    from .cluster import Cluster

STOP_S = 10.0
"""How long a broker that ends goes on passing requests on."""


def make_cluster(
    settings: Settings,
    store: EventStore,
    backends: BackendSet,
    adoption: Adoption,
    tenants: TenantServices,
    keyring: Keyring,
    workspaces: DirectoryStore,
) -> Cluster | None:
    """Return this broker among the others, not started; None if it has a store of its own."""
    if settings.store is None or settings.cluster.secret is None:
        return None
    from ..sessions.postgres_store import PostgresStore
    from .cluster import Cluster

    assert isinstance(store, PostgresStore)
    secret = settings.cluster.secret.get_secret_value()
    place, rescue = state_factory.place(backends.data_dir), workspaces.rescue
    return Cluster(secret, store, place, backends, adoption, tenants, keyring, rescue, held=STOP_S)
