"""Finds what transformers reads of a config.json: from its sources, without running a model.

A name counts as read where the code of a model, or what that code calls, takes it from a config;
code that no answer depends on, such as the first values of weights, is left out.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto import modeling_auto

# Classes that answers come from, by model_type.
MAPPINGS = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
)
# What code of models calls that reads configs itself; the rest of the library stores and trains.
FOLLOWED = ("models/", "modeling_rope_utils", "masking_utils", "modeling_layers")
CONFIGS = {"config", "text_config"}  # what configs are called in the code of models
# Functions that no answer depends on.
OTHER_WORK = {"_init_weights", "to_dict"}
# Of the class that all configs are of; it has further ones for storing and generating.
RULES = {"rope_scaling", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}

# What settings of RoPE are called, and what is read of all.
SETTINGS = {"rope_parameters", "rope_parameters_dict", "rope_params"}
ALWAYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
KINDS = ("full_attention", "sliding_attention")  # settings of layers of one kind, in settings
ODD_THETA = 123.0  # which no class takes of itself
# What we read, whether the code of models does or not.
OURS = {"max_position_embeddings", "num_key_value_heads"}
CLASS = re.compile(r"^class (\w+)", re.M)
PLAIN = (bool, int, float, str, list, dict)  # values of JSON

_spec = importlib.util.find_spec("transformers")
assert _spec is not None
assert _spec.origin is not None
ROOT = Path(_spec.origin).parent


class Module:
    """The definitions and imports of one file."""

    def __init__(self, path: Path) -> None:
        self.defined: dict[str, ast.stmt] = {}
        self.imported: dict[str, tuple[Path, str]] = {}
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.Assign):
                names = (target for target in node.targets if isinstance(target, ast.Name))
                self.defined |= {name.id: node for name in names}
            elif isinstance(node, ast.ImportFrom) and node.level and node.module:
                file = path.parents[node.level - 1].joinpath(*node.module.split("."))
                for alias in node.names:
                    self.imported[alias.asname or alias.name] = file.with_suffix(".py"), alias.name


@cache
def module(path: Path) -> Module:
    """Return a file, read once."""
    return Module(path)


def nodes_of(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through code but for functions that no answer depends on."""
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef)
        if is_function and (child.name in OTHER_WORK or child.name.startswith("validate")):
            continue
        yield child
        yield from nodes_of(child)


def reached_from(path: Path, name: str) -> Iterator[ast.stmt]:
    """Walk through the definitions that one needs."""
    todo, seen = [(path, name)], set()
    while todo:
        place = todo.pop()
        if place in seen:
            continue
        seen.add(place)
        file, own = place[0], module(place[0])
        if place[1] in own.defined:
            node = own.defined[place[1]]
            yield node
            names = (one for one in nodes_of(node) if isinstance(one, ast.Name))
            todo += [(file, one.id) for one in names if isinstance(one.ctx, ast.Load)]
        elif place[1] in own.imported:
            target = own.imported[place[1]]
            if target[0].is_file() and str(target[0].relative_to(ROOT)).startswith(FOLLOWED):
                todo.append(target)


def is_config(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression is a config, such as ``config`` or ``self.config``."""
    if isinstance(node, ast.Attribute):
        return node.attr in names
    return isinstance(node, ast.Name) and node.id in names


def taken_from(code: ast.AST, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Return what code takes from a config, and what it takes where there is nothing.

    ``config.x``, or ``getattr(config, "x", True)``.
    """
    for node in nodes_of(code):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            if is_config(node.value, names):
                yield node.attr, None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            is_taken = node.func.id in ("getattr", "hasattr") and is_config(node.args[0], names)
            if is_taken and isinstance(node.args[1], ast.Constant):
                yield str(node.args[1].value), constant(node.args[-1], len(node.args) == 3)


def constant(node: ast.AST, is_there: bool) -> Any:
    """Return a plain value that code says."""
    return node.value if is_there and isinstance(node, ast.Constant) else None


def keywords_of(code: ast.AST) -> Iterator[str]:
    """Return the further fields that a config's class understands: what it takes from kwargs."""
    for node in nodes_of(code):
        first = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if is_config(node.func.value, {"kwargs"}) and node.func.attr in ("pop", "get"):
                first = node.args[0]
        elif isinstance(node, ast.Compare) and is_config(node.comparators[0], {"kwargs"}):
            first = node.left
        if isinstance(first, ast.Constant):
            yield str(first.value)


def class_files(kind: type) -> Iterator[tuple[Path, str]]:
    """Return where a config's class and those that it is made from are defined, in models."""
    for one in kind.__mro__:
        if one.__module__.startswith("transformers.models."):
            relative = one.__module__.removeprefix("transformers.").replace(".", "/")
            yield ROOT / f"{relative}.py", one.__name__


@cache
def places() -> dict[str, Path]:
    """Return the file of each class of the models' code."""
    return {
        name: file
        for file in sorted(ROOT.glob("models/*/modeling_*.py"))
        for name in CLASS.findall(file.read_text(encoding="utf-8"))
    }


def model_classes(model_type: str) -> Iterable[tuple[Path, str]]:
    """Return where the classes of a model_type that answer are defined."""
    names = {getattr(modeling_auto, mapping).get(model_type) for mapping in MAPPINGS} - {None}
    if not names:
        raise SystemExit(f"transformers has no model of {model_type!r}")
    return [(places()[name], name) for name in sorted(names)]


def fields_of(model_type: str) -> dict[str, Any]:
    """Return what is read of a model_type's config.json, with what it means left out or null."""
    kind = CONFIG_MAPPING[model_type]
    meant = {field.name: field.default for field in dataclasses.fields(kind)}
    others, read = dict(kind.attribute_map), {}
    for path, name in model_classes(model_type):
        for code in reached_from(path, name):
            read |= {key: value for key, value in taken_from(code, CONFIGS) if key not in read}
    for path, name in class_files(kind):
        code = module(path).defined[name]
        read |= {key: value for key, value in taken_from(code, {"self"}) if key in meant}
        read |= dict.fromkeys(keywords_of(code))
    read |= {others[name]: None for name in read.keys() & others.keys()}
    read |= {name: None for name, target in others.items() if target in read}
    read |= dict.fromkeys(OURS & meant.keys())
    if "rope_parameters" in meant:
        read |= dict.fromkeys(RULES)
        meant["rope_parameters"] = angles_of(kind)
    return {
        name: meant[name] if isinstance(meant.get(name), PLAIN) else read[name]
        for name in sorted(read)
        if not name.startswith("_") and not callable(getattr(kind, name, None))
    }


def angles_of(kind: type) -> dict[str, Any] | None:
    """Return the settings of RoPE that a class takes where a file has none, unless they are plain.

    Without a rope_theta that a file's own would take the place of.
    """
    taken, other = kind().rope_parameters, kind(rope_theta=ODD_THETA).rope_parameters
    is_nested = set(taken) <= set(KINDS)
    parts = taken if is_nested else {"": taken}
    others = other if is_nested else {"": other}
    for name, part in parts.items():
        if part.get("rope_theta") != others[name].get("rope_theta"):
            del part["rope_theta"]
    kinds = {part.get("rope_type", part.get("type", "default")) for part in parts.values()}
    return taken if kinds != {"default"} else None


def settings_in(code: ast.AST) -> Iterator[str]:
    """Return what code takes from settings of RoPE, whatever it calls them."""
    for node in nodes_of(code):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            taken_of, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr != "get" or not isinstance(node.args[0], ast.Constant):
                continue
            taken_of, key = node.func.value, node.args[0]
        else:
            continue
        name = getattr(taken_of, "attr", getattr(taken_of, "id", ""))
        if name in SETTINGS and isinstance(key.value, str):
            yield key.value


def rope_settings(model_types: Iterable[str]) -> dict[str, list[str]]:
    """Return what is read of RoPE's settings by type; what code of models reads is under ""."""
    rules = module(ROOT / "modeling_rope_utils.py").defined
    made = {"default": set(ALWAYS)}
    for name, function in ROPE_INIT_FUNCTIONS.items():
        made[name] = {*ALWAYS, *settings_in(rules[function.__name__])}
    own: set[str] = set()
    for model_type in model_types:
        for path, name in model_classes(model_type):
            for code in reached_from(path, name):
                own.update(settings_in(code))
    made[""] = own - set().union(*made.values()) - set(KINDS)
    return {kind: sorted(names) for kind, names in sorted(made.items())}
