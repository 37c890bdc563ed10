"""Operations on the project in a sandbox: read, list, search, edit, patch, git, tests, build, commands.

They run inside the sandbox, as its user, and trust nothing in the project. Those of `READING` and
`CHANGING` run
beside the cells, in the gateway (see `operation_server`). Those of `RUNNING` run code of the project,
so they are executions, in the order of the session (see `cell`).
"""
