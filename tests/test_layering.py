"""Imports and includes go down only, in Python and in C."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "service" / "lanewise"
NATIVE = ROOT / "native" / "src"

# What each part of the package may import of the others. Modules at the top (cli, settings, …) are
# parts of their own, called by their name.
PARTS_BELOW = {
    "api": {"text", "engine", "settings"},
    "text": set(),
    "engine": {"runtime"},
    "runtime": {"loading"},
    "loading": set(),
    "demo": set(),
}
# Shared by files and tokenizers: a plain dataclass that one fills in and the other reads.
ALLOWED_MODULES = {("text", "lanewise.loading.checkpoint")}

# A C file includes its own layer and those below it.
LAYERS = [
    {"status", "memory", "cpu", "thread_pool"},
    {"kernels"},
    {"model", "kv_cache", "ops"},
    {"graph"},
]
EVERYWHERE = {"lanewise"}


def imports(path: Path) -> Iterator[str]:
    """Every ``lanewise…`` module that a Python file imports, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module: str) -> str | None:
    """``engine`` for ``lanewise.engine.scheduler``; None outside the package."""
    names = module.split(".")
    return names[1] if names[0] == "lanewise" and len(names) > 1 else None


PYTHON_FILES = [path for part in PARTS_BELOW for path in sorted((PACKAGE / part).rglob("*.py"))]


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_python_imports_go_down(path):
    part = path.relative_to(PACKAGE).parts[0]
    for module in imports(path):
        target = part_of(module)
        if target is None or target == part or target.startswith("__"):
            continue
        allowed = target in PARTS_BELOW[part] or any(
            part == who and module.startswith(what) for who, what in ALLOWED_MODULES
        )
        assert allowed, f"lanewise.{part} may not import {module}"


def test_only_the_command_line_imports_the_api():
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).parts[0]
        if part not in ("api", "cli.py"):
            assert "api" not in map(part_of, imports(path)), f"{path} imports lanewise.api"


def test_cffi_stays_inside_the_runtime():
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] != "runtime":
            found = [module for module in imports(path) if module.split(".")[0] == "cffi"]
            assert not found, f"{path} imports cffi"


def test_the_quantizer_does_not_import_the_server():
    for path in sorted((ROOT / "quantizer").rglob("*.py")):
        found = {part_of(module) for module in imports(path)} - {None, "loading"}
        assert not found, f"{path} imports {found}"


INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
C_FILES = sorted(path for path in NATIVE.rglob("*") if path.suffix in (".c", ".h", ".inc"))


def layer_of(name: str) -> int | None:
    """The index in LAYERS of a path below native/src; None for what stands above them all."""
    head = Path(name).parts[0].split(".")[0]
    return next((i for i, layer in enumerate(LAYERS) if head in layer), None)


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: str(path.relative_to(NATIVE)))
def test_c_includes_go_down(path):
    layer = layer_of(str(path.relative_to(NATIVE)))
    if layer is None:
        return
    for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
        if name.split(".")[0] in EVERYWHERE:
            continue
        target = layer_of(name)
        assert target is not None, f"{name}: tests/test_layering.py does not know this layer"
        assert target <= layer, f"{path.relative_to(ROOT)} may not include {name}"


def test_kernels_of_one_level_do_not_include_those_of_another():
    levels = {path.name for path in (NATIVE / "kernels").iterdir() if path.is_dir()}
    assert "scalar" in levels
    for level in levels:
        for path in (NATIVE / "kernels" / level).iterdir():
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                others = set(Path(name).parts) & levels - {level}
                assert not others, f"{path.relative_to(ROOT)} includes {name}"
