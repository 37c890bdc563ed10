"""The programs inside a sandbox: the gateway, the kernel, and the hooks around each cell.

Nothing here imports from the broker. The broker imports only `contract` from this package.
"""
