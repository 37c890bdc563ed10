"""E2B's protocol: their clients, unmodified, use sessions of this broker as their sandboxes."""
