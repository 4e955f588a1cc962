"""``lanewise config``: every setting of ``serve``, its value, and where it came from."""

import dataclasses
import json
import os
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from lanewise import host
from lanewise.native.library import LibraryMissingError
from lanewise.runtime import best_isa
from lanewise.settings import ConfigSettings, Settings, grouped, shown_value, variables_of_others

DEFAULT = "default"


def run(settings: ConfigSettings, sources: Mapping[str, str]) -> None:
    """Print what ``lanewise serve`` would go by, told the same."""
    items = [
        (group, item) for group, items in grouped(dataclasses.fields(Settings)) for item in items
    ]
    rows = [
        (group, item.name, _value(settings, item), sources.get(item.name, DEFAULT))
        for group, item in items
    ]
    if settings.json:
        found = {name: {"value": value, "from": source} for _, name, value, source in rows}
        print(json.dumps(found, indent=2))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    before = ""
    for group, name, value, source in rows:
        if group != before:
            table.add_row(f"[bold]{group}[/bold]")
            before = group
        table.add_row(f"  {name}", value, source, style="dim" if source == DEFAULT else "")
    console = Console(soft_wrap=True)
    console.print(table)
    for sentence in variables_of_others(os.environ):
        console.print(sentence, highlight=False)


def _threads() -> str:
    choice = host.default_threads()
    return f"{choice.threads} ({choice.reason})"


def _isa() -> str:
    try:
        return f"{best_isa()} (the best of this CPU)"
    except LibraryMissingError:
        return "automatic"


def _kv_memory() -> str:
    limit = host.memory_limit()
    return f"automatic, of {host.format_size(limit.n_bytes)} ({limit.reason})"


# Settings that the server chooses by the machine when they are not given.
CHOSEN_HERE = {"threads": _threads, "isa": _isa, "kv_memory": _kv_memory}


def _value(settings: ConfigSettings, item: "dataclasses.Field[object]") -> str:
    value = getattr(settings, item.name)
    if value is None and item.name in CHOSEN_HERE:
        return CHOSEN_HERE[item.name]()
    if isinstance(value, int) and item.metadata["kind"].metavar == "SIZE" and not settings.json:
        return host.format_size(value)
    return shown_value(item, value)
