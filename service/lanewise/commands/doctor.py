"""``lanewise doctor``: what this machine can do, which kernels it gets, and whether they work."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from lanewise import host
from lanewise.commands.opening import open_model
from lanewise.commands.selftest import LevelResult, run_selftest
from lanewise.runtime import (
    BLOCK_TOKENS,
    best_isa,
    check_isa,
    cpu_features,
    kernels,
    numerics_version,
)
from lanewise.settings import DoctorSettings, Settings

OK = 0
FAILED = 1


def run(settings: DoctorSettings) -> int:
    """Print the report; the exit status is 1 if a kernel is wrong."""
    choice = host.default_threads()
    limit = host.memory_limit()
    if settings.isa is not None:
        check_isa(settings.isa)
    threads = settings.threads or choice.threads
    selftest = run_selftest(threads)
    report: dict[str, Any] = {
        "cpu": host.cpu_name(),
        "features": cpu_features(),
        "isa": settings.isa or best_isa(),
        "numerics": numerics_version(),
        "threads": threads,
        "threads_reason": choice.reason if settings.threads is None else "as asked for",
        "memory": {
            "total_bytes": host.total_memory(),
            "limit_bytes": limit.n_bytes,
            "limit_reason": limit.reason,
        },
        "huge_pages": host.huge_pages(),
        "kernels": [asdict(row) for row in kernels()],
        "selftest": {
            "ok": all(result.equal for result in selftest),
            "results": [asdict(result) for result in selftest],
        },
    }
    if settings.model is not None:
        report["model"] = _fit_model(settings, limit)
    if settings.json:
        print(json.dumps(report))
    else:
        _print(report, selftest)
    return OK if report["selftest"]["ok"] else FAILED


def _fit_model(settings: DoctorSettings, limit: host.MemoryLimit) -> dict[str, object]:
    """Load the model and say how much context fits beside it with the settings of ``serve``."""
    defaults = Settings()
    with open_model(settings) as opened:
        block_bytes = opened.model.kv_block_bytes(opened.kv_type)
        context = opened.model.config.context_length
        choice = host.choose_kv_blocks(
            kv_memory=None,
            limit=limit,
            packed_bytes=opened.model.info.packed_bytes,
            block_bytes=block_bytes,
            block_tokens=BLOCK_TOKENS,
            max_seqs=defaults.max_seqs,
            max_model_len=context,
        )
        return {
            "name": opened.checkpoint.name,
            "architecture": opened.model.config.architecture,
            "weights": opened.model.weights,
            "isa": opened.model.info.isa,
            "packed_bytes": opened.model.info.packed_bytes,
            "context_length": context,
            "kv_type": opened.kv_type,
            "kv_bytes": choice.n_bytes,
            "kv_tokens": choice.blocks * BLOCK_TOKENS,
            "kv_reason": choice.reason,
        }


def _print(report: dict[str, Any], selftest: list[LevelResult]) -> None:
    console = Console(highlight=False)
    memory = report["memory"]
    rows = {
        "CPU": report["cpu"],
        "features": " ".join(report["features"]),
        "level": report["isa"],
        "threads": f"{report['threads']}: {report['threads_reason']}",
        "memory": f"{host.format_size(memory['limit_bytes'])} of "
        f"{host.format_size(memory['total_bytes'])}: {memory['limit_reason']}",
        "huge pages": report["huge_pages"],
    }
    if model := report.get("model"):
        rows["model"] = (
            f"{model['name']} ({model['architecture']}, {model['weights']}), "
            f"{host.format_size(model['packed_bytes'])} packed"
        )
        rows["KV cache"] = (
            f"{model['kv_tokens']} tokens of {model['kv_type']} in "
            f"{host.format_size(model['kv_bytes'])}: {model['kv_reason']}"
        )
    for name, value in rows.items():
        console.print(f"{name:11} {value}", soft_wrap=True)
    table = Table("kernel", "level", "weights", "smallest batch", "available")
    for kernel in report["kernels"]:
        table.add_row(
            kernel["symbol"],
            kernel["isa"],
            kernel["weights"],
            str(kernel["min_rows"]),
            "yes" if kernel["available"] else "no",
        )
    console.print(table)
    bad = [result for result in selftest if not result.equal]
    levels = sorted({result.isa for result in selftest})
    if not bad:
        console.print(f"self-test   ok: {', '.join(levels) or 'scalar only'}")
    for result in bad:
        detail = result.error or "its logits differ from scalar's"
        console.print(f"self-test   FAILED: {result.isa}, {result.weights}: {detail}")
