"""Which files of a program depend on which, and the circles among them."""

import ast
import re
from pathlib import Path

C_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
C_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
C_NAME = re.compile(r"\blw_\w+")
C_INDENTED = re.compile(r"^[ \t]+.+", re.MULTILINE)
# The name of a function or of a table that a source defines for others.
C_DEFINITION = re.compile(
    r"^(?!static\b|typedef\b)[A-Za-z_][\w \t*]*?[ *](lw_\w+)\s*"
    r"(?:\([^;{}]*\)\s*\{|(?:\[[^\]]*\])*\s*=)",
    re.MULTILINE,
)


def python_modules(roots):
    """The files below some packages' folders by the names that imports give them."""
    found = {}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def python_edges(modules):
    """Which modules each imports, in functions and for types only too."""
    edges = {}
    for name, path in modules.items():
        edges[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            targets = []
            if isinstance(node, ast.Import):
                targets = [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                inner = [f"{node.module}.{one.name}" for one in node.names]
                targets = [one if one in modules else node.module for one in inner]
            edges[name].update(target for target in targets if target in modules)
        edges[name].discard(name)
    return edges


def c_node(name):
    """What a file of native/src is part of: a source and its header are one."""
    return name.removesuffix(".c").removesuffix(".h")


def c_edges(sources):
    """Which nodes each node includes, and whose functions and tables it uses.

    ``sources`` are texts by paths relative to native/src. Uses count for themselves because one
    header may declare what several sources define. In headers those count that are indented: the
    bodies of their inline functions.
    """
    bare = {name: C_NOT_CODE.sub("", text) for name, text in sources.items()}
    owners = {
        symbol: c_node(name)
        for name, text in bare.items()
        if name.endswith(".c")
        for symbol in C_DEFINITION.findall(text)
    }
    edges = {c_node(name): set() for name in sources}
    for name, text in sources.items():
        includes = C_INCLUDE.findall(text)
        places = [(Path(name).parent / one).as_posix() for one in includes] + includes
        found = {c_node(place) for place in places if place in sources}
        if name.endswith((".c", ".h")):
            code = bare[name] if name.endswith(".c") else "\n".join(C_INDENTED.findall(bare[name]))
            found |= {owners[word] for word in C_NAME.findall(code) if word in owners}
        edges[c_node(name)] |= found - {c_node(name)}
    return edges


def circles(edges):
    """The sets of nodes that reach each other, each sorted."""
    reached = {}
    for start in edges:
        seen, rest = set(), [start]
        while rest:
            new = edges[rest.pop()] - seen
            seen |= new
            rest += new
        reached[start] = seen
    return sorted(
        {
            tuple(sorted({start} | {one for one in seen if start in reached[one]}))
            for start, seen in reached.items()
            if start in seen
        }
    )
