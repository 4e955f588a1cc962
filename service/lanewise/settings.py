"""Every knob once: a flag, a ``LANEWISE_…`` environment variable and a YAML key of the same name.

A field named ``kv_memory`` is the flag ``--kv-memory``, the variable ``LANEWISE_KV_MEMORY`` and the
key ``kv_memory`` of the file given with ``--config``. Flags win over variables, variables over the
file, the file over the default.
"""

import argparse
import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

ENV_PREFIX = "LANEWISE_"
MIB = 1 << 20

_T = TypeVar("_T", bound="SourceSettings")
_Raw = str | Sequence[str]


class SettingsError(Exception):
    """A setting that cannot be used; the message names source, value and what is accepted."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the text of a setting becomes a value."""

    parse: Callable[[str], object]
    accepts: str
    metavar: str
    is_list: bool = False
    is_switch: bool = False


def _checked(parse: Callable[[str], Any], ok: Callable[[Any], bool]) -> Callable[[str], object]:
    def parse_and_check(text: str) -> object:
        value = parse(text)
        if not ok(value):
            raise ValueError(text)
        return value

    return parse_and_check


def integer(low: int, high: int | None = None) -> Kind:
    """A whole number between two limits, both included."""
    upper = float("inf") if high is None else high
    accepts = f"a whole number from {low} to {high}" if high is not None else f"at least {low}"
    return Kind(_checked(int, lambda value: low <= value <= upper), accepts, "N")


def choice(*names: str) -> Kind:
    """One of a few names, in any case."""
    return Kind(_checked(str.lower, names.__contains__), " | ".join(names), "NAME")


_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**i for i, prefix in enumerate("kmgt", start=1)}
_UNITS |= {f"{prefix}i{b}": 1024**i for i, prefix in enumerate("kmgt", start=1) for b in ("", "b")}


def parse_size(text: str) -> int:
    """Bytes from text such as ``4GiB``, ``512MB`` or ``1048576``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _UNITS:
        raise ValueError(text)
    return (
        int(float(match[1]) * _UNITS[match[2]])
        if "." in match[1]
        else int(match[1]) * _UNITS[match[2]]
    )


def _parse_switch(text: str) -> bool:
    names = {"true": True, "1": True, "yes": True, "on": True}
    names |= {"false": False, "0": False, "no": False, "off": False}
    if text.lower() not in names:
        raise ValueError(text)
    return names[text.lower()]


def _parse_text(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text


TEXT = Kind(_parse_text, "text that is not empty", "TEXT")
TEXTS = Kind(_parse_text, "one or more texts, separated by commas", "TEXT,…", is_list=True)
COUNTS = Kind(
    _checked(int, lambda value: value >= 1),
    "whole numbers from 1, separated by commas",
    "N,…",
    is_list=True,
)
SECONDS = Kind(
    _checked(float, lambda value: 0 <= value < float("inf")), "seconds from 0", "SECONDS"
)
SIZE = Kind(
    _checked(parse_size, lambda value: value > 0),
    "bytes above 0, alone or with B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (of 1024)",
    "SIZE",
)
ON_OFF = Kind(_parse_switch, "on | off", "")
SWITCH = Kind(_parse_switch, "true | false", "", is_switch=True)


def knob(kind: Kind, text: str, *short: str) -> dict[str, object]:
    """The metadata that makes a dataclass field a setting; ``text`` is its line in ``--help``."""
    return {"kind": kind, "help": text, "short": short}


# What `lanewise quantize` can make of matrices; quantizer/FORMAT.md describes each.
QUANTIZED_FORMATS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "cb2", "cb3", "cb4", "t2", "q4_g64", "q4_g128"),
    *("a4_g32", "a4_g64", "a4_g128", "a8_g32", "a8_g128", "fp6", "w8a8"),
)


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """What every command that names a model understands."""

    model: str | None = field(
        default=None,
        metadata=knob(
            TEXT, "a GGUF file, a Hugging Face folder, org/name or org/name:file.gguf of the hub"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class WeightSettings(SourceSettings):
    """What every command that packs weights understands."""

    weights: str | None = field(
        default=None,
        metadata=knob(
            choice("q4_0", "q8_0", "f16", "bf16", "f32"),
            "type to hold the matrices in; a float model is quantized while it is loaded",
        ),
    )
    isa: str | None = field(
        default=None,
        metadata=knob(
            choice("scalar", "avx2", "avx512vnni", "neon", "dotprod", "i8mm", "sve"),
            "instruction set level to use; the best one of this CPU when not given",
        ),
    )
    threads: int | None = field(
        default=None,
        metadata=knob(
            integer(1, 256),
            "threads that compute; from CPU quota, affinity and cores when not given",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(WeightSettings):
    """What every command that runs a model understands."""

    load: str = field(
        default="auto",
        metadata=knob(
            choice("auto", "map", "copy"),
            "packed weights: map the file or copy it; auto = copy what would be on small pages",
        ),
    )
    kv_type: str = field(
        default="auto",
        metadata=knob(
            choice("auto", "f16", "f32"), "type of cached keys and values; auto = that of the model"
        ),
    )
    autotune: bool = field(
        default=True,
        metadata=knob(
            ON_OFF,
            "measure once per CPU model which of two close kernels is faster; no answer depends"
            " on it",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """What ``lanewise serve`` can be told."""

    served_model_name: str | None = field(
        default=None, metadata=knob(TEXT, "name of the model in the API")
    )
    host: str = field(default="127.0.0.1", metadata=knob(TEXT, "address to listen on"))
    port: int = field(default=8000, metadata=knob(integer(0, 65535), "port to listen on"))
    kv_memory: int | None = field(
        default=None,
        metadata=knob(SIZE, "memory for keys and values; from the memory limit when not given"),
    )
    max_model_len: int | None = field(
        default=None,
        metadata=knob(
            integer(1), "longest prompt plus answer in tokens; the model's when not given"
        ),
    )
    max_step_tokens: int = field(
        default=512, metadata=knob(integer(1, 1 << 20), "most tokens in one step of the model")
    )
    max_seqs: int = field(
        default=64, metadata=knob(integer(1, 65536), "most sequences that run at the same time")
    )
    max_queued_requests: int = field(
        default=256,
        metadata=knob(integer(0), "requests that may wait before new ones get status 429"),
    )
    max_body_bytes: int = field(
        default=8 * MIB, metadata=knob(SIZE, "largest request body that is read")
    )
    api_key: tuple[str, ...] = field(
        default=(), metadata=knob(TEXTS, "keys that clients must send; none = no key needed")
    )
    cors_origins: tuple[str, ...] = field(
        default=("*",), metadata=knob(TEXTS, "web origins that may call the API")
    )
    chat_template: str | None = field(
        default=None,
        metadata=knob(TEXT, "file with a jinja chat template to use instead of the model's"),
    )
    drain_timeout_s: float = field(
        default=30.0, metadata=knob(SECONDS, "time running requests get to finish after SIGTERM")
    )
    log_level: str = field(
        default="info",
        metadata=knob(
            choice("debug", "info", "warning", "error"), "least important messages to log"
        ),
    )
    log_format: str = field(
        default="text",
        metadata=knob(choice("text", "json"), "one line of text or JSON per message"),
    )


@dataclass(frozen=True, kw_only=True)
class ReportSettings(ModelSettings):
    """What every command that prints a report understands."""

    json: bool = field(
        default=False, metadata=knob(SWITCH, "print one JSON object instead of a table")
    )


@dataclass(frozen=True, kw_only=True)
class BenchSettings(ReportSettings):
    """What ``lanewise bench`` can be told."""

    prefill: int = field(
        default=512, metadata=knob(integer(0), "tokens of the prompt test; 0 = leave it out")
    )
    decode: int = field(
        default=128, metadata=knob(integer(0), "tokens of each decode test; 0 = leave them out")
    )
    batch: tuple[int, ...] = field(
        default=(1, 8, 16),
        metadata=knob(COUNTS, "sequences that decode together, one test for each"),
    )
    context: int = field(
        default=32,
        metadata=knob(integer(1), "tokens in the context of each sequence before decoding"),
    )
    repeat: int = field(
        default=3, metadata=knob(integer(1), "runs of each test; their median is reported")
    )
    profile: bool = field(
        default=False,
        metadata=knob(SWITCH, "run each test once more and show what its time goes to"),
    )


@dataclass(frozen=True, kw_only=True)
class PerplexitySettings(ReportSettings):
    """What ``lanewise perplexity`` can be told."""

    file: str | None = field(default=None, metadata=knob(TEXT, "UTF-8 text to score"))
    context: int | None = field(
        default=None,
        metadata=knob(
            integer(2), "tokens of one window; 512 or the model's context if that is less"
        ),
    )
    chars: int | None = field(
        default=None, metadata=knob(integer(1), "score only the first N characters of the file")
    )
    chunk: int = field(
        default=512,
        metadata=knob(integer(1), "tokens of one window given to the model in one step"),
    )
    batch: int = field(
        default=1,
        metadata=knob(integer(1), "windows scored together; changes no bit of the result"),
    )


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(ReportSettings):
    """What ``lanewise doctor`` can be told."""


@dataclass(frozen=True, kw_only=True)
class PackSettings(WeightSettings):
    """What ``lanewise pack`` can be told."""

    output: str | None = field(
        default=None, metadata=knob(TEXT, "directory to write, which must be new or empty", "-o")
    )


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings(SourceSettings):
    """What ``lanewise quantize`` can be told."""

    output: str | None = field(
        default=None,
        metadata=knob(TEXT, "directory to write, new or empty; with --gguf a new file", "-o"),
    )
    format: str = field(
        default="q4_0", metadata=knob(choice(*QUANTIZED_FORMATS), "type of the matrices")
    )
    head: str | None = field(
        default=None,
        metadata=knob(
            choice(*QUANTIZED_FORMATS, "f16", "bf16", "f32"),
            "type of embedding and head; q6_k when not given, q8_0 beside formats of eight bits",
        ),
    )
    gguf: bool = field(
        default=False, metadata=knob(SWITCH, "write a GGUF file, for types that GGUF has")
    )
    calibrate: str | None = field(
        default=None,
        metadata=knob(TEXT, "UTF-8 text to quantize on: slower, much better at few bits"),
    )
    calibration_tokens: int = field(
        default=8192, metadata=knob(integer(2), "tokens of that text to use")
    )
    threads: int | None = field(
        default=None,
        metadata=knob(
            integer(1, 256),
            "threads that compute; from CPU quota, affinity and cores when not given",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class InspectSettings(SourceSettings):
    """What ``lanewise inspect`` can be told."""

    json: bool = field(
        default=False, metadata=knob(SWITCH, "print one JSON object instead of a table")
    )
    check: bool = field(
        default=False,
        metadata=knob(SWITCH, "read all weights: checksums, and numbers that are not finite"),
    )


@dataclass(frozen=True, kw_only=True)
class PullSettings(SourceSettings):
    """What ``lanewise pull`` can be told."""


EVERY_SETTINGS: tuple[type[SourceSettings], ...] = (
    Settings,
    BenchSettings,
    PerplexitySettings,
    DoctorSettings,
    PackSettings,
    QuantizeSettings,
    InspectSettings,
    PullSettings,
)


def flag_of(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def add_arguments(parser: argparse.ArgumentParser, settings: type[SourceSettings]) -> None:
    """Give a command the flags of its settings; values stay text until :func:`resolve`."""
    parser.add_argument("--config", metavar="FILE", help="YAML file with any of these settings")
    for item in dataclasses.fields(settings):
        kind: Kind = item.metadata["kind"]
        text = f"{item.metadata['help']} [{_default_text(item)}; {variable_of(item.name)}]"
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
        if kind.is_switch:
            options |= {"action": "store_const", "const": "true"}
        else:
            options["metavar"] = (
                kind.accepts.replace(" ", "") if "|" in kind.accepts else kind.metavar
            )
            options["action"] = "append" if kind.is_list else "store"
        parser.add_argument(*item.metadata["short"], flag_of(item.name), dest=item.name, **options)


def _default_text(item: dataclasses.Field[Any]) -> str:
    if item.default is None:
        return "automatic" if item.name in ("isa", "threads", "kv_memory") else "not set"
    if isinstance(item.default, tuple):
        return ",".join(map(str, item.default)) or "none"
    if item.metadata["kind"] is ON_OFF:
        return "on" if item.default else "off"
    return str(item.default).lower() if isinstance(item.default, bool) else str(item.default)


def resolve(
    settings: type[_T],
    flags: Mapping[str, _Raw],
    environ: Mapping[str, str],
    config: str | None = None,
) -> _T:
    """Settings from flags, environment variables and the YAML file, in this order of precedence."""
    config = config or environ.get(variable_of("config"))
    keys = _read_config(Path(config)) if config else {}
    values: dict[str, Any] = {}
    for item in dataclasses.fields(settings):
        name = item.name
        found = _from_environ(environ, name)
        if name in flags:
            values[name] = _parse(item.metadata["kind"], flag_of(name), flags[name])
        elif found is not None:
            values[name] = _parse(item.metadata["kind"], variable_of(name), found)
        elif name in keys:
            values[name] = _parse(item.metadata["kind"], f"{config}: {name}", keys[name])
    return settings(**values)


def _from_environ(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(variable_of(name))
    # Kubernetes sets LANEWISE_PORT=tcp://10.0.0.1:8000 in every pod beside a Service called
    # "lanewise"; that is nobody's choice of a port.
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
        shown = ",".join(texts)
        raise SettingsError(
            f"{source}: {shown!r} cannot be used; accepted: {kind.accepts}"
        ) from None
    return tuple(parsed) if kind.is_list else parsed[0]


def _read_config(path: Path) -> dict[str, _Raw]:
    """The keys of a YAML file as text; a key with no value counts as not set."""
    import yaml  # takes a while, and most commands read no file

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SettingsError(f"--config: {path}: {reason}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise SettingsError(f"--config: {path}:{where} is not YAML") from None
    if not isinstance(content, dict | None):
        raise SettingsError(f"{path}: a {type(content).__name__}; accepted: lines of 'key: value'")
    known = {item.name for settings in EVERY_SETTINGS for item in dataclasses.fields(settings)}
    keys: dict[str, _Raw] = {}
    for key, value in (content or {}).items():
        name = str(key).replace("-", "_")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = (
                f"did you mean {close[0]!r}?" if close else f"accepted: {', '.join(sorted(known))}"
            )
            raise SettingsError(f"{path}: {key!r} is not a setting; {hint}")
        if isinstance(value, dict):
            raise SettingsError(f"{path}: {key}: a mapping; accepted: a value or a list of values")
        if value is not None:
            keys[name] = (
                [_text(part) for part in value] if isinstance(value, list) else _text(value)
            )
    return keys


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
