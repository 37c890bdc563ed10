"""Port 49983 of a sandbox: E2B's environment daemon, with files and processes."""
