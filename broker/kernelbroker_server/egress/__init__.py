"""Egress of sandboxes with `network = "allowlist"`: rules without I/O, and the proxy that applies them."""
