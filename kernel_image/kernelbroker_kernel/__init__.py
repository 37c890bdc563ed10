"""What lives inside a sandbox: the gateway, the kernel, and the helper loaded into it.

Nothing here imports anything of the broker's. Of this package the broker imports `contract` alone.
"""
