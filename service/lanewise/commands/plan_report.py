"""Prints plans and the machines that they can be made for."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from lanewise.host import MIB, count, format_size
from lanewise.planning.machines import Instance

MAX_USED = 0.9  # of the memory, by weights and conversations
MAX_FOUND = 15  # machines that are shown
MIN_WIDTH = 110  # of a table's line, where no terminal says how wide it is


def print_plan(report: dict[str, Any]) -> None:
    """What it is planned for, then one line for each number of users."""
    console = _console()
    for name, value in _lines(report).items():
        console.print(f"{name:10} {value}", soft_wrap=True, markup=False)
    console.print(_users_table(report), soft_wrap=True)
    for line in _advice(report):
        console.print(line, soft_wrap=True, markup=False)


def print_instances(rows: Sequence[Instance]) -> None:
    """One line for each machine."""
    heads = ("cores", "memory", "GB/s", "USD/hour")
    right = [Column(head, justify="right", no_wrap=True) for head in heads]
    names = [Column(name, no_wrap=True) for name in ("instance", "core", "level")]
    table = Table(*names, *right, Column("estimated"), box=None, pad_edge=False)
    for row in rows:
        sizes = (str(row.cores), format_size(row.memory_bytes), f"{row.read_gb_s:.0f}")
        price = "" if row.price is None else f"{row.price.usd_hour:g}"
        table.add_row(row.name, row.core, row.isa, *sizes, price, ", ".join(row.estimates))
    _console().print(table, soft_wrap=True)


def print_found(rows: Sequence[dict[str, Any]]) -> None:
    """The machines that hold what was asked, the cheapest first."""
    heads = (
        "cores",
        "memory",
        "USD/hour",
        "first token, p95",
        "between",
        "tokens/s",
        "USD/M tokens",
    )
    right = [Column(head, justify="right", no_wrap=True) for head in heads]
    names = [Column(name, no_wrap=True) for name in ("instance", "core")]
    table = Table(*names, *right, Column("estimated"), box=None, pad_edge=False)
    for row in rows:
        price, million = row["usd_hour"], row["usd_per_million_tokens"]
        table.add_row(
            *(row["name"], row["core"], str(row["cores"]), format_size(row["memory_bytes"])),
            "not known" if price is None else f"{price:g}",
            *(_milliseconds(row["first_token_p95_s"]), _milliseconds(row["between_tokens_s"])),
            f"{row['tokens_s']:.0f}",
            "" if million is None else f"{million:.3g}",
            ", ".join(row["estimates"]),
        )
    console = _console()
    if rows:
        console.print(table, soft_wrap=True)
        said = f"{count(len(rows), 'machine')} that hold it, by price"
        console.print(said + ("; --json has all" if len(rows) == MAX_FOUND else ""))
    else:
        console.print(
            "no machine that is known holds it; fewer users, fewer bits or longer times may"
        )


def _console() -> Console:
    console = Console(highlight=False)
    console.width = max(console.width, MIN_WIDTH)
    return console


def _lines(report: dict[str, Any]) -> dict[str, str]:
    model, machine, memory = report["model"], report["machine"], report["memory"]
    alone = report["alone"]
    return {
        "model": f"{model['name']}, {model['weights']}:"
        f" {format_size(memory['weight_bytes'])}, of which a token reads"
        f" {format_size(int(model['token_bytes']))}" + _tower_line(memory),
        "machine": f"{machine['name']}, {machine['isa']},"
        f" {count(machine['threads'], 'thread')}, reads {machine['read_gb_s']:.0f} GB/s"
        + (" (measured)" if machine["measured"] else f": {report['engine']} on paper"),
        "memory": f"{format_size(memory['limit_bytes'])} ({memory['limit_reason']});"
        f" keys and values: {memory['kv_tokens']} tokens of {model['kv_type']} in"
        f" {format_size(memory['kv_bytes'])}" + _states_line(memory),
        "price": _price_line(machine["price"]),
        "alone": f"prompt {alone['prompt_tokens_s']:.0f} tokens/s ({alone['prompt_limit']}),"
        f" decode {alone['decode_tokens_s']:.1f} tokens/s ({alone['decode_limit']})",
    }


def _tower_line(memory: dict[str, Any]) -> str:
    if not memory["tower_bytes"]:
        return ""
    return f"; {format_size(memory['tower_bytes'])} of it read pictures, whose time is not planned"


def _states_line(memory: dict[str, Any]) -> str:
    if not memory["state_bytes"]:
        return ""
    running = count(memory["max_seqs"], "sequence")
    return f"; states: {format_size(memory['state_bytes'])}, {running} at a time"


def _price_line(price: dict[str, Any] | None) -> str:
    if price is None:
        return "not known; --price says what an hour costs"
    if price["as_of"] is None:
        return f"{price['usd_hour']:g} USD an hour, as asked for"
    where = f"{price['region']} on {price['as_of']}"
    return f"{price['usd_hour']:g} USD an hour on demand, {where}; --price has another"


def _users_table(report: dict[str, Any]) -> Table:
    heads = ("users", "first token, median", "p95", "between", "tokens/s", "memory", "USD/M tokens")
    right = [Column(head, justify="right", no_wrap=True) for head in heads]
    title = f"{report['prompt_tokens']} tokens in, {report['answer_tokens']} out"
    table = Table(*right, Column("limit", no_wrap=True), title=title, box=None, pad_edge=False)
    for row in report["users"]:
        usd = row["usd_per_million_tokens"]
        table.add_row(
            str(row["clients"]),
            _milliseconds(row["first_token_s"]),
            _milliseconds(row["first_token_p95_s"]),
            _milliseconds(row["between_tokens_s"]),
            f"{row['tokens_s']:.1f}",
            format_size(report["memory"]["weight_bytes"] + row["kv_needed_bytes"]),
            "" if usd is None else f"{usd:.2f}",
            _limit(row),
        )
    return table


def _limit(row: dict[str, Any]) -> str:
    share = row["shares"].get(row["limit"])
    return row["limit"] if share is None else f"{row['limit']} {share:.0%}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def _remedy(row: dict[str, Any], memory: dict[str, Any]) -> str:
    """What makes their conversations fit: a setting of the server, or another machine."""
    needed = -(-row["kv_needed_bytes"] // MIB)
    # Beside both the server, texts and requests need room, as when it sizes the cache itself.
    if memory["weight_bytes"] + row["kv_needed_bytes"] <= MAX_USED * memory["limit_bytes"]:
        return f"`lanewise serve --kv-memory {needed}MiB` holds them"
    whole = (memory["weight_bytes"] + row["kv_needed_bytes"]) / MAX_USED
    return f"a machine with {format_size(int(whole))} holds them, or --kv-cache-dtype int8"


def _advice(report: dict[str, Any]) -> list[str]:
    memory, instance = report["memory"], report["machine"]["instance"]
    lines = []
    if report["busy"]:
        lines.append(
            f"others used the measured machine: {report['busy']}; it can do more than this"
        )
    for row in report["users"]:
        if row["clients"] > report["most_users"]:
            lines.append(
                f"{row['clients']} users: with more than {report['most_users']} at a time some get"
                " status 429; --max-queued-requests lets more wait"
            )
        if row["fits"]:
            continue
        lines.append(
            f"{row['clients']} users: conversations give way to others; {_remedy(row, memory)}"
        )
    if instance is not None:
        share = instance["read_gb_s"]
        if instance["is_shared"]:
            lines.append(
                f"others on the processor read from the same memory: {share:.0f} GB/s are there"
                " when they do not; --bandwidth says what is left"
            )
        if instance["estimates"]:
            named = ", ".join(instance["estimates"])
            lines.append(f"estimated, not published: {named} ({instance['source']})")
    return lines
