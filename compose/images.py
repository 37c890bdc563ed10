"""The images and extras of `images.toml`: names, builds, and what is written from the list.

    python3 compose/images.py build [NAME...]       the images, or those of --profile, in their order
    python3 compose/images.py names                 their names with IMAGE_PREFIX and IMAGE_VERSION
    python3 compose/images.py extras                the extras of the broker in its image
    python3 compose/images.py offline-extras        the extras whose wheels are in the archives
    python3 compose/images.py values                the images for a Helm chart, as JSON
    python3 compose/images.py docs                  docs/images.md

Standard library only: `make images` needs no environment. These variables are used: IMAGE_PREFIX (a
registry, such as registry.example.org/team/), IMAGE_VERSION (the tag), BASE_IMAGE, BUILD_OPTIONS (options
of `docker build`), REVISION (a label), and the variable of each image, which names it differently.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
LIST = HERE / "images.toml"
PAGE = ROOT / "docs" / "images.md"
SBOM = "/usr/share/kernelbroker/sbom.cdx.json"
"""Where each image has the list of its content."""
COMMANDS = ("build", "names", "extras", "offline-extras", "values", "docs")
KINDS = ("sandbox", "service", "outer")


class ListError(Exception):
    """The list or a variable is wrong. The message says what to change."""


@dataclass(frozen=True, slots=True)
class Image:
    """One image. The fields are those of `images.toml`."""

    name: str
    kind: str
    profiles: Sequence[str]
    containerfile: str
    context: str
    base: str
    variable: str
    description: str
    needed_by: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    megabytes: int | None = None

    @property
    def part(self) -> str:
        """The name in values and options, such as `kernel`."""
        return self.name.removeprefix("kernelbroker-")

    def full_name(self, environ: Mapping[str, str]) -> str:
        """The name with registry and tag, which an engine knows."""
        if own := environ.get(self.variable):
            return own
        version = environ.get("IMAGE_VERSION")
        return prefix(environ) + self.name + (f":{version}" if version else "")


@dataclass(frozen=True, slots=True)
class Extra:
    """One extra of a distribution. The fields are those of `images.toml`."""

    distribution: str
    name: str
    server: bool
    offline: bool
    description: str


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The whole list."""

    profiles: Mapping[str, str]
    bases: Mapping[str, str]
    images: Mapping[str, Image]
    extras: Sequence[Extra]

    def of_profile(self, profile: str) -> list[Image]:
        """The images of a profile, in the order of their builds.

        Raises:
            ListError: there is no such profile.
        """
        if profile not in self.profiles:
            raise ListError(f"no profile {profile!r}: choose one of {', '.join(self.profiles)}")
        return [image for image in self.images.values() if profile in image.profiles]

    def base_of(self, image: Image, environ: Mapping[str, str]) -> str:
        """The name of the image that this one is built upon."""
        if image.base in self.images:
            return self.images[image.base].full_name(environ)
        return environ.get("BASE_IMAGE") or self.bases[image.base]

    def sandboxes(self, profile: str = "all") -> list[Image]:
        """The images that the broker launches."""
        return [image for image in self.of_profile(profile) if image.kind == "sandbox"]


def load(path: Path = LIST) -> Catalogue:
    """Read and check the list.

    Raises:
        ListError: it is wrong.
    """
    data = tomllib.loads(path.read_text())
    images: dict[str, Image] = {}
    for name, values in data["images"].items():
        try:
            image = Image(name=name, **values)
        except TypeError as exc:
            raise ListError(f"{path}: images.{name}: {exc}") from exc
        if image.kind not in KINDS:
            raise ListError(f"{path}: images.{name}: the kind must be one of {', '.join(KINDS)}")
        if unknown := set(image.profiles) - set(data["profiles"]):
            raise ListError(f"{path}: images.{name}: no profile {', '.join(sorted(unknown))}")
        if image.base not in images and image.base not in data["bases"]:
            raise ListError(f"{path}: images.{name}: the base {image.base} must come before it")
        images[name] = image
    extras = [Extra(**values) for values in data["extras"]]
    return Catalogue(data["profiles"], data["bases"], images, extras)


def prefix(environ: Mapping[str, str]) -> str:
    """IMAGE_PREFIX. Compose puts it before names as it is, so that it must end with a slash."""
    value = environ.get("IMAGE_PREFIX", "")
    if value and not re.fullmatch(r"[a-z0-9][a-z0-9.:_/-]*/", value):
        raise ListError(
            f"IMAGE_PREFIX is {value!r}: use a registry and a path that end with /, "
            "such as registry.example.org/team/"
        )
    return value


def version() -> str:
    """The version of this tree."""
    found = re.search(r"^version = (\S+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def labels(catalogue: Catalogue, image: Image, environ: Mapping[str, str]) -> dict[str, str]:
    """The labels of an image, with the standard names."""
    found = {
        "title": image.name,
        "description": image.description,
        "licenses": "Apache-2.0",
        "version": version(),
        "base.name": catalogue.base_of(image, environ),
    }
    if revision := environ.get("REVISION"):
        found["revision"] = revision
    standard = {f"org.opencontainers.image.{key}": value for key, value in found.items()}
    return standard | {"org.kernelbroker.sbom": SBOM}


def build_command(catalogue: Catalogue, image: Image, environ: Mapping[str, str]) -> list[str]:
    """The call of `docker build`, to be made at the top of the tree."""
    arguments = {
        "BASE_IMAGE": catalogue.base_of(image, environ),
        "NAME": image.name,
        "VERSION": version(),
        **image.arguments,
    }
    return [
        *("docker", "build", *shlex.split(environ.get("BUILD_OPTIONS", ""))),
        *(word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")),
        *(
            word
            for key, value in labels(catalogue, image, environ).items()
            for word in ("--label", f"{key}={value}")
        ),
        *("-t", image.full_name(environ), "-f", image.containerfile, image.context),
    ]


def values(
    catalogue: Catalogue, environ: Mapping[str, str], profile: str = "all"
) -> dict[str, str]:
    """The `images` of a chart's values: the full name of each, by its part."""
    tag = environ.get("IMAGE_VERSION") or "latest"
    images = catalogue.of_profile(profile)
    return {image.part: f"{prefix(environ)}{image.name}:{tag}" for image in images}


def page(catalogue: Catalogue) -> str:
    """The content of docs/images.md."""
    images = [
        f"| `{image.name}` | {image.description} | {image.needed_by} | "
        f"{', '.join(image.profiles)} | `{image.base}` | "
        f"{f'{image.megabytes} MB' if image.megabytes else 'not measured'} |"
        for image in catalogue.images.values()
    ]
    extras = [
        f"| `{extra.distribution}[{extra.name}]` | {extra.description} | "
        f"{'yes' if extra.server else 'no'} | {'yes' if extra.offline else 'no'} |"
        for extra in catalogue.extras
    ]
    profiles = [f"| `{name}` | {text} |" for name, text in catalogue.profiles.items()]
    return _PAGE.format(
        images="\n".join(images),
        extras="\n".join(extras),
        profiles="\n".join(profiles),
        bases="\n".join(f"    {name}" for name in catalogue.bases.values()),
        sbom=SBOM,
    )


_PAGE = """# Images and extras

*Made from [compose/images.toml](../compose/images.toml) by `make docs`; do not edit.*

One list names every image and every extra. `make images`, the images that the engine filter allows, the
profiles of `compose.yaml`, the offline archives and this page follow from it.

## Images

| image | is | needed by | profiles | built upon | size |
|---|---|---|---|---|---|
{images}

Sizes are uncompressed, on x86-64. An image contains those that it is built upon, whose layers the
engine keeps once.

## Profiles

| profile | for |
|---|---|
{profiles}

    make images                     # all of them; or PROFILE=core, browser, code
    docker compose --profile browser -f compose/compose.yaml config --images

## A registry of your own

`IMAGE_PREFIX` and `IMAGE_VERSION` name the images for a private registry, in `make images`, in
`compose.yaml` and, as `docker.image_prefix` and `docker.image_version`, in the broker's
[settings](configuration.md#docker):

    export IMAGE_PREFIX=registry.example.org/team/ IMAGE_VERSION=1.0.0
    make images
    python3 compose/images.py names | xargs -n 1 docker push
    IMAGE_PULL_POLICY=missing docker compose -f compose/compose.yaml up --detach

The prefix ends with a slash. By default Compose pulls nothing (`IMAGE_PULL_POLICY=never`): without a
prefix, the names would be those of strangers on a public registry.

## What is in them

Every image has the [standard
labels](https://github.com/opencontainers/image-spec/blob/main/annotations.md) and, at `{sbom}`, a list
of its content (an SBOM in the format [CycloneDX](https://cyclonedx.org)): the packages of Debian,
Python and npm with their versions.

    docker run --rm --entrypoint cat kernelbroker-kernel {sbom}

Bases are pinned by their digests, and Python's packages by hashes. `BASE_IMAGE` names another base, if
it is Debian-like and has Python 3.11 or later with its venv. The bases are:

{bases}

## Extras

| extra | for | in `kernelbroker[server]` and the broker's image | in the offline archives |
|---|---|---|---|
{extras}

The console needs no extra.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="images.py", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("image", nargs="*", help="names of images; all of the profile if none")
    parser.add_argument("--profile", default="all", help="of images.toml (all)")
    options = parser.parse_args(argv)
    try:
        catalogue = load()
        images = catalogue.of_profile(options.profile)
        if unknown := set(options.image) - set(catalogue.images):
            raise ListError(f"no image {', '.join(sorted(unknown))} in {LIST}")
        if options.image:
            images = [catalogue.images[name] for name in options.image]
        _run(options.command, catalogue, images)
    except ListError as exc:
        print(f"images.py: {exc}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as exc:
        return exc.returncode
    return 0


def _run(command: str, catalogue: Catalogue, images: Sequence[Image]) -> None:
    match command:
        case "build":
            for image in images:
                print(f"Building {image.full_name(os.environ)}", flush=True)
                subprocess.run(build_command(catalogue, image, os.environ), check=True, cwd=ROOT)
        case "names":
            print("\n".join(image.full_name(os.environ) for image in images))
        case "extras":
            found = (e for e in catalogue.extras if e.distribution == "kernelbroker-server")
            print(" ".join(extra.name for extra in found if extra.server))
        case "offline-extras":  # `server` is the broker, whose own extras are named beside it
            print(
                " ".join({e.name: e for e in catalogue.extras if e.offline and e.name != "server"})
            )
        case "values":
            print(json.dumps({"images": values(catalogue, os.environ)}, indent=2))
        case "docs":
            PAGE.write_text(page(catalogue))


if __name__ == "__main__":
    sys.exit(main())
