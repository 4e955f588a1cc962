"""One direction only: the layers of the Python packages and of the C library, and no circles."""

import ast
import re
from pathlib import Path

import pytest

from file_graphs import C_INCLUDE, c_edges, circles, python_edges, python_modules

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "service" / "lanewise"
QUANTIZER = REPOSITORY / "quantizer" / "lanewise_quantizer"
NATIVE = REPOSITORY / "native"

# What a part of the package may import besides itself. A part is a module or folder under lanewise.
PYTHON = {
    "": set(),  # lanewise/__init__.py
    "told": set(),
    "arm_parts": set(),
    "giving_way": set(),
    "settings": set(),
    "host": {"arm_parts"},
    "held": {"host"},
    "topology": {"host"},
    "demo": set(),
    "guide": set(),
    "native": set(),
    "loading": {"native", "told"},
    "text": {"loading", "told"},
    "sandbox": {"text"},
    "runtime": {"native", "loading", "host", "topology"},
    "engine": {"runtime", "giving_way"},
    "store": {"giving_way"},
    "records": set(),
    "batches": {"records"},
    "receipts": {"store", "runtime", "loading"},
    "planning": {"engine", "runtime", "loading", "host", "held"},
    "api": {
        "receipts",
        "records",
        "batches",
        "engine",
        "text",
        "sandbox",
        "settings",
        "told",
        "guide",
    },
    "commands": {"receipts", "planning", "runtime", "native", "loading", "text", "settings"}
    | {"host", "topology", "told", "store"},
    "forking": set(),
    "child": {"forking"},
    "router": {"api", "settings", "host", "told", "forking"},
    "server": {
        "forking",
        "receipts",
        "router",
        "api",
        "engine",
        "sandbox",
        "text",
        "runtime",
        "loading",
        "settings",
        "host",
        "held",
        "topology",
        "store",
        "records",
        "batches",
    },
    "cluster": {"api", "settings"},
    "__main__": {"cli"},
    "nursery": {"cli", "forking", "native", "router", "server"},
    "cli": {"settings", "host", "loading", "runtime", "commands", "server", "told"},
}
# What the quantizer's parts may import: its own, and parts or modules of lanewise. All that is in
# none of these folders describes formats, which is what the service may know of it.
QUANTIZER_PARTS = {
    "formats": {"lanewise.loading.base.blocks", "lanewise.loading.base.formats"},
    "text": set(),
    "fit": {"formats", "lanewise.loading", "lanewise.runtime"},
    "commands": {"formats", "text", "fit"}
    | {
        f"lanewise.{part}"
        for part in ("commands", "runtime", "loading", "sandbox", "text", "settings", "host")
    },
    "cli": {"lanewise.commands", "lanewise.settings"},
}
# Commands that run the engine or a template too.
PYTHON_EXTRA = {
    "commands/bench_replay.py": {"engine"},
    "commands/batch.py": {"api", "batches", "server"},
    "commands/compare_chat.py": {"sandbox"},
    "commands/doctor.py": {"engine"},
    "commands/usage.py": {"records"},
    "commands/verify.py": {"engine"},
    # Programs of their own, so that no file of a model is read by the router.
    "router/sizing.py": {"engine", "held", "loading", "planning", "runtime"},
    "router/kinds.py": {"loading"},
}
# Libraries that only some parts may import; demo/training makes the bundled model and stands alone.
OUTSIDE = {
    "cffi": {"native"},
    "fastapi": {"api"},
    "uvicorn": {"api"},
    "tokenizers": {"text", "demo"},
    "llguidance": {"text", "engine"},
    "lanewise_quantizer": {"commands", "cli"},
    "markdown_it": {"guide"},
    "matplotlib": {"commands"},
    "ray": {"cluster"},
    "python_multipart": {"api"},
}

# The same for the folders of native/src; "base" is its files in no folder, with the exceptions
# that have a row of their own and of *api.c, which may include anything.
C_LAYERS = {
    "base": {"lanewise.h"},
    "kernels": {"base"},
    "kv_cache": {"kernels", "base", "lanewise.h"},
    "ops": {"kernels", "kv_cache", "base", "lanewise.h"},
    "model": {"ops", "kernels", "base", "lanewise.h"},
    "graph": {"model", "kv_cache", "ops", "kernels", "base", "lanewise.h"},
    "kinds": {"graph", "model", "kv_cache", "ops", "kernels", "base", "lanewise.h"},
    "program": {"kinds", "graph", "model", "ops", "kernels", "base", "lanewise.h"},
    "step": {"kinds", "graph", "model", "kv_cache", "ops", "kernels", "base", "lanewise.h"},
    "limits": {"kernels", "base"},
    "quantize": {"base", "lanewise.h"},
    "tune": {"kernels", "base"},
}
# Whose inline functions a level may use: an instruction set that it contains.
C_CONTAINED = {
    "avx512vnni": {"avx2"},
    "avx512vbmi": {"avx2", "avx512vnni"},
    "amx": {"avx2", "avx512vnni", "avx512vbmi"},
    "dotprod": {"neon"},
    "i8mm": {"neon", "dotprod"},
    "sve": {"neon", "dotprod", "i8mm"},
}


def python_part(path):
    return (
        path.parts[0].removesuffix(".py") if path.name != "__init__.py" or path.parent.parts else ""
    )


def imported_modules(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            # `from lanewise import settings` imports a part, not a name of the package.
            yield from (
                (f"lanewise.{name.name}" for name in node.names if name.name != "__version__")
                if node.module == "lanewise"
                else (node.module,)
            )


def python_violations(path, source):
    """Imports of one file, its path relative to the package, that point the wrong way."""
    part = python_part(path)
    if part not in PYTHON:
        return [f"{path}: not a part of the package that has a layer"]
    allowed = PYTHON[part] | PYTHON_EXTRA.get(path.as_posix(), set()) | {part}
    found = []
    for module in imported_modules(source):
        top, _, rest = module.partition(".")
        if top == "lanewise" and rest.partition(".")[0] not in allowed:
            found.append(f"{path}: imports {module}")
        if part not in OUTSIDE.get(top, {part}):
            found.append(f"{path}: imports {module}; only {', '.join(OUTSIDE[top])} may")
        known = quantizer_part(rest) in ("formats", "text")
        if top == "lanewise_quantizer" and part != "cli" and not known:
            found.append(f"{path}: imports {module}, which is no format and no text")
    return found


def quantizer_part(module):
    """The part of a module, its name relative to the quantizer's package."""
    part = module.partition(".")[0]
    return part if part in QUANTIZER_PARTS else "formats"


def quantizer_violations(path, source):
    """Imports of one file, its path relative to the quantizer's package, that point elsewhere."""
    part = quantizer_part(".".join(path.with_suffix("").parts))
    found = []
    for module in imported_modules(source):
        top, _, rest = module.partition(".")
        target = quantizer_part(rest) if top == "lanewise_quantizer" else module
        if top == "lanewise":
            target = f"lanewise.{rest.partition('.')[0]}"
        elif top != "lanewise_quantizer":
            continue
        if not {target, module} & (QUANTIZER_PARTS[part] | {part}):
            found.append(f"{path}: imports {module}")
    return found


def c_layer(path):
    """The layer of a file below native/src, or of the text of an include."""
    if path == "lanewise.h":
        return path
    name = path.split("/")[0].partition(".")[0]
    if "/" not in path and name.endswith("api"):
        return "api"
    return name if "/" in path or name in C_LAYERS else "base"


def c_violations(path, source):
    """Includes of one file, its path relative to native/src, that point the wrong way."""
    layer = c_layer(path)
    if layer == "api":
        return []
    if layer not in C_LAYERS:
        return [f"{path}: not in a folder that has a layer"]
    found = []
    for include in C_INCLUDE.findall(source):
        beside = NATIVE / "src" / Path(path).parent / include
        is_neighbour = "/" not in include and beside.is_file()
        target = layer if is_neighbour else c_layer(include)
        if target != layer and target not in C_LAYERS[layer]:
            found.append(f"{path}: includes {include}")
        folders = [Path(name).parent for name in (path, include)]
        of_one_isa = all(len(f.parts) == 2 and f.parts[0] == "kernels" for f in folders)
        own, other = (folder.name for folder in folders)
        contained = {own} | (C_CONTAINED.get(own, set()) if not include.endswith(".c") else set())
        if of_one_isa and other not in contained:
            found.append(f"{path}: includes {include} of another instruction set")
    return found


def python_files():
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def c_files():
    source = NATIVE / "src"
    kinds = {".c", ".h", ".inc", ".S"}
    return sorted(p.relative_to(source).as_posix() for p in source.rglob("*") if p.suffix in kinds)


def test_python_imports_point_down():
    found = [
        v for path in python_files() for v in python_violations(path, (PACKAGE / path).read_text())
    ]
    assert not found
    assert len(python_files()) > 10


def test_c_includes_point_down():
    found = [
        v for path in c_files() for v in c_violations(path, (NATIVE / "src" / path).read_text())
    ]
    assert not found


def test_quantizer_imports_point_down():
    paths = sorted(path.relative_to(QUANTIZER) for path in QUANTIZER.rglob("*.py"))
    found = [
        v for path in paths for v in quantizer_violations(path, (QUANTIZER / path).read_text())
    ]
    assert not found
    assert len(paths) > 10


def test_no_circle_of_python_files():
    modules = python_modules([PACKAGE, QUANTIZER])
    found = [
        [modules[one].relative_to(REPOSITORY).as_posix() for one in circle]
        for circle in circles(python_edges(modules))
    ]
    assert not found
    assert len(modules) > 100


@pytest.mark.parametrize("part", ["engine", "loading"])
def test_rooms_of_a_package_point_one_way(part):
    """Folders inside a package: whichever a room uses may not use that room."""
    modules = python_modules([PACKAGE, QUANTIZER])
    prefix = f"lanewise.{part}."

    def room(module):
        return module.removeprefix(prefix).partition(".")[0]

    edges = {}
    for module, used in python_edges(modules).items():
        if module.startswith(prefix):
            inside = {room(one) for one in used if one.startswith(prefix)}
            edges.setdefault(room(module), set()).update(inside - {room(module)})
    assert not circles(edges)
    assert len(edges) > 5


def test_no_circle_of_c_files():
    sources = {name: (NATIVE / "src" / name).read_text() for name in c_files()}
    found = [[f"native/src/{one}" for one in circle] for circle in circles(c_edges(sources))]
    assert not found
    assert sum(map(len, c_edges(sources).values())) > 200


def test_circles_of_python_are_found(tmp_path):
    texts = {
        "a.py": "from package.b import one",
        "b.py": "def f():\n    from package import c",
        "c.py": "if TYPE_CHECKING:\n    from package.inner.d import D",
        "inner/d.py": "import package.a",
        "e.py": "from package import a",
        "__init__.py": "from package.e import e",
    }
    root = tmp_path / "package"
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    modules = python_modules([root])
    assert circles(python_edges(modules)) == [
        ("package.a", "package.b", "package.c", "package.inner.d")
    ]
    (root / "a.py").write_text("from package import nothing_of_a_file")
    assert circles(python_edges(modules)) == [("package", "package.a", "package.e")]


def test_circles_of_c_are_found():
    everything = "void lw_f(void);\nint lw_g(int a,\n         int b);\nextern const int lw_t[2];\n"
    sources = {
        "x/all.h": everything,
        "x/f.c": '#include "all.h"\nvoid lw_f(void) {\n    (void)lw_t; // lw_g\n}\n',
        "x/g.c": '#include "x/all.h"\nint lw_g(int a,\n         int b) {\n    lw_f();\n}\n',
        "x/t.c": '#include "all.h"\nconst int lw_t[2] = {1, 2};\n',
        "x/header.h": '#include "all.h"\n',
    }
    assert circles(c_edges(sources)) == []
    sources["x/t.c"] += "static void h(void) {\n    lw_g(1, 2);\n}\n"
    assert circles(c_edges(sources)) == [("x/f", "x/g", "x/t")]
    del sources["x/t.c"]
    sources["x/f.c"] = '#include "inline.h"\nvoid lw_f(void) {\n    (void)0;\n}\n'
    sources["x/inline.h"] = "void lw_f(void);\nstatic inline int i(void) {\n    lw_f();\n}\n"
    assert circles(c_edges(sources)) == [("x/f", "x/inline")]
    sources["x/all.h"] += '#include "header.h"\n'
    assert ("x/all", "x/header") in circles(c_edges(sources))


def test_python_knows_one_header():
    named = {
        path.as_posix()
        for path in python_files()
        if re.search(r"\blanewise\.h\b|\bcdef\(", (PACKAGE / path).read_text())
    }
    assert named == {"native/library.py"}


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("engine/engine.py", "from lanewise.api.app import create_app"),
        ("engine/engine.py", "def f():\n    import lanewise.text.tokenizer"),
        ("runtime/model.py", "from lanewise.engine import engine"),
        ("loading/files/gguf.py", "from lanewise import settings"),
        ("api/app.py", "from lanewise.runtime import Session"),
        ("api/app.py", "from lanewise.server.serve import serve"),
        ("commands/bench.py", "from lanewise.engine.engine import Engine"),
        ("engine/engine.py", "import cffi"),
        ("text/tokenizer.py", "from fastapi import FastAPI"),
        ("commands/inspect.py", "from lanewise_quantizer.commands.plan import plan"),
        ("commands/inspect.py", "from lanewise_quantizer.fit import tables"),
        ("loading/files/gguf.py", "from lanewise_quantizer.storage import decode_rows"),
        ("somewhere/new.py", ""),
    ],
)
def test_planted_import_is_found(path, source):
    assert len(python_violations(Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("api/app.py", "from lanewise.engine.engine import Engine\nimport fastapi"),
        ("server/serve.py", "from lanewise.runtime import Model"),
        ("cli.py", "import lanewise.commands.bench"),
        ("commands/inspect.py", "from lanewise_quantizer.storage import decode_rows"),
        ("__init__.py", "import os"),
    ],
)
def test_import_that_points_down_is_fine(path, source):
    assert python_violations(Path(path), source) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("coded.py", "from lanewise_quantizer.fit.grid import Grid"),
        ("storage.py", "from lanewise.loading.base.checkpoint import Role"),
        ("fit/model.py", "from lanewise_quantizer.commands.plan import plan"),
        ("commands/plan.py", "from lanewise.engine.engine import Engine"),
        ("cli.py", "from lanewise_quantizer.commands.quantize import run"),
    ],
)
def test_planted_import_of_the_quantizer_is_found(path, source):
    assert len(quantizer_violations(Path(path), source)) == 1
    assert quantizer_violations(Path("commands/x.py"), "import lanewise_quantizer.fit.grid") == []


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("kernels/avx2/gemm__avx2.c", "ops/matmul.h"),
        ("kernels/table.c", "graph/session.h"),
        ("ops/matmul.c", "model/model.h"),
        ("model/pack.c", "graph/session.h"),
        ("cpu.c", "kernels/kernel.h"),
        ("kernels/avx2/gemm__avx2.c", "lanewise.h"),
        ("kernels/avx2/gemm__avx2.c", "kernels/neon/dot.h"),
        ("kernels/avx2/gemm__avx2.c", "kernels/avx512vnni/dot.h"),
        ("kernels/i8mm/gemm__i8mm.c", "kernels/neon/gemm__neon.c"),
        ("new/file.c", "status.h"),
    ],
)
def test_planted_include_is_found(path, include):
    assert len(c_violations(path, f'#include <math.h>\n  # include "{include}"\n')) == 1


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("api.c", "kernels/kernel.h"),
        ("step/forward.c", "ops/matmul.h"),
        ("kernels/avx2/gemm__avx2.c", "kernels/layout.h"),
        ("kernels/avx2/gemm__avx2.c", "kernels/avx2/dot.h"),
        ("kernels/i8mm/gemm__i8mm.c", "kernels/neon/dot.h"),
        ("thread_pool.c", "cpu.h"),
        ("cpu.h", "lanewise.h"),
    ],
)
def test_include_that_points_down_is_fine(path, include):
    assert c_violations(path, f'#include "{include}"\n') == []
