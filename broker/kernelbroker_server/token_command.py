"""`kernelbroker-server token create|list|revoke`: see to the token file, while a broker runs or not."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from .config import ConfigError, Settings
from .tenants.tokens import TokenFile

_DAY_S = 86_400


def add_token_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Let the parser know `token` and what it takes."""
    token = commands.add_parser("token", help="make, list and revoke tokens")
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a token; it is shown this once")
    create.add_argument("tenant", help="whose it is")
    create.add_argument("--days", type=float, help="how long it is good for; for ever if not said")
    actions.add_parser("list", help="show whose tokens there are, but for the secrets")
    revoke = actions.add_parser("revoke", help="make a token worthless, at once")
    revoke.add_argument("id", help="as `token list` shows it: what stands between the two _")


def token_command(options: argparse.Namespace, settings: Settings) -> int:
    """Carry out what was parsed. Raises ConfigError, TokenError."""
    if settings.tokens_file is None:
        raise ConfigError(
            "tokens_file is not set: name a file in the configuration, or by KERNELBROKER_TOKENS_FILE"
        )
    file = TokenFile(settings.tokens_file)
    match options.action:
        case "create":
            if options.days is not None and not 0 < options.days < 36_500:
                raise ConfigError("--days is more than 0, and less than a hundred years")
            print(file.create(options.tenant, options.days and options.days * _DAY_S))
        case "revoke":
            file.revoke(options.id)
        case "list":
            for record in file.list():
                until = "expired" if record.expired else _date(record.expires_at)
                print(f"{record.id}  {_date(record.created_at)}  {until:10}  {record.tenant}")
    return 0


def _date(timestamp: float | None) -> str:
    return "for ever" if timestamp is None else f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d}"
