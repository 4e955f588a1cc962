"""Writes the lock files of the image, or says where they are no longer true: ``make lock``.

``requirements.lock`` has what the server needs at run time, ``build.lock`` what builds its wheel,
each with the hashes of the wheels for both architectures, in the format of ``pip install
--require-hashes``. pip itself resolves them, as if it ran in the image: markers are those of the
Python that runs this, which therefore must be the image's.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
PYTHON = (3, 11)  # of the base image
# The oldest C library that wheels run with: 2.34 is the newest that our own symbols ask for, 2.31
# that of what we depend on (llguidance). The base image has 2.36.
GLIBC = 34
ARCHITECTURES = ("x86_64", "aarch64")
EXTRAS = ("object-store", "otel", "receipts", "vision")  # that the image has
# scikit-build-core asks for these where a machine has none of its own.
BUILD_TOOLS = ("cmake>=3.20,<5", "ninja>=1.11,<2")
HEAD = "# Written by `make lock`, for Python {}.{} on linux/amd64 and linux/arm64.\n"


Item = dict[str, Any]  # of pip's report


@dataclass(frozen=True, slots=True)
class Pin:
    """One package: its version, the SHA-256 of its wheels, and which packages asked for it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]


def canonical(name: str) -> str:
    """A package's name as indexes normalize it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The canonical name of the package that a requirement is about."""
    return canonical(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])


def locked(text: str) -> dict[str, Pin]:
    """The pins of a lock file, by canonical name."""
    pins = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", text):
        if found := re.match(r"([A-Za-z0-9._-]+)==(\S+)", block):
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
            via = tuple(re.findall(r"# via (.*)", block)[0].split(", "))
            pins[canonical(found[1])] = Pin(canonical(found[1]), found[2], hashes, via)
    return pins


def rendered(pins: Mapping[str, Pin]) -> str:
    """The text of a lock file."""
    lines = [HEAD.format(*PYTHON)]
    for name in sorted(pins):
        pin = pins[name]
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in pin.hashes)
        lines.append(f"{name}=={pin.version}{hashes}\n    # via {', '.join(pin.via)}\n")
    return "".join(lines)


def needs() -> dict[Path, list[str]]:
    """What each lock file must satisfy, by pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = [*project["build-system"]["requires"], *BUILD_TOOLS]
    extras = project["project"]["optional-dependencies"]
    return {
        DEPLOY / "requirements.lock": [
            *project["project"]["dependencies"],
            *(need for extra in EXTRAS for need in extras[extra]),
        ],
        DEPLOY / "build.lock": build,
    }


def platform_options(architecture: str) -> list[str]:
    """Options with which pip takes the image's wheels of an architecture, whatever it runs on."""
    platforms = [f"manylinux_2_{minor}_{architecture}" for minor in range(GLIBC, 16, -1)]
    platforms += [f"manylinux2014_{architecture}"]
    options = ["--only-binary", ":all:", "--implementation", "cp"]
    options += ["--python-version", ".".join(map(str, PYTHON))]
    return options + [word for name in platforms for word in ("--platform", name)]


def _pip(architecture: str, arguments: Sequence[str]) -> dict[str, Item]:
    """What pip would install on an architecture of the image: the items of its report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        command += ["--dry-run", "--ignore-installed", "--target", folder, "--report", str(report)]
        command += platform_options(architecture)
        # Only what everybody can get is locked: no wheels of this machine.
        environment = os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}
        done = subprocess.run([*command, *arguments], env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"pip cannot resolve {' '.join(arguments)} on {architecture}")
        items = json.loads(report.read_text())["install"]
    return {canonical(item["metadata"]["name"]): item for item in items}


def resolve(requirements: Sequence[str]) -> dict[str, Pin]:
    """The newest versions that fit, the same on every architecture."""
    first, *others = ARCHITECTURES
    found = [_pip(first, requirements)]
    exact = [f"{name}=={item['metadata']['version']}" for name, item in found[0].items()]
    found += [_pip(architecture, [*requirements, *exact]) for architecture in others]
    direct = {name_of(need) for need in requirements}
    pins = {}
    for name, item in found[0].items():
        hashes = {one[name]["download_info"]["archive_info"]["hashes"]["sha256"] for one in found}
        via = {"lanewise"} if name in direct else set()
        via |= {other for other, theirs in found[0].items() if name in _needed_by(theirs, found[0])}
        pins[name] = Pin(
            name, item["metadata"]["version"], tuple(sorted(hashes)), tuple(sorted(via))
        )
    return pins


def _needed_by(item: Item, known: Mapping[str, Item]) -> set[str]:
    """The names among ``known`` that a package asks for, those of its extras excepted."""
    lines = [line for line in item["metadata"].get("requires_dist", ()) if "extra ==" not in line]
    return {name_of(line) for line in lines} & known.keys()


def check() -> list[str]:
    """What is wrong with the lock files as they are: pip must find each file by its hash."""
    problems = []
    for path, requirements in needs().items():
        pins = locked(path.read_text())
        for architecture in ARCHITECTURES:
            try:
                # With hashes pip refuses what is not pinned, and so whatever is missing.
                found = _pip(architecture, ["--require-hashes", "--requirement", str(path)])
            except SystemExit as error:
                problems.append(f"{path.name}: {error}")
                continue
            if unused := pins.keys() - found.keys():
                problems.append(f"{path.name}: nobody needs {', '.join(sorted(unused))}")
        problems += [f"{path.name}: {problem}" for problem in unsatisfied(requirements, pins)]
    return problems


def unsatisfied(requirements: Sequence[str], pins: Mapping[str, Pin]) -> list[str]:
    """Which requirements no pin fulfils."""
    from packaging.requirements import Requirement

    problems = []
    for need in map(Requirement, requirements):
        pin = pins.get(canonical(need.name))
        if pin is None:
            problems.append(f"{need} is missing")
        elif not need.specifier.contains(pin.version, prereleases=True):
            problems.append(f"{need} is not fulfilled by {pin.version}")
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files, or check them; 1 if one is not true."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; 1 if one is not true")
    options = parser.parse_args(arguments)
    if sys.version_info[:2] != PYTHON:
        print("locks are those of Python {}.{}, which this is not".format(*PYTHON), file=sys.stderr)
        return 0 if options.check else 2
    if options.check:
        problems = check()
        for problem in problems:
            print(f"{problem}; `make lock` writes it anew", file=sys.stderr)
        return 1 if problems else 0
    for path, requirements in needs().items():
        path.write_text(rendered(resolve(requirements)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
