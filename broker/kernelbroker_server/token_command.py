"""`kernelbroker-server token create|list|revoke` changes the token file, whether or not a broker runs."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from .config import ConfigError, Settings
from .tenants.tokens import TokenFile

_DAY_S = 86_400


def add_token_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `token` to the parser."""
    token = commands.add_parser("token", help="create, list and revoke tokens")
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a token and print it; it cannot be shown again"
    )
    create.add_argument("tenant", help="the tenant that the token belongs to")
    create.add_argument(
        "--days", type=float, help="days until it expires; it never expires if left out"
    )
    create.add_argument("--name", default="", help="who has it, for those who see what it did")
    create.add_argument(
        "--operator",
        action="store_true",
        help="it may use the calls for operators, such as the audit log",
    )
    actions.add_parser("list", help="list all tokens, without their secrets")
    revoke = actions.add_parser("revoke", help="revoke a token; takes effect at once")
    revoke.add_argument(
        "id", help="its id in `token list`, which is the part between the two underscores"
    )


def token_command(options: argparse.Namespace, settings: Settings) -> int:
    """Run the command.

    Raises:
        ConfigError, TokenError
    """
    if settings.tokens_file is None:
        raise ConfigError(
            "tokens_file is not set: set it in the configuration file, or set KERNELBROKER_TOKENS_FILE"
        )
    file = TokenFile(settings.tokens_file)
    match options.action:
        case "create":
            if options.days is not None and not 0 < options.days < 36_500:
                raise ConfigError("--days must be more than 0 and less than 36500")
            lifetime = options.days and options.days * _DAY_S
            print(
                file.create(options.tenant, lifetime, name=options.name, operator=options.operator)
            )
        case "revoke":
            file.revoke(options.id)
        case "list":
            for record in file.list():
                until = "expired" if record.expired else _date(record.expires_at)
                more = [record.name, "operator" if record.operator else ""]
                line = f"{record.id}  {_date(record.created_at)}  {until:10}  {record.tenant}"
                print("  ".join([line, *filter(None, more)]))
    return 0


def _date(timestamp: float | None) -> str:
    return "never" if timestamp is None else f"{datetime.fromtimestamp(timestamp, UTC):%Y-%m-%d}"
