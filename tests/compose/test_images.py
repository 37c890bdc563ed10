"""The list of images and extras: what follows from it is complete, and built images are what it says."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from kernelbroker_kernel.contract import CONTRACT, CONTRACT_LABEL
from kernelbroker_server.backends.image_names import qualify, repository, tag
from kernelbroker_server.config import Settings
from kernelbroker_server.config_templates import PROFILES

from compose import images
from compose.engine_filter.__main__ import parse, policy_of
from tests.compose.support import COMPOSE, COMPOSE_2, ROOT, compose_argv, run
from tests.support.requires import CODE_IMAGE, IMAGE, engine, requires

CATALOGUE = images.load()
SANDBOXES = {image.name for image in CATALOGUE.sandboxes()}
DIRECTORIES = ("--data-dir=/srv/kb/data", "--run-dir=/srv/kb/run")
OF_A_REGISTRY = {"IMAGE_PREFIX": "registry.example:5000/team/", "IMAGE_VERSION": "1.2"}


def services(file: Path, **environ: str) -> dict[str, Any]:
    """The services of a Compose file, with all profiles, as Compose reads it."""
    argv = [*compose_argv(), "--profile", "all", "--file", file, "config"]
    loaded: dict[str, Any] = yaml.safe_load(run(*argv, **environ))["services"]
    return loaded


@requires("compose")
@pytest.mark.parametrize("environ", [{}, OF_A_REGISTRY], ids=["plain", "registry"])
def test_compose_has_each_image(environ: dict[str, str]) -> None:
    """The Compose files have the images with their profiles; prefix and version name them all."""
    found = services(COMPOSE / "compose.yaml", **environ)
    prefix, version = environ.get("IMAGE_PREFIX", ""), environ.get("IMAGE_VERSION", "latest")
    of_sandboxes = {
        service["image"]: service["profiles"]
        for name, service in found.items()
        if name.startswith("image-")
    }
    assert of_sandboxes == {
        f"{prefix}{image.name}:{version}": image.profiles for image in CATALOGUE.sandboxes()
    }
    for name in ("broker", "engine-filter"):
        assert found[name]["image"] == f"{prefix}kernelbroker-broker:{version}"
        assert found[name]["pull_policy"] == "never"
        assert "profiles" not in found[name]
    settings = found["broker"]["environment"]
    assert settings["KERNELBROKER_DOCKER__IMAGE_PREFIX"] == prefix
    (outer,) = (image for image in CATALOGUE.images.values() if image.kind == "outer")
    found = services(COMPOSE / "dind/compose.yaml", **environ)
    assert found["broker"]["image"] == f"{prefix}{outer.name}:{version}"


@requires("compose 2")
def test_profiles_are_those_of_the_list() -> None:
    """`--profile` of Compose takes each profile of the list, and selects its images."""
    for profile in CATALOGUE.profiles:
        argv = [*COMPOSE_2, "--profile", profile, "--file", COMPOSE / "compose.yaml"]
        named = run(*argv, "config", "--services").split()
        wanted = {f"image-{image.part}" for image in CATALOGUE.sandboxes(profile)}
        assert set(named) == wanted | {"broker", "engine-filter"}


def test_the_filter_allows_each_sandbox() -> None:
    """The engine filter allows exactly the images of sandboxes, and those that it is told of."""
    assert policy_of(parse([*DIRECTORIES, "--image="])).images == SANDBOXES
    told = ["--image=mine:1", "--image-prefix=r.example/", "--image-version=1.2"]
    allowed = policy_of(parse([*DIRECTORIES, *told])).images
    assert allowed == {"mine:1", *(f"r.example/{name}:1.2" for name in SANDBOXES)}


def test_the_brokers_images_are_in_the_list() -> None:
    """Each image that the broker names by default is one of the list, and gets prefix and version."""
    plain = Settings(backend="docker", templates={name: {"profile": name} for name in PROFILES})
    used = {plain.docker.full_name(plain.docker.image)}
    used |= {image for t in plain.templates.values() if (image := plain.image_of(t))}
    assert used <= SANDBOXES
    assert used == {"kernelbroker-kernel", "kernelbroker-browser", "kernelbroker-code"}
    named = Settings(
        backend="docker",
        docker={"image_prefix": "r.example/", "image_version": "1.2"},
        templates={"a": {"profile": "code"}, "b": {"image": "other:3"}, "c": {"browser": True}},
    )
    of = {name: named.image_of(template) for name, template in named.templates.items()}
    assert named.docker.full_name(named.docker.image) == "r.example/kernelbroker-kernel:1.2"
    assert of["a"] == "r.example/kernelbroker-code:1.2"
    assert of["b"] == "other:3"
    assert of["c"] == "r.example/kernelbroker-browser:1.2"
    with pytest.raises(ValueError, match="image_prefix"):
        Settings(docker={"image_prefix": "r.example"})


@pytest.mark.parametrize(
    ("name", "of", "tagged"),
    [
        ("a", "a", "latest"),
        ("a:1", "a", "1"),
        ("r:5000/a", "r:5000/a", "latest"),
        ("r:5000/b/a:1@sha256:12", "r:5000/b/a", "1"),
    ],
)
def test_names_of_images(name: str, of: str, tagged: str) -> None:
    """A name has a repository and a tag; names of others are not changed."""
    assert (repository(name), tag(name)) == (of, tagged)
    assert qualify(name, "r/", "2") == name


def test_the_list_has_each_extra() -> None:
    """The list has the extras of the three distributions; `server` has those that it says."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    found = {("kernelbroker", name) for name in config["options.extras_require"]}
    for directory in ("broker", "kernel_image"):
        project = tomllib.loads((ROOT / directory / "pyproject.toml").read_text())["project"]
        found |= {(project["name"], name) for name in project["optional-dependencies"]}
    assert {(extra.distribution, extra.name) for extra in CATALOGUE.extras} == found
    server = {
        each.name
        for each in CATALOGUE.extras
        if each.server and each.distribution == "kernelbroker-server"
    }
    (requirement,) = config["options.extras_require"]["server"].split()
    assert set(re.findall(r"[a-z0-9]+", requirement.partition("[")[2].partition("]")[0])) == server
    assert set(run("python3", "compose/images.py", "extras").split()) == server


def test_makefile_knows_the_variables() -> None:
    """make passes on the variable of each image, and has a target for each of them."""
    makefile = (ROOT / "Makefile").read_text()
    exported = set(
        re.findall(r"\w+", " ".join(re.findall(r"^export (.*)$", makefile, re.MULTILINE)))
    )
    assert {image.variable for image in CATALOGUE.images.values()} <= exported
    named = run("make", "--no-print-directory", "--dry-run", "images", "PROFILE=code")
    assert "compose/images.py build --profile code" in named


def test_each_containerfile() -> None:
    """Each image's file exists, takes its base, and installs from indexes only what has a hash."""
    for image in CATALOGUE.images.values():
        text = (ROOT / image.containerfile).read_text()
        assert "ARG BASE_IMAGE=" in text
        assert "sbom.py" in text
        for command in re.findall(r"pip install(?:.*\\\n)*.*", text):
            assert "--require-hashes" in command or "--no-index" in command, command
    for base in CATALOGUE.bases.values():
        assert re.search(r"@sha256:[0-9a-f]{64}$", base)
    assert f"LABEL {CONTRACT_LABEL}={CONTRACT}\n" in (ROOT / "kernel_image/Dockerfile").read_text()


def test_each_image_is_built_after_its_base() -> None:
    """The builds are in order, and each names its base with registry and version, and its labels."""
    done: set[str] = set()
    for image in CATALOGUE.images.values():
        command = images.build_command(CATALOGUE, image, OF_A_REGISTRY)
        (base,) = (word for word in command if word.startswith("BASE_IMAGE="))
        name = base.removeprefix("BASE_IMAGE=")
        assert name in done or name in CATALOGUE.bases.values()
        done.add(command[command.index("-t") + 1])
        assert f"org.opencontainers.image.title={image.name}" in command
    assert done == {f"registry.example:5000/team/{name}:1.2" for name in CATALOGUE.images}


def test_values_of_a_chart() -> None:
    """The values for a chart have each image by its full name; charts of this tree have those of `core`."""
    named = images.values(CATALOGUE, OF_A_REGISTRY)
    assert len(named) == len(CATALOGUE.images)
    assert named["kernel"] == "registry.example:5000/team/kernelbroker-kernel:1.2"
    plain, core = images.values(CATALOGUE, {}), images.values(CATALOGUE, {}, "core")
    for file in COMPOSE.glob("**/values.yaml"):
        found = yaml.safe_load(file.read_text())["images"]
        assert core.items() <= found.items(), file
        assert {name: found[name] for name in found if name in plain}.items() <= plain.items()


@pytest.mark.parametrize("arguments", [["build", "nothing"], ["names", "--profile", "most"]])
def test_unknown_names_are_refused(arguments: list[str]) -> None:
    """A name that is not in the list is an error that names the list or its profiles."""
    said = run("python3", "compose/images.py", *arguments, fails=True)
    assert "nothing in" in said or "choose one of core" in said


def test_a_prefix_ends_with_a_slash() -> None:
    """IMAGE_PREFIX without a slash at its end is refused, since Compose would glue it to the names."""
    said = run("python3", "compose/images.py", "names", IMAGE_PREFIX="registry.example", fails=True)
    assert "end with /" in said


def test_parts_of_the_archive() -> None:
    """`--with` takes profiles and parts; `all` has each image of sandboxes, and nothing has `core`."""
    loader = SourceFileLoader("bundle", str(COMPOSE / "offline/bundle"))
    spec = importlib.util.spec_from_loader("bundle", loader)
    assert spec is not None
    bundle = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        loader.exec_module(bundle)
    own = bundle.catalogue_of.load()
    for parts, wanted in (
        ("", {"kernel"}),
        ("browser,code", {"kernel", "browser", "code"}),
        ("claude-code", {"kernel", "claude-code"}),
        ("all", {image.part for image in CATALOGUE.sandboxes()}),
    ):
        assert {image.part for image in bundle.chosen(own, parts)} == wanted
    with pytest.raises(bundle.BundleError, match="no part 'cobol': choose of all, browser"):
        bundle.chosen(own, "cobol")
    assert set(bundle.TEMPLATES) <= {*PROFILES, *own.profiles}


def test_the_page_is_up_to_date() -> None:
    """docs/images.md is made from the list."""
    assert images.page(CATALOGUE) == images.PAGE.read_text(), "run: make docs"


def test_locks_agree() -> None:
    """What is pinned has hashes, and the archive's wheels are of the versions in the broker's image."""
    pinned = {}
    for name in ("requirements.txt", "offline/requirements.txt"):
        text = (COMPOSE / name).read_text()
        found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)[^\n]*\\\n    --hash", text, re.MULTILINE)
        assert len(found) == len(re.findall(r"^[A-Za-z0-9]", text, re.MULTILINE))
        pinned[name] = dict(found)
        extras = "extras" if name == "requirements.txt" else "offline-extras"
        wanted = run("python3", "compose/images.py", extras).split()
        assert set(re.findall(r"--extra (\w+)", text.splitlines()[1])) == set(wanted), (
            "run: make lock"
        )
    image, archive = pinned.values()
    shared = {name: version for name, version in image.items() if name != "setuptools"}
    assert shared.items() <= archive.items()


# Built images

BUILT = [
    pytest.param("kernelbroker-kernel", IMAGE, id="kernel"),
    pytest.param("kernelbroker-code", CODE_IMAGE, id="code"),
    pytest.param("kernelbroker-broker", None, id="broker"),
]


@pytest.mark.sandbox
@requires("docker")
@requires("the image for projects")
@pytest.mark.parametrize(("name", "built"), BUILT)
def test_a_built_image(name: str, built: str | None, request: pytest.FixtureRequest) -> None:
    """It has the standard labels, a valid list of its content, and about the size that is told."""
    built = built or request.getfixturevalue("broker_image")
    with engine() as api:
        described = api.inspect_image(built)
    labels, image = described["Config"]["Labels"], CATALOGUE.images[name]
    assert labels["org.opencontainers.image.title"] == name
    assert labels["org.opencontainers.image.version"] == images.version()
    assert labels.get(CONTRACT_LABEL) == (CONTRACT if image.kind == "sandbox" else None)
    assert image.megabytes is not None
    assert described["Size"] / 10**6 == pytest.approx(image.megabytes, rel=0.2)
    path = labels["org.kernelbroker.sbom"]
    argv = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "cat", built, path]
    sbom = run(*argv)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom) is None
    purls = {each["purl"].partition("@")[0] for each in json.loads(sbom)["components"]}
    wanted = {"pkg:pypi/tornado", "pkg:deb/debian/libc6"}
    if name == "kernelbroker-code":
        wanted |= {"pkg:deb/debian/git", "pkg:npm/npm"}
    assert wanted <= purls
    assert json.loads(sbom)["metadata"]["component"]["name"] == name
