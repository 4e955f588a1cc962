"""``lanewise doctor``: what this machine can do, which kernels it gets, and whether they work."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from lanewise import host, topology
from lanewise.commands.opening import open_model, placement_for
from lanewise.commands.selftest import run_selftest
from lanewise.engine.base.config import SchedulerConfig
from lanewise.planning.memory import plan_memory
from lanewise.runtime import (
    LibraryMissingError,
    best_isa,
    check_isa,
    cpu_features,
    kernels,
    numerics_version,
    tuning,
    usable_levels,
)
from lanewise.settings import DoctorSettings, Settings

MIN_MEMORY = 1 << 30  # below it only toys fit
MAX_LINES = 3  # of one thing
OK = 0
FAILED = 1


def run(settings: DoctorSettings) -> int:
    """Print the report; the exit status is 1 if the library or one of its kernels does not work."""
    limit = host.memory_limit()
    report = _host_report(settings, limit)
    try:
        report |= _native_report(settings, report["threads"], limit)
        if settings.model is not None:
            report |= _fit_model(settings, limit)
    except LibraryMissingError as error:
        report["library_error"] = str(error)
    if settings.json:
        print(json.dumps(report | {"problems": problems_of(report)}))
    else:
        _print(report, settings.kernels)
    return OK if report.get("selftest", {}).get("ok") else FAILED


def _host_report(settings: DoctorSettings, limit: host.MemoryLimit) -> dict[str, Any]:
    choice = host.default_threads()
    return {
        "cpu": host.cpu_name(),
        "threads": settings.threads or choice.threads,
        "threads_reason": choice.reason if settings.threads is None else "as asked for",
        "cpu_quota": _quota_report(),
        "memory": {
            "total_bytes": host.total_memory(),
            "limit_bytes": limit.n_bytes,
            "limit_reason": limit.reason,
        },
        "huge_pages": host.huge_pages(),
        "topology": _nodes(topology.read_topology()),
    }


def _quota_report() -> dict[str, Any]:
    throttling = host.cpu_throttling()
    return {
        "cpus": host.cpu_quota(),
        **asdict(throttling),
        "is_much": throttling.is_much,
    }


def _nodes(found: topology.Topology) -> list[dict[str, Any]]:
    return [
        {
            "node": node,
            "cores": sum(core.node == node for core in found.cores),
            "cpus": topology.format_list(found.cpus(node)),
            "free_bytes": found.memory.get(node),
        }
        for node in found.nodes()
    ]


def _native_report(
    settings: DoctorSettings, threads: int, limit: host.MemoryLimit
) -> dict[str, Any]:
    if settings.isa is not None:
        check_isa(settings.isa)
    results = run_selftest(threads)
    tuned = tuning.prepare(settings.isa, host.cpu_name(), enabled=settings.autotune)
    return {
        "features": cpu_features(),
        "isa": settings.isa or best_isa(),
        "levels": usable_levels(),
        "placement": asdict(placement_for(settings, threads, None, limit)),
        "numerics": numerics_version(),
        "autotune": asdict(tuned),
        "kernels": [asdict(row) for row in kernels()],
        "selftest": {
            "ok": all(result.equal for result in results),
            "results": [asdict(result) for result in results],
        },
    }


def _fit_model(settings: DoctorSettings, limit: host.MemoryLimit) -> dict[str, Any]:
    """Load the model; where it lies, and how much context fits beside it as ``serve`` would."""
    defaults = Settings()
    with open_model(settings) as opened:
        layout = opened.model.kv_layout(opened.kv_type, groups_by_window=True)
        config = SchedulerConfig(
            max_seqs=defaults.max_seqs,
            max_step_tokens=defaults.max_step_tokens,
            max_step_logits=defaults.max_step_tokens,
            max_model_len=opened.model.config.context_length,
            windows=layout.windows,
        )
        memory = plan_memory(
            limit, opened.model.info.packed_bytes, layout, config, defaults.max_draft
        )
        model = {
            "name": opened.checkpoint.name,
            "architecture": opened.model.config.architecture,
            "weights": opened.model.weights,
            "isa": opened.model.info.isa,
            "packed_bytes": memory.weight_bytes,
            "context_length": config.max_model_len,
            "kv_type": opened.kv_type,
            "kv_bytes": memory.kv_bytes,
            "kv_tokens": memory.kv_tokens,
            "kv_reason": memory.reason,
            "state_bytes": memory.state_bytes,
            "snapshots": memory.n_snapshots,
            "max_seqs": memory.max_seqs,
        }
        return {"model": model, "placement": asdict(opened.placement)}


def _print(report: dict[str, Any], shows_kernels: bool) -> None:
    console = Console(highlight=False)
    problems = problems_of(report)
    verdict = "all is well" if not problems else f"{host.count(len(problems), 'problem')}:"
    console.print(f"{'verdict':11} {verdict}", soft_wrap=True)
    for problem in problems:
        console.print(f"{'':11} - {problem}", soft_wrap=True)
    for name, value in _rows(report).items():
        console.print(f"{name:11} {value}", soft_wrap=True)
    if shows_kernels and "kernels" in report:
        console.print(_kernel_table(report["kernels"]))


def problems_of(report: dict[str, Any]) -> list[str]:
    """What keeps this machine from serving well, each with its remedy, the worst first."""
    found = []
    if "library_error" in report:
        found.append(f"the library cannot be used: {report['library_error']}; install anew")
    elif not report["selftest"]["ok"]:
        found += [f"self-test {line}; please report it" for line in _failures(report["selftest"])]
    quota, memory = report["cpu_quota"], report["memory"]
    if quota["is_much"]:
        found.append(f"the CPU quota stops all threads at once ({_quota_line(quota)})")
    if report["huge_pages"] == "transparent: never; reserved: 0":
        found.append(
            "huge pages are off, which costs speed: as root,"
            " echo madvise >/sys/kernel/mm/transparent_hugepage/enabled"
        )
    if memory["limit_bytes"] < MIN_MEMORY:
        found.append(
            f"{host.format_size(memory['limit_bytes'])} of memory ({memory['limit_reason']}) is"
            f" little: raise the limit to {host.format_size(MIN_MEMORY)} or more"
        )
    model = report.get("model")
    if model and model["max_seqs"] < Settings().max_seqs:
        found.append(
            f"states of {model['max_seqs']} sequences fit, not of {Settings().max_seqs}: more"
            " memory, or --max-seqs"
        )
    return found


def _rows(report: dict[str, Any]) -> dict[str, str]:
    """One line for each thing that was found or chosen."""
    memory = report["memory"]
    rows = {
        "CPU": report["cpu"],
        "threads": f"{report['threads']}: {report['threads_reason']}",
        "CPU quota": _quota_line(report["cpu_quota"]),
        "memory": f"{host.format_size(memory['limit_bytes'])} of "
        f"{host.format_size(memory['total_bytes'])}: {memory['limit_reason']}",
        "huge pages": report["huge_pages"],
        "nodes": _few(list(map(_node_line, report["topology"])), "nodes"),
    }
    if "library_error" not in report:
        rows["level"] = f"{report['isa']} (can run: {', '.join(report['levels'])})"
        rows["autotune"] = _autotune_line(report["autotune"])
        rows["placement"] = "threads {threads}\n{0:12}memory {memory}".format(
            "", **report["placement"]
        )
        rows["numerics"] = (
            f"version {report['numerics']}: the same answers on every machine with it"
        )
        rows["self-test"] = "; ".join(_selftest_lines(report["selftest"]))
    return rows | _model_rows(report.get("model"))


def _model_rows(model: dict[str, Any] | None) -> dict[str, str]:
    if model is None:
        return {}
    rows = {
        "model": f"{model['name']} ({model['architecture']}, {model['weights']}), "
        f"{host.format_size(model['packed_bytes'])} packed",
        "KV cache": f"{model['kv_tokens']} tokens of {model['kv_type']} in "
        f"{host.format_size(model['kv_bytes'])}: {model['kv_reason']}",
    }
    if model["state_bytes"]:
        rows["states"] = (
            f"{host.format_size(model['state_bytes'])}: of {model['max_seqs']} sequences and"
            f" {model['snapshots']} snapshots"
        )
    return rows


def _quota_line(quota: dict[str, Any]) -> str:
    if quota["cpus"] is None:
        return "none"
    return (
        f"{quota['cpus']:g} CPUs; stopped {quota['seconds']:.1f} s in {quota['throttled_periods']}"
        f" of {quota['periods']} periods since the control group was made"
        + (": raise it, or lower --threads" if quota["is_much"] else "")
    )


def _node_line(node: dict[str, Any]) -> str:
    free = node["free_bytes"]
    memory = "no memory for us" if free is None else f"{host.format_size(free)} free"
    cores = host.count(node["cores"], "core")
    return f"{node['node']}: {cores}, CPUs {node['cpus']}, {memory}"


def _autotune_line(autotune: dict[str, Any]) -> str:
    if not autotune["choices"]:
        return f"nothing to choose: {autotune['source']}"
    lines = [autotune["source"]]
    for choice in autotune["choices"]:
        rows = choice["min_rows"]
        use = "is not used" if rows == tuning.NEVER else f"from {rows} rows"
        lines.append(f"{choice['symbol']} {use}, else {choice['rival']}")
    return _few(lines, "lines")


def _few(lines: list[str], what: str) -> str:
    """The lines, or how many there are where they would push all else off the screen."""
    if len(lines) > MAX_LINES:
        lines = [lines[0], f"… {len(lines)} {what} in all; --json has them"]
    return ("\n" + " " * 12).join(lines)


def _kernel_table(kernel_rows: list[dict[str, Any]]) -> Table:
    table = Table(Column("kernel", no_wrap=True), "level", "weights", "rows", "here")
    for row in kernel_rows:
        here = "yes" if row["available"] else "no"
        rows = "none" if row["min_rows"] == tuning.NEVER else f"{row['min_rows']}+"
        table.add_row(row["symbol"], row["isa"], row["weights"], rows, here)
    return table


def _selftest_lines(selftest: dict[str, Any]) -> list[str]:
    if selftest["ok"]:
        levels = sorted({result["isa"] for result in selftest["results"]})
        return [f"ok: same bits as scalar in {', '.join(levels)}" if levels else "ok: scalar only"]
    return _failures(selftest)


def _failures(selftest: dict[str, Any]) -> list[str]:
    return [
        f"FAILED: {result['isa']}, {result['weights']}: "
        + (result["error"] or "its logits differ from scalar's")
        for result in selftest["results"]
        if not result["equal"]
    ]
