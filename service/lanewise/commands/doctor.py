"""``lanewise doctor``: what this machine can do, which kernels it gets, and whether they work."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from lanewise import host, topology
from lanewise.commands.opening import open_model, placement_for
from lanewise.commands.selftest import run_selftest
from lanewise.engine.config import SchedulerConfig
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
        print(json.dumps(report))
    else:
        _print(report)
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


def _print(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    memory = report["memory"]
    rows = {
        "CPU": report["cpu"],
        "threads": f"{report['threads']}: {report['threads_reason']}",
        "CPU quota": _quota_line(report["cpu_quota"]),
        "memory": f"{host.format_size(memory['limit_bytes'])} of "
        f"{host.format_size(memory['total_bytes'])}: {memory['limit_reason']}",
        "huge pages": report["huge_pages"],
        "nodes": ("\n" + " " * 12).join(map(_node_line, report["topology"])),
    }
    if "library_error" in report:
        rows["library"] = f"FAILED: {report['library_error']}"
    else:
        rows["features"] = " ".join(report["features"])
        rows["level"] = f"{report['isa']} (can run: {', '.join(report['levels'])})"
        rows["autotune"] = _autotune_line(report["autotune"])
        rows["placement"] = "threads {threads}\n{0:12}memory {memory}".format(
            "", **report["placement"]
        )
    if model := report.get("model"):
        rows["model"] = (
            f"{model['name']} ({model['architecture']}, {model['weights']}), "
            f"{host.format_size(model['packed_bytes'])} packed"
        )
        rows["KV cache"] = (
            f"{model['kv_tokens']} tokens of {model['kv_type']} in "
            f"{host.format_size(model['kv_bytes'])}: {model['kv_reason']}"
        )
        if model["state_bytes"]:
            rows["states"] = (
                f"{host.format_size(model['state_bytes'])}: of {model['max_seqs']} sequences and"
                f" {model['snapshots']} snapshots"
            )
            asked = Settings().max_seqs
            if model["max_seqs"] < asked:
                rows["states"] += f"; for max_seqs {asked} there is not enough memory"
    for name, value in rows.items():
        console.print(f"{name:11} {value}", soft_wrap=True)
    if "kernels" in report:
        console.print(_kernel_table(report["kernels"]))
        for line in _selftest_lines(report["selftest"]):
            console.print(f"self-test   {line}", soft_wrap=True)


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
    return [
        f"FAILED: {result['isa']}, {result['weights']}: "
        + (result["error"] or "its logits differ from scalar's")
        for result in selftest["results"]
        if not result["equal"]
    ]
