"""Writes what a wheel or an image is made of, as CycloneDX 1.6: ``make sbom``.

Packages, versions, hashes and who needs whom come from ``requirements.lock``; the libraries of the
page from the ``packages.json`` beside them. For an image,
``--installed`` names the folder where the packages lie: it must hold exactly those of the lock, and
adds their licences; ``--debian`` adds the distribution's packages. Needs nothing but Python: it
runs where the image is built. The same input gives the same bytes.
"""

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "service" / "lanewise"
LOCK = Path(__file__).resolve().with_name("requirements.lock")
PIN = re.compile(
    r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n    # via (.*)$", re.M
)
VENDORED = Path("api", "endpoints", "page", "vendor", "packages.json")  # in the package
MAX_LICENCE_NAME = 80  # some put the whole text there


def version_of(package: Path) -> str:
    """The version that ``__init__.py`` of a package names."""
    text = (package / "__init__.py").read_text()
    return str(re.findall(r'^__version__ = "(.+)"$', text, re.M)[0])


def components_of(lock: str) -> tuple[list[dict[str, Any]], dict[str, set[str]]]:
    """The packages of a lock file, and what each of them needs."""
    components: list[dict[str, Any]] = []
    needs: dict[str, set[str]] = {}
    for name, version, hashes, via in PIN.findall(lock):
        url = f"pkg:pypi/{name}@{version}"
        digests = re.findall(r"[0-9a-f]{64}", hashes)
        components.append(
            {
                "type": "library",
                "bom-ref": url,
                "name": name,
                "version": version,
                "purl": url,
                "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
            }
        )
        for other in via.split(", "):
            needs.setdefault(other, set()).add(url)
    return components, needs


def vendored_components(package: Path) -> list[dict[str, Any]]:
    """The libraries that the page has files of."""
    components = []
    for one in json.loads((package / VENDORED).read_text()):
        url = f"pkg:npm/{one['name'].replace('@', '%40')}@{one['version']}"
        components.append(
            {
                "type": "library",
                "bom-ref": url,
                "name": one["name"],
                "version": one["version"],
                "purl": url,
                "licenses": [{"license": {"id": one["license"]}}],
                "hashes": [{"alg": "SHA-256", "content": file["sha256"]} for file in one["files"]],
            }
        )
    return components


def add_installed(components: list[dict[str, Any]], folder: Path, own: str) -> None:
    """Licences of what is installed; ValueError if that is not what the lock says."""
    found = {}
    for distribution in importlib.metadata.distributions(path=[str(folder)]):
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        found[name] = distribution
    locked = {(component["name"], component["version"]) for component in components}
    installed = {(name, found[name].version) for name in found if name != own}
    if wrong := locked ^ installed:
        names = ", ".join(sorted({f"{name} {version}" for name, version in wrong}))
        raise ValueError(f"{folder} and the lock file do not agree: {names}")
    for component in components:
        fields = found[component["name"]].metadata.json
        named = str(fields.get("license", "")).strip()
        if expression := fields.get("license_expression"):
            component["licenses"] = [{"expression": expression}]
        elif named and len(named) <= MAX_LICENCE_NAME:
            component["licenses"] = [{"license": {"name": named}}]


def debian_components() -> list[dict[str, Any]]:
    """The distribution's packages, as dpkg lists them."""
    form = "${Package} ${Version} ${Architecture}\n"
    listed = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={form}"], check=True, capture_output=True, text=True
    ).stdout
    components = []
    for line in listed.splitlines():
        name, version, architecture = line.split()
        quoted = version.replace("+", "%2B").replace(":", "%3A")
        url = f"pkg:deb/debian/{name}@{quoted}?arch={architecture}"
        components.append(
            {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
        )
    return components


def bill(
    lock: str,
    version: str,
    installed: Path | None = None,
    debian: bool = False,
    package: Path = PACKAGE,
) -> str:
    """The bill of materials as JSON."""
    components, needs = components_of(lock)
    if installed is not None:
        add_installed(components, installed, "lanewise")
    own = f"pkg:generic/lanewise@{version}"
    vendored = vendored_components(package)
    needs[own] = needs.pop("lanewise", set()) | {one["bom-ref"] for one in vendored}
    components += vendored
    refs = {component["name"]: component["bom-ref"] for component in components}
    dependencies = [
        {"ref": ref, "dependsOn": sorted(needs.get(name, ()))}
        for name, ref in [(own, own), *refs.items()]
    ]
    application = {
        "type": "application",
        "bom-ref": own,
        "name": "lanewise",
        "version": version,
        "purl": own,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
    }
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": application},
        "components": components + (debian_components() if debian else []),
        "dependencies": dependencies,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return json.dumps({**content, "serialNumber": f"urn:uuid:{serial}"}, indent=1) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bill, or write it; 1 if what is installed is not what is locked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, metavar="FILE", help="[standard output]")
    parser.add_argument("--lock", type=Path, default=LOCK, metavar="FILE", help="[%(default)s]")
    parser.add_argument("--package", type=Path, default=PACKAGE)
    parser.add_argument("--installed", type=Path, metavar="DIR", help="site-packages of an image")
    parser.add_argument("--debian", action="store_true", help="with the distribution's packages")
    options = parser.parse_args(arguments)
    version = version_of(options.package)
    try:
        lock = options.lock.read_text()
        text = bill(lock, version, options.installed, options.debian, options.package)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
