"""The lock files hold what pyproject.toml asks for, and the bill of materials what they hold."""

import json
import re

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy import lock, sbom

ONE = f"""one==1.2 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
    # via lanewise
two-more==3 \\
    --hash=sha256:{"c" * 64}
    # via one
"""


@pytest.mark.parametrize(("path", "requirements"), lock.needs().items(), ids=lambda x: str(x)[-18:])
def test_every_dependency_is_locked_with_hashes(path, requirements):
    pins = lock.locked(path.read_text())
    assert lock.unsatisfied(requirements, pins) == []
    assert all(1 <= len(pin.hashes) <= len(lock.ARCHITECTURES) for pin in pins.values())
    assert set().union(*(pin.via for pin in pins.values())) <= {"lanewise", *pins}
    assert lock.rendered(pins) == path.read_text()


def test_a_dependency_that_is_not_locked_is_found():
    pins = lock.locked(ONE)
    assert pins["one"] == lock.Pin("one", "1.2", ("a" * 64, "b" * 64), ("lanewise",))
    assert lock.unsatisfied(["one>=1", "Two_More"], pins) == []
    assert "not fulfilled" in lock.unsatisfied(["one>=2"], pins)[0]
    assert "missing" in lock.unsatisfied(["three"], pins)[0]


def test_the_bill_of_materials_is_valid_and_complete():
    text = sbom.bill(sbom.LOCK.read_text(), "1.2.3", debian=False)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    pins = lock.locked(sbom.LOCK.read_text())
    vendored = {"markdown-it", "@highlightjs/cdn-assets", "katex", "pdfjs-dist"}
    versions = {c["name"]: c["version"] for c in bill["components"]}
    assert {name: versions[name] for name in versions.keys() - vendored} == {
        name: pin.version for name, pin in pins.items()
    }
    assert vendored < versions.keys()
    refs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    own = bill["metadata"]["component"]["bom-ref"]
    assert set(refs) == {own, *(c["bom-ref"] for c in bill["components"])}
    direct = {re.split(r"[@/]", ref)[-2] for ref in refs[own] if ref.startswith("pkg:pypi/")}
    assert len(refs[own]) == len(direct) + len(vendored)
    assert direct == {name for name, pin in pins.items() if "lanewise" in pin.via}
    assert sbom.bill(sbom.LOCK.read_text(), "1.2.3") == text


def package(folder, name: str, version: str) -> None:
    found = folder / f"{name}-{version}.dist-info"
    found.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
    (found / "METADATA").write_text("\n".join([*lines, "License-Expression: MIT", "", ""]))


def test_the_bill_of_an_image_says_what_is_installed(tmp_path):
    for name, version in (("one", "1.2"), ("Two_More", "3"), ("lanewise", "9")):
        package(tmp_path, name, version)
    text = sbom.bill(ONE, "9", installed=tmp_path)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = [c for c in json.loads(text)["components"] if c["purl"].startswith("pkg:pypi/")]
    licences = [c["licenses"] for c in found]
    assert licences == [[{"expression": "MIT"}]] * 2


def test_an_image_with_something_else_than_what_is_locked_has_no_bill(tmp_path):
    package(tmp_path, "one", "1.3")
    with pytest.raises(ValueError, match=r"one 1\.2, one 1\.3, two-more 3"):
        sbom.bill(ONE, "9", installed=tmp_path)


def test_debian_packages_have_their_urls(monkeypatch, tmp_path):
    listed = "printf 'libc6 2.36-9+deb12u10 amd64\\nlibx 1:2~rc1 amd64\\n'"
    query = tmp_path / "dpkg-query"
    query.write_text(f"#!/bin/sh\n{listed}\n")
    query.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    text = sbom.bill(ONE, "9", debian=True)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    urls = [c["purl"] for c in json.loads(text)["components"]][-2:]
    assert urls == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64",
        "pkg:deb/debian/libx@1%3A2~rc1?arch=amd64",
    ]
