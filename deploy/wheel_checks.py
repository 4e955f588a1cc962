"""Says what is wrong with wheels that are about to be published: ``make check-wheels``.

Nothing is installed and nothing runs, so that a wheel for another architecture can be looked at as
well: name and metadata, what the platform tag promises, and the library's code. Needs auditwheel
and the binutils of the wheel's architecture.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from deploy.lock import ARCHITECTURES
from deploy.sbom import version_of
from deploy.wheel import ROOT, platform_tag

LIBRARY = "lanewise/native/liblanewise.so"
# What must and what must not be beside the code: the page, the model that is bundled, the library's
# declarations; how that model was made.
CONTAINED = (
    LIBRARY,
    "lanewise/native/include/lanewise.h",
    "lanewise/demo/",
    "lanewise/api/endpoints/page/",
    "lanewise/guide/",
    "lanewise/guide/decisions/index.md",
    "lanewise_quantizer/text/held_out.txt",
    "lanewise_quantizer/text/prose.txt",
)
LEFT_OUT = re.compile(r"^lanewise/demo/training/|\.pyc$|^tests/|^deploy/")
PAGE_BYTES = {"x86_64": 0x1000, "aarch64": 0x10000}  # the largest that Linux is built with
# An instruction that only the kernels of a level have, as objdump prints it.
INSTRUCTIONS = {
    "x86_64": {
        "avx2": r"\tvpmaddubsw .*%ymm",
        "avx512vnni": r"\tvpdpbusd .*%zmm",
        "avx512vbmi": r"\tvperm(?:i2|t2)?b .*%zmm",
        "amx": r"\ttdpb[us][us]d ",
    },
    "aarch64": {
        "neon": r"\tsmlal2?\t",
        "dotprod": r"\t[su]dot\tv",
        "i8mm": r"\tsmmla\tv",
        "sve": r"\t(?:smmla|sdot)\tz",
    },
}


def output_of(*command: str | Path) -> str:
    """What a command prints; CalledProcessError if it fails."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def tool_for(architecture: str, name: str) -> str:
    """A program of binutils that knows an architecture; FileNotFoundError if there is none."""
    found = shutil.which(f"{architecture}-linux-gnu-{name}")
    if found is None and architecture == platform.machine():
        found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"no {architecture}-linux-gnu-{name} to look into the library with")
    return found


def name_problems(wheel: Path) -> list[str]:
    """Whether it is called what the package and its version say, and the same inside."""
    version = version_of(ROOT / "service" / "lanewise")
    names = {f"lanewise-{version}-py3-none-{platform_tag(a)}.whl": a for a in ARCHITECTURES}
    if wheel.name not in names:
        return [f"should be called {' or '.join(names)}"]
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"lanewise-{version}.dist-info/WHEEL").decode()
    tag = f"py3-none-{platform_tag(names[wheel.name])}"
    return [] if re.findall(r"^Tag: (.*)$", text, re.M) == [tag] else [f"WHEEL does not say {tag}"]


def content_problems(names: Sequence[str]) -> list[str]:
    """What is missing, or should not be there."""
    missing = [one for one in CONTAINED if not any(name.startswith(one) for name in names)]
    libraries = [name for name in names if ".so" in name and name != LIBRARY]
    unwanted = [name for name in names if LEFT_OUT.search(name)] + libraries
    return [f"has no {one}" for one in missing] + [f"has {one}" for one in unwanted]


def metadata_problems(metadata: bytes) -> list[str]:
    """What an index would refuse."""
    from packaging.metadata import Metadata

    try:
        found = Metadata.from_email(metadata, validate=True)
    except ExceptionGroup as error:
        return [str(one) for one in error.exceptions]
    problems = []
    if found.description_content_type != "text/markdown" or not found.description:
        problems.append("the description is not README.md")
    asked = " ".join(str(need.marker) for need in found.requires_dist or () if need.marker)
    extras = [extra for extra in found.provides_extra or () if f'"{extra}"' not in asked]
    return problems + [f"the extra {extra} brings nothing" for extra in extras]


def library_problems(library: Path) -> list[str]:
    """Search paths, relocations in code, a stack that can run, relocated tables left writable."""
    dynamic = output_of("readelf", "--wide", "--dynamic", library)
    segments = output_of("readelf", "--wide", "--program-headers", library)
    problems = [f"has {one}" for one in ("RPATH", "RUNPATH", "TEXTREL") if f"({one})" in dynamic]
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    if foreign := {one for one in needed if not re.match(r"lib(c|m|pthread)\.so|ld-linux", one)}:
        problems.append(f"needs {', '.join(sorted(foreign))}")
    stack = re.search(r"GNU_STACK.* ([RWE ]{3}) ", segments)
    if stack is None or "E" in stack[1]:
        problems.append("asks for an executable stack")
    if "GNU_RELRO" not in segments:
        problems.append("has no read-only relocations")
    return problems


def page_problems(library: Path, architecture: str) -> list[str]:
    """Whether it can be mapped where pages are as large as the architecture's can be."""
    segments = output_of("readelf", "--wide", "--program-headers", library)
    aligned = min(int(one, 16) for one in re.findall(r"^ +LOAD .* (0x[0-9a-f]+)$", segments, re.M))
    largest = PAGE_BYTES[architecture]
    return [] if aligned >= largest else [f"cannot be mapped with pages of {largest} bytes"]


def level_problems(library: Path, architecture: str) -> list[str]:
    """Levels whose instructions nothing in the library uses."""
    listing = output_of(tool_for(architecture, "objdump"), "--disassemble", "-w", library)
    levels = INSTRUCTIONS[architecture].items()
    return [f"has no code of level {one}" for one, shape in levels if not re.search(shape, listing)]


def tag_problems(wheel: Path, architecture: str) -> list[str]:
    """Whether symbols and libraries keep what the platform tag promises."""
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    report = json.loads(output_of(*command))
    found = tuple(map(int, re.findall(r"manylinux_(\d+)_(\d+)_", report["overall_tag"])[0]))
    tag = platform_tag(architecture)
    if found > tuple(map(int, re.findall(r"\d+", tag)[:2])):
        return [f"{tag} is not true: {report['overall_tag']}, {report['versioned_symbols']}"]
    return []


def problems(wheel: Path) -> list[str]:
    """Everything that is wrong with a wheel."""
    found = name_problems(wheel)
    if found:
        return found
    architecture = next(one for one in ARCHITECTURES if wheel.name.endswith(f"{one}.whl"))
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = archive.namelist()
        found += content_problems(names)
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        found += metadata_problems(archive.read(metadata))
        if LIBRARY in names:
            library = Path(archive.extract(LIBRARY, folder))
            found += library_problems(library) + page_problems(library, architecture)
            found += level_problems(library, architecture)
            found += tag_problems(wheel, architecture)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each problem, and how many bytes each wheel has; 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, nargs="+")
    failed = 0
    for wheel in parser.parse_args(arguments).wheel:
        found = problems(wheel)
        failed += bool(found)
        print(f"{wheel.name}: {'; '.join(found) or f'ok, {wheel.stat().st_size / 1e6:.1f} MB'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
