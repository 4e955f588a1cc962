"""The references of the guide, made from the code: ``make guide``.

A page has what is written by hand, then the heading "Reference", then what is made here.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import Metric

from deploy.guide.schemas import cell, fields_table, inner_schemas
from lanewise.api.batches.metrics import BatchMetrics
from lanewise.api.endpoints import health
from lanewise.api.endpoints.documents import describe
from lanewise.api.endpoints.endpoint import Endpoint
from lanewise.api.endpoints.table import ENDPOINTS
from lanewise.api.http.front import Front
from lanewise.api.http.keys import Keys
from lanewise.api.http.web_pages import WebPages
from lanewise.api.middleware import RequestMiddleware
from lanewise.api.shared.spending import Spending
from lanewise.api.shared.state import ServerState
from lanewise.cli import COMMANDS
from lanewise.commands.families import row_of
from lanewise.engine.metering.metrics import Metrics, ModelFacts
from lanewise.guide import pages
from lanewise.loading.base.formats import BLOCKS, HELD, STORED_ROWS, row_bytes
from lanewise.loading.families.table import FAMILIES, OTHER_GGUF_NAMES, OTHER_NAMES, REASONS
from lanewise.server.machine import MachineMetrics
from lanewise.settings import Settings
from lanewise.settings.commands import QUANTIZED_FORMATS
from lanewise.settings.groups import grouped
from lanewise.settings.models import SourceSettings
from lanewise.settings.reading import flag_of, shown_value

HEADING = "## Reference\n"
NOTE = "Made from the code by `make guide`.\n"
WIDTH = 4096  # of a row of weights, to say the bits of a weight
# The prefixes of the endpoints of each page. The first that fits takes an endpoint.
DIALECTS: dict[str, tuple[str, ...]] = {
    "api-responses": ("/v1/responses",),
    "api-anthropic": ("/v1/messages",),
    "api-vectors": (
        *("/v1/embeddings", "/pooling", "/v1/rerank", "/v2/rerank", "/v1/reranking", "/v1/score"),
        *("/v1/classify", "/v1/systemone", "/embed", "/info", "/api/embed", "/embedding"),
    ),
    "api-openai": ("/v1/chat", "/v1/completions", "/v1/models", "/api/v0/"),
    "api-ollama": ("/api/",),
    "api-llama-cpp": ("/completion", "/infill", "/props", "/slots", "/apply-template"),
    "api-server": ("/",),
}


def references() -> dict[str, Callable[[], Iterator[str]]]:
    """What makes the reference of each page that has one."""
    made: dict[str, Callable[[], Iterator[str]]] = {
        "configure": settings_lines,
        "commands": commands_lines,
        "models": models_lines,
        "metrics": metrics_lines,
    }
    return made | {page: partial(endpoint_lines, page) for page in DIALECTS}


def made(page: str, text: str) -> str:
    """A page with its reference as the code has it now."""
    written = text.partition(HEADING)[0].rstrip("\n")
    reference = "\n".join(references()[page]())
    return f"{written}\n\n{HEADING}\n{NOTE}\n{reference.strip()}\n"


def settings_lines() -> Iterator[str]:
    """All settings of the server, by group."""
    yield from _settings_tables(Settings)


def _settings_tables(
    settings: type[SourceSettings], but: frozenset[str] = frozenset()
) -> Iterator[str]:
    items = [item for item in dataclasses.fields(settings) if item.name not in but]
    for group, members in grouped(items):
        yield f"### {group[0].upper()}{group[1:]}\n"
        yield "| setting | default | accepted | meaning |"
        yield "|---|---|---|---|"
        for item in members:
            kind = item.metadata["kind"]
            default, accepted = cell(shown_value(item, item.default)), cell(kind.accepts)
            yield f"| `{item.name}` | {default} | {accepted} | {cell(item.metadata['help'])} |"
        yield ""


def commands_lines() -> Iterator[str]:
    """Each command with its own settings; those that it shares are on the settings' page."""
    served = {item.name: item.metadata["kind"].is_list for item in dataclasses.fields(Settings)}
    for name, command in COMMANDS.items():
        yield f"### lanewise {name}\n"
        yield f"{command.help[0].upper()}{command.help[1:]}.\n"
        items = dataclasses.fields(command.settings)
        # A list is another setting than one text of the same name: the models of compare.
        shared = {i.name for i in items if served.get(i.name) == i.metadata["kind"].is_list}
        own = [item for item in items if item.name not in shared]
        if own:
            yield "| flag | default | meaning |"
            yield "|---|---|---|"
        for item in own:
            flags = ", ".join(f"`{flag}`" for flag in (*item.metadata["short"], flag_of(item.name)))
            default = cell(shown_value(item, item.default))
            yield f"| {flags} | {default} | {cell(item.metadata['help'])} |"
        also = [item.name for item in items if item.name in shared and item.name != "model"]
        if also and name not in ("serve", "config"):
            yield "\nAlso, [as the server](configure.md): " + ", ".join(
                f"`{flag_of(one)}`" for one in also
            )
        yield ""


def models_lines() -> Iterator[str]:
    """The families that are read, those that are refused, and the types of files' tensors."""
    yield "### Families\n"
    yield "| `model_type` of config.json | `general.architecture` of GGUF | what it is |"
    yield "|---|---|---|"
    for family in FAMILIES:
        hf = [family.name, *(name for name, one in OTHER_NAMES.items() if one is family)]
        ggufs = [family.gguf] if family.gguf else []
        ggufs += [name for name, one in OTHER_GGUF_NAMES.items() if one.name == family.name]
        row = row_of(family)
        yield f"| {_codes(hf)} | {_codes(ggufs)} | {cell(row.about)} |"
    yield "\n### Refused families\n"
    yield "| why | names |"
    yield "|---|---|"
    for reason, names in REASONS.items():
        yield f"| {cell(reason)} | {_codes(names)} |"
    yield "\n### Types of tensors\n"
    yield "| type | bits a weight | in files | `lanewise quantize` writes it | held as |"
    yield "|---|---|---|---|---|"
    formats = {name.upper() for name in QUANTIZED_FORMATS}
    for kind in (*BLOCKS, *STORED_ROWS):
        files = "GGUF" if kind in BLOCKS else "Lanewise directories"
        if kind in HELD.values() and kind in STORED_ROWS:
            files = "none"
        quantized = "yes" if kind.name in formats else ""
        held = HELD.get(kind, kind).name
        bits = 8 * row_bytes(kind, WIDTH) / WIDTH
        yield f"| {kind.name} | {bits:.3g} | {files} | {quantized} | {held} |"


def _codes(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def metrics_lines() -> Iterator[str]:
    """All metrics: name, kind, labels and meaning."""
    yield "| metric | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for metric, labels in sorted(_all_metrics(), key=lambda pair: pair[0].name):
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        shown = _codes(sorted(labels - {"model_name", "engine", "le"}))
        yield f"| `{name}` | {metric.type} | {shown} | {cell(metric.documentation)} |"


def _all_metrics() -> Iterator[tuple[Metric, set[str]]]:
    """What a server with everything on can be asked for, each with its labels."""
    facts = ModelFacts("m", "i", 1, "w", "k", "v", "f16", True, 1, 1024, 1, 1, 1, 1)
    metrics = Metrics(facts)
    registry = metrics.registry
    MachineMetrics(registry)
    Front(Settings(), registry)
    Spending().count_in(registry)
    BatchMetrics(registry)
    RequestMiddleware(
        cast(Any, None),
        keys=Keys((), ()),
        pages=WebPages(host="127.0.0.1", has_keys=False),
        public=set(),
        canonical=str,
        errors=cast(Any, None),
        registry=registry,
    )
    engine = SimpleNamespace(metrics=metrics)
    health.count_readiness(cast(ServerState, SimpleNamespace(engine=engine)))
    for collector in [*registry._collector_to_names]:
        # Values of some are functions of a server that is not there: what they are is enough.
        describe_it = getattr(collector, "describe", None) or collector.collect
        known = set(getattr(collector, "_labelnames", ()))
        for metric in describe_it() or collector.collect():
            yield metric, known | {label for one in metric.samples for label in one.labels}


def page_of(endpoint: Endpoint) -> str:
    """The page that describes an endpoint."""
    return next(
        page
        for page, prefixes in DIALECTS.items()
        if any(endpoint.path.startswith(prefix) for prefix in prefixes)
    )


def endpoint_lines(page: str) -> Iterator[str]:
    """The endpoints of a dialect, the fields of each, and what has the same form in all."""
    every: Mapping[str, Any] = describe("0")["components"]["schemas"]
    endpoints = [one for one in ENDPOINTS if page_of(one) == page and one.method != "HEAD"]
    yield "| endpoint | body | what it does |"
    yield "|---|---|---|"
    for one in endpoints:
        body = "" if one.body is None else f"`{one.body.__name__}`"
        about = (one.answer.__doc__ or one.summary).split("\n")[0].replace("``", "`")
        yield f"| `{one.method} {one.path.replace(':path}', '}')}` | {body} | {cell(about)} |"
    told: set[str] = set()
    for one in endpoints:
        if one.body is None:
            continue
        for name in (one.body.__name__, *inner_schemas(every[one.body.__name__], every)):
            if name not in told and every[name].get("properties"):
                told.add(name)
                yield f"\n### {name}\n"
                yield from fields_table(every[name])


def check() -> list[str]:
    """The pages whose reference is not what the code says."""
    stale = []
    for page in references():
        text = pages.path_of(page).read_text(encoding="utf-8")
        if made(page, text) != text:
            stale.append(page)
    return stale
