"""Settings from the command line, the environment and a YAML file."""

import argparse
import dataclasses
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lanewise.settings import hints
from lanewise.settings.commands import EVERY_SETTINGS
from lanewise.settings.groups import grouped
from lanewise.settings.kinds import HF_OVERRIDES, ON_OFF, Kind, SettingsError
from lanewise.settings.models import SourceSettings

ENV_PREFIX = "LANEWISE_"

_T = TypeVar("_T", bound=SourceSettings)
_Raw = str | Sequence[str]


def flag_of(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def add_arguments(
    parser: argparse.ArgumentParser,
    settings: type[SourceSettings],
    shown: Collection[str] | None = None,
) -> None:
    """Give a command the flags of its settings; values stay text until :func:`resolve`.

    The help has those that are to be ``shown``; None: all.
    """
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of these settings")
    for title, items in grouped(dataclasses.fields(settings)):
        group = parser.add_argument_group(title)
        for item in items:
            _add_argument(group, item, shown is None or item.name in shown)


def _add_argument(
    group: argparse._ArgumentGroup, item: dataclasses.Field[Any], is_shown: bool
) -> None:
    kind: Kind = item.metadata["kind"]
    default = shown_value(item, item.default)
    text = f"{item.metadata['help']} [{default}]" if is_shown else argparse.SUPPRESS
    options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if kind.is_switch:
        options |= {"action": "store_const", "const": "true"}
    else:
        options["metavar"] = kind.accepts.replace(" ", "") if "|" in kind.accepts else kind.metavar
        options["action"] = "append" if kind.is_list else "store"
    group.add_argument(*item.metadata["short"], flag_of(item.name), dest=item.name, **options)


def shown_value(item: dataclasses.Field[Any], value: object) -> str:
    """A setting's value as people write it; of keys only how many there are."""
    kind: Kind = item.metadata["kind"]
    if value is None:
        return (
            "automatic"
            if item.name in ("isa", "threads", "kv_memory", "snapshot_memory")
            else "not set"
        )
    if isinstance(value, tuple):
        if kind.is_secret and value:
            return f"{len(value)} not shown"
        texts = ("=".join(part) if isinstance(part, tuple) else str(part) for part in value)
        return ",".join(texts) or "none"
    if kind is ON_OFF:
        return "on" if value else "off"
    if kind is HF_OVERRIDES:
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def resolve(
    settings: type[_T],
    flags: Mapping[str, _Raw],
    environ: Mapping[str, str],
    config: str | None = None,
) -> _T:
    """Settings from flags, environment variables and the YAML file, in this order of precedence."""
    return resolve_with_sources(settings, flags, environ, config)[0]


def resolve_mapping(settings: type[_T], content: Mapping[str, object], where: str) -> _T:
    """Settings from what a YAML file would have; ``where`` it stands is said in errors."""
    return _resolved(settings, {}, {}, _checked(content, where), where)[0]


def resolve_with_sources(
    settings: type[_T],
    flags: Mapping[str, _Raw],
    environ: Mapping[str, str],
    config: str | None = None,
) -> tuple[_T, dict[str, str]]:
    """The same, and the flag, variable or key that each came from which is not a default."""
    config = config or environ.get(variable_of("config"))
    keys = _read_config(Path(config)) if config else {}
    return _resolved(settings, flags, environ, keys, config)


def _resolved(
    settings: type[_T],
    flags: Mapping[str, _Raw],
    environ: Mapping[str, str],
    keys: Mapping[str, _Raw],
    where: str | None,
) -> tuple[_T, dict[str, str]]:
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for item in dataclasses.fields(settings):
        name = item.name
        found = _from_environ(environ, name)
        raw: _Raw
        if name in flags:
            source, raw = flag_of(name), flags[name]
        elif found is not None:
            source, raw = variable_of(name), found
        elif name in keys:
            source, raw = f"{where}: {name}", keys[name]
        else:
            continue
        values[name] = _parse(item.metadata["kind"], source, raw)
        sources[name] = source
    return settings(**values), sources


def every_name(of: Callable[[Kind], bool] = lambda kind: True) -> set[str]:
    """The names of all settings of all commands, or of those of some kinds."""
    items = [item for settings in EVERY_SETTINGS for item in dataclasses.fields(settings)]
    return {item.name for item in items if of(item.metadata["kind"])}


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable LANEWISE_... that is no setting of any command."""
    return hints.unknown_variables(environ, ENV_PREFIX, every_name())


def variables_of_others(environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable of another server for which there is a setting here."""
    return hints.variables_of_others(environ, ENV_PREFIX, every_name())


def unknown_flags(settings: type[SourceSettings], arguments: Sequence[str]) -> str:
    """What is wrong with arguments that a command does not have."""
    known = [item.name for item in dataclasses.fields(settings)]
    said = []
    for argument in arguments:
        flag = argument.partition("=")[0]
        if flag.startswith("-"):
            meant = hints.hint(flag.lstrip("-").replace("-", "_"), known, flag_of)
            said.append(f"{flag} is not a setting" + (f"; {meant}" if meant else ""))
    rest = f"unrecognized arguments: {' '.join(arguments)}"
    return ". ".join(said) or f"{rest}; write a list with commas"


def _from_environ(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(variable_of(name))
    # Kubernetes sets LANEWISE_PORT=tcp://10.0.0.1:8000 in every pod beside a Service called
    # "lanewise"; that is no choice of a port.
    if name == "port" and value is not None and value.startswith("tcp://"):
        return None
    return value or None  # an empty variable is how compose files and charts leave one unset


def _parse(kind: Kind, source: str, raw: _Raw) -> object:
    texts = [raw] if isinstance(raw, str) else list(raw)
    if not kind.is_list and len(texts) != 1:
        raise SettingsError(f"{source}: {texts!r} is a list; accepted: {kind.accepts}")
    if kind.is_list:
        texts = [part.strip() for text in texts for part in text.split(",")]
    try:
        parsed = [kind.parse(text) for text in texts]
    except ValueError:
        shown = "what was given" if kind.is_secret else repr(",".join(texts))
        raise SettingsError(f"{source}: {shown} cannot be used; accepted: {kind.accepts}") from None
    return tuple(parsed) if kind.is_list else parsed[0]


def read_yaml(source: str, path: Path) -> object:
    """What a YAML file holds; SettingsError, which names the setting ``source``, if it is none."""
    import yaml  # takes a while, and most commands read no file

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SettingsError(f"{source}: {path}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise SettingsError(f"{source}: {path}:{where} is not YAML") from None


def _read_config(path: Path) -> dict[str, _Raw]:
    """The keys of a YAML file as text; a key with no value counts as not set."""
    return _checked(read_yaml("--config", path), path)


def _checked(content: object, where: str | Path) -> dict[str, _Raw]:
    """The keys of what YAML gave, as text."""
    if not isinstance(content, dict | None):
        raise SettingsError(f"{where}: a {type(content).__name__}; accepted: lines of 'key: value'")
    known, objects = every_name(), every_name(lambda kind: kind is HF_OVERRIDES)
    keys: dict[str, _Raw] = {}
    for key, value in (content or {}).items():
        name = str(key).replace("-", "_")
        if name not in known:
            meant = hints.hint(name, known, repr) or f"accepted: {', '.join(sorted(known))}"
            raise SettingsError(f"{where}: {key!r} is not a setting; {meant}")
        if isinstance(value, dict) and name in objects:
            value = json.dumps(value)
        if isinstance(value, dict):
            raise SettingsError(f"{where}: {key}: a mapping; accepted: a value or a list of values")
        if value is not None:
            keys[name] = (
                [_text(part) for part in value] if isinstance(value, list) else _text(value)
            )
    return keys


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
