"""The way out of a sandbox with `network = "allowlist"`: rules without I/O, and the proxy over them."""
