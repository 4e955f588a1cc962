"""The file of ``--models``: which models there are, what each is called, when it may go."""

import dataclasses
import json
import logging
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from lanewise.settings import Settings, SettingsError, parse_size, read_yaml, resolve_mapping

logger = logging.getLogger(__name__)

# What is the router's own: it has the address, the keys of clients are the same everywhere.
OF_THE_ROUTER = frozenset(
    {"models", "models_dir", "host", "port"}
    | {"api_key", "api_key_file", "admin_api_key", "admin_api_key_file"}
    | {"served_model_name", "cors_origins", "allowed_hosts", "mcp_servers", "log_level"}
    | {"lame_duck_s", "log_format", "max_connections"}
)
# A part of a split GGUF file. Loading knows this too; the router imports nothing that reads models.
PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-\d{5}")
# How Ollama's clients begin the names of the hub's repositories.
HUBS = ("hf.co/", "huggingface.co/")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
IDLE_S, MAX_WAITING, WAIT_S, LOAD_S = 600.0, 64, 120.0, 1800.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model of the file."""

    name: str
    settings: Mapping[str, object]  # of its server, as a YAML file has them
    aliases: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    pinned: bool = False
    idle_s: float = IDLE_S  # 0: it stays until its memory is needed
    memory: int | None = None  # of its whole process; None: as planned from the file
    is_pulled: bool = False  # a repository of the hub that a request named

    @property
    def names(self) -> tuple[str, ...]:
        """All that a request may call it."""
        return tuple(dict.fromkeys((self.name, *self.aliases, *self.adapters)))


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The file."""

    entries: tuple[Entry, ...]
    default: str | None = None  # the model of requests that name none
    memory: int | None = None  # of all models together
    max_waiting: int = MAX_WAITING  # requests that wait for a model to load
    wait_s: float = WAIT_S  # for memory that models have which answer
    load_s: float = LOAD_S
    pull: tuple[str, ...] = ()  # patterns of the hub's repositories that requests may name
    shared: Mapping[str, object] = field(default_factory=dict)  # settings of those

    def pulled(self, name: str) -> Entry | None:
        """The model of the hub that a request names, if the operator allows it."""
        model = name
        for host in HUBS:
            model = model.removeprefix(host)
        repository, _, file = model.partition(":")
        is_one = REPOSITORY.fullmatch(repository) and (not file or file.endswith(".gguf"))
        if not is_one or not any(fnmatchcase(repository, one) for one in self.pull):
            return None
        settings = {**self.shared, "model": model}
        aliases = tuple(host + model for host in HUBS)
        return Entry(name=model, settings=settings, aliases=aliases, is_pulled=True)


def read_catalogue(file: str, shared: Settings) -> Catalogue:
    """The file's models; each has the settings ``shared`` but for those of its own."""
    return _Reader(file, shared).catalogue(read_yaml("models", Path(file)))


def folder_catalogue(folder: str, shared: Settings) -> Catalogue:
    """The GGUF files and Hugging Face directories directly below a folder, by their names."""
    found: dict[str, Path] = {}
    try:
        paths = sorted(Path(folder).iterdir())
    except OSError as error:
        raise SettingsError(f"models_dir: {folder}: {error.strerror or error}") from None
    named = [(path, name) for path in paths if (name := _name_of(path)) is not None]
    others = _other_kinds([path for path, _ in named if path.suffix == ".gguf"])
    for path, name in named:
        if (kind := others.get(str(path))) is not None:
            logger.info("%s is left out: its kind is %s", path, kind)
            continue
        if name in found:
            raise SettingsError(
                f"models_dir: {folder}: {found[name].name} and {path.name} are both called"
                f" {name!r}; accepted: each name once"
            )
        found[name] = path
    if not found:
        raise SettingsError(
            f"models_dir: {folder}: no model is there; accepted: a folder of GGUF files and of"
            " directories with config.json"
        )
    listed = [{"name": name, "model": str(path)} for name, path in found.items()]
    return _Reader(folder, shared).catalogue({"models": listed})


def _name_of(path: Path) -> str | None:
    """What a model is called that lies there; None for what is none, or a file's further part."""
    if path.name.startswith("."):
        return None
    if path.is_dir():
        return path.name if (path / "config.json").is_file() else None
    if path.suffix != ".gguf":
        return None
    part = PART.fullmatch(path.stem)
    if part is None:
        return path.stem
    return part["stem"] if int(part["number"]) == 1 else None


def _other_kinds(files: list[Path]) -> dict[str, str]:
    """The kinds of those files that are no models: projectors, adapters and the like.

    A program of its own looks, for a file may be anything. What it cannot tell is listed, and
    refused with a reason when it is loaded.
    """
    if not files:
        return {}
    command = [sys.executable, "-m", "lanewise.router.kinds"]
    asked = json.dumps([str(file) for file in files]).encode()
    try:
        done = subprocess.run(command, input=asked, capture_output=True, timeout=60)
        kinds: dict[str, str] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        logger.warning("what kinds of files there are could not be found out: all are listed")
        return {}
    return kinds


class _Reader:
    """Checks what YAML gave, and says where it is wrong."""

    def __init__(self, file: str, shared: Settings) -> None:
        self._file = file
        self._shared = as_mapping(shared)

    def catalogue(self, content: object) -> Catalogue:
        known = {"models", "default", "memory", "max_waiting", "wait_s", "load_s", "pull"}
        given = self._mapping(content, "", known)
        listed = given.pop("models", None)
        if not isinstance(listed, list) or not listed:
            raise self._error("models", listed, "a list of models, each with name and model")
        entries = tuple(self._entry(one, f"models[{at}]") for at, one in enumerate(listed))
        seen: set[str] = set()
        for entry in entries:
            if twice := seen.intersection(entry.names):
                raise self._error("name", min(twice), "each name once")
            seen.update(entry.names)
        default = given.get("default")
        if default is not None and default not in seen:
            raise self._error("default", default, f"one of {', '.join(sorted(seen))}")
        values: dict[str, Any] = {"entries": entries, "default": default}
        if len(entries) == 1:
            values["default"] = entries[0].name
        if "memory" in given:
            values["memory"] = self._size(given["memory"], "memory")
        if "max_waiting" in given:
            values["max_waiting"] = int(self._number(given["max_waiting"], "max_waiting"))
        for name in ("wait_s", "load_s"):
            if name in given:
                values[name] = self._number(given[name], name)
        pull = self._texts(given.get("pull", []), "pull", "a list of patterns such as Qwen/*")
        return Catalogue(**values, pull=pull, shared=self._shared)

    def _entry(self, content: object, where: str) -> Entry:
        known = {"name", "model", "aliases", "pinned", "idle_s", "memory", "settings"}
        given = self._mapping(content, where, known)
        for name in ("name", "model"):
            if not isinstance(given.get(name), str) or not given[name].strip():
                raise self._error(f"{where}.{name}", given.get(name), "text that is not empty")
        aliases = self._texts(given.get("aliases", []), f"{where}.aliases", "a list of names")
        pinned = given.get("pinned", False)
        if not isinstance(pinned, bool):
            raise self._error(f"{where}.pinned", pinned, "true | false")
        own = self._mapping(given.get("settings") or {}, f"{where}.settings", None)
        if refused := sorted(OF_THE_ROUTER.union({"model"}).intersection(own)):
            at = f"{where}.settings.{refused[0]}"
            raise self._error(at, "a setting of the router", "a setting of one model")
        settings = {**self._shared, **own, "model": given["model"]}
        resolved = resolve_mapping(Settings, settings, f"{self._file}: {where}.settings")
        idle_s, memory = given.get("idle_s"), given.get("memory")
        return Entry(
            name=given["name"],
            settings=settings,
            aliases=aliases,
            adapters=tuple(name for name, _ in resolved.lora),
            pinned=pinned,
            idle_s=IDLE_S if idle_s is None else self._number(idle_s, f"{where}.idle_s"),
            memory=None if memory is None else self._size(memory, f"{where}.memory"),
        )

    def _mapping(self, content: object, where: str, known: set[str] | None) -> dict[str, Any]:
        if not isinstance(content, dict):
            raise self._error(where or "the file", content, "lines of 'key: value'")
        given = {str(key): value for key, value in content.items()}
        for key in given:
            if known is not None and key not in known:
                at = f"{where}.{key}" if where else key
                raise self._error(at, "not known", ", ".join(sorted(known)))
        return given

    def _number(self, value: object, where: str) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return float(value)
        raise self._error(where, value, "a number from 0")

    def _texts(self, value: object, where: str, accepted: str) -> tuple[str, ...]:
        if isinstance(value, list) and all(one and type(one) is str for one in value):
            return tuple(value)
        raise self._error(where, value, accepted)

    def _size(self, value: object, where: str) -> int:
        try:
            size = parse_size(str(value))
        except ValueError:
            size = 0
        if size < 1:
            raise self._error(where, value, "a size above 0, such as 48GiB")
        return size

    def _error(self, where: str, value: object, accepted: str) -> SettingsError:
        return SettingsError(f"models: {self._file}: {where}: {value!r}; accepted: {accepted}")


def as_mapping(settings: Settings) -> dict[str, object]:
    """What a server's YAML file has to say for these settings but for those of the router."""
    given: dict[str, object] = {}
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        if item.name in OF_THE_ROUTER or item.name == "model" or value == item.default:
            continue
        if isinstance(value, tuple):
            value = ["=".join(one) if isinstance(one, tuple) else str(one) for one in value]
        given[item.name] = dict(value) if isinstance(value, Mapping) else value
    return given
