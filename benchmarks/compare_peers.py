"""Compares kernelbroker with other projects in one run, and writes JSON, Markdown and a plot.

Each peer runs in an environment of its own, which is made on the first run (`--environments`), in the
mode that its README recommends. All peers take turns in each measurement. Probes then try what each
peer keeps. The results go to `--output`. `--render FILE` only writes the tables and the plot again.

    .venv/bin/python benchmarks/compare_peers.py --only "kernelbroker;jupyter_client" --rounds 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from peers import markdown, plot
from peers.environments import DEFAULT_DIRECTORY, PEERS, Peer
from peers.measures import MEASURES
from peers.runner import run

RESULTS = Path(__file__).with_name("results")


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",") if each]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = list(dict.fromkeys(each.command for each in MEASURES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument(
        "--only", help="names of peers, with `;` between; see peers/environments.py"
    )
    parser.add_argument("--measures", default=",".join(commands))
    parser.add_argument(
        "--sessions", type=numbers, default=[1, 10, 50], help="sessions held at once"
    )
    parser.add_argument("--no-probes", action="store_true")
    parser.add_argument("--environments", type=Path, default=DEFAULT_DIRECTORY, metavar="DIR")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="DIR")
    parser.add_argument("--render", type=Path, metavar="FILE", help="measure nothing")
    return parser.parse_args()


def chosen(only: str | None) -> list[Peer]:
    if only is None:
        return list(PEERS)
    names = [name.strip() for name in only.split(";")]
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        known = "; ".join(peer.name for peer in PEERS)
        sys.exit(f"unknown peers: {', '.join(unknown)}. Known: {known}")
    return [peer for peer in PEERS if peer.name in names]


def write(results: dict[str, object], output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "peers.json").write_text(json.dumps(results, indent=1) + "\n")
    (output / "peers.md").write_text(markdown.render(results))
    (output / "peers.svg").write_text(plot.render(results))
    (output / "headline.svg").write_text(plot.headline(results))
    print(f"written: {output}/peers.json, peers.md, peers.svg, headline.svg")


def main() -> int:
    options = arguments()
    if options.render:
        write(json.loads(options.render.read_text()), options.render.parent)
        return 0
    os.environ.pop("PYTHONPATH", None)
    results = asyncio.run(
        run(
            chosen(options.only),
            options.environments,
            rounds=options.rounds,
            names=options.measures.split(","),
            sessions=options.sessions,
            probes=not options.no_probes,
        )
    )
    write(results, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
