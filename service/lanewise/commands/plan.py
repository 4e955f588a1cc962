"""``lanewise plan``: what so many users would see on a machine, and what tokens would cost."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lanewise import host
from lanewise.commands.bench import measure
from lanewise.commands.opening import open_model
from lanewise.commands.plan_report import MAX_FOUND, print_found, print_instances, print_plan
from lanewise.commands.progress import steps_bar
from lanewise.loading.checkpoints.drafts import read_head
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.planning.machines import Instance, Price, find_instance, instances, machine_of
from lanewise.planning.measured import calibrated, machine_of_report, points_of
from lanewise.planning.report import Asked, Planned, report_of
from lanewise.planning.searching import Goal, holding, is_of
from lanewise.planning.steps import step_time
from lanewise.planning.work import ModelWork, cached_token_bytes, moved_state_bytes, work_of
from lanewise.runtime import KvLayout, Model
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_name
from lanewise.settings import BenchSettings, PlanSettings, Settings, SettingsError

SYSTEM_SHARE = 0.03  # of an instance's memory: what its system keeps
DECODE_TOKENS = 32  # of each decode test on this machine
MAX_MEASURED = 32  # sequences


def run(settings: PlanSettings) -> None:
    """Print a table or a JSON object."""
    if settings.instances:
        rows = [one for one in instances() if is_of(one, settings.arch)]
        if settings.json:
            print(json.dumps([asdict(one) for one in rows]))
        else:
            print_instances(rows)
        return
    instance = _check(settings)
    if is_search(settings):
        _search(settings)
        return
    if settings.instance is None and settings.bench is None:
        planned = _plan_here(settings)
    else:
        planned = _plan_elsewhere(settings, instance)
    report = report_of(planned, _asked(settings, instance)) | {"busy": planned.busy}
    if settings.json:
        print(json.dumps(report))
    else:
        print_plan(report)


def is_search(settings: PlanSettings) -> bool:
    """Whether machines are looked for, rather than one planned for."""
    return settings.itl is not None or settings.ttft is not None or settings.arch != "any"


def _search(settings: PlanSettings) -> None:
    """Plan for every machine that is known, and print those that hold what is asked, by price."""
    goal = Goal(settings.itl, settings.ttft, settings.arch)
    with _opened_elsewhere(settings) as plan_for, steps_bar("planning for") as bar:
        rows = [one for one in instances() if is_of(one, settings.arch)]
        rows.sort(key=lambda one: float("inf") if one.price is None else one.price.usd_hour)
        task = bar.add_task("machines", total=len(rows))
        found: list[dict[str, Any]] = []
        for instance in rows:
            if (held := holding(plan_for(instance), _asked(settings, instance), goal)) is not None:
                found.append(held)
            bar.advance(task)
            if len(found) == MAX_FOUND and not settings.json:
                break  # the cheapest come first
    report = {"asked": asdict(goal) | {"users": settings.users}, "machines": found}
    if settings.json:
        print(json.dumps(report))
    else:
        print_found(found)


def _check(settings: PlanSettings) -> Instance | None:
    """What can be refused before a model is opened; the instance."""
    if is_search(settings) and (settings.bench is not None or settings.instance is not None):
        raise SettingsError(
            "--itl, --ttft and --arch look for machines; accepted: without --instance and --bench"
        )
    if settings.bench is not None and settings.instance is not None:
        raise SettingsError(
            f"--bench: {settings.bench!r} beside --instance {settings.instance}; accepted: one"
        )
    if settings.instance is None:
        for flag, value in (("--engine", settings.engine), ("--bandwidth", settings.bandwidth)):
            if value not in ("lanewise", None) and not (is_search(settings) and flag == "--engine"):
                raise SettingsError(f"{flag}: {value}; accepted: only beside --instance")
        return None
    instance = find_instance(settings.instance)
    if instance is None:
        raise SettingsError(
            f"--instance: {settings.instance!r}; accepted: one of those that"
            f" `lanewise plan --instances` lists, such as {_like(settings.instance)}"
        )
    if settings.threads is not None and settings.threads > instance.cores:
        raise SettingsError(
            f"--threads: {settings.threads}; accepted: 1 to the {instance.cores} cores of"
            f" {instance.name}"
        )
    return instance


def _like(name: str) -> str:
    names = [one.name for one in instances()]
    family = name.lower().partition(".")[0]
    alike = [one for one in names if one.lower().startswith(family)]
    return ", ".join((alike or names)[:3])


def _asked(settings: PlanSettings, instance: Instance | None) -> Asked:
    """What users do, at a server with default settings."""
    defaults = Settings()
    price = None if instance is None else instance.price
    return Asked(
        users=settings.users,
        prompt_tokens=settings.prompt_tokens,
        answer_tokens=settings.answer_tokens,
        context=settings.context or settings.prompt_tokens + settings.answer_tokens,
        engine=settings.engine,
        price=price if settings.price is None else Price(settings.price),
        max_seqs=defaults.max_seqs,
        max_step_tokens=defaults.max_step_tokens,
        max_queued_requests=defaults.max_queued_requests,
        itl_target_s=defaults.itl_target_ms / 1000,
        max_draft=defaults.max_draft,
    )


def _plan_here(settings: PlanSettings) -> Planned:
    """Load the model and measure it with contexts and numbers of users as they are planned."""
    limit = _limit(settings, None)  # before the model takes its part
    with open_model(settings, draft=settings.draft) as opened:
        longest = opened.model.config.context_length
        _check_lengths(settings, longest)
        context = settings.prompt_tokens + settings.answer_tokens // 2
        most = min(MAX_MEASURED, max(settings.users))
        tests = BenchSettings(
            isa=settings.isa,
            prefill=settings.prompt_tokens,
            decode=DECODE_TOKENS,
            batch=tuple(sorted({most, *(1 << i for i in range(most.bit_length()))})),
            context=max(1, min(context, longest - DECODE_TOKENS)),
        )
        report, _ = measure(tests, opened)
        layout = opened.model.kv_layout(opened.kv_type, groups_by_window=True)
        token_bytes = cached_token_bytes(opened.model, opened.kv_type)
        moved = moved_state_bytes(opened.model)
        work = work_of(opened.checkpoint, settings.weights, token_bytes, moved)
        return _by_bench(
            report, opened.model.name, opened.model.weights, opened.kv_type, layout, work, limit
        )


def _plan_elsewhere(settings: PlanSettings, instance: Instance | None) -> Planned:
    """Plan for a machine that is not this one."""
    with _opened_elsewhere(settings) as plan_for:
        return plan_for(instance)


@contextmanager
def _opened_elsewhere(settings: PlanSettings) -> Iterator[Callable[[Instance | None], Planned]]:
    """What plans for any machine: the model's matrices are known, but none of them is read."""
    draft = read_head(settings.draft)
    with open_checkpoint(
        resolve_model(settings.model), mtp=draft.mtp, head=draft.head
    ) as checkpoint:
        _check_lengths(settings, checkpoint.config.context_length)
        weights = held_name(checkpoint, settings.weights)
        kv_type = resolve_kv_type(settings.kv_cache_dtype, weights)
        with Model(checkpoint, isa=None, threads=1) as model:  # nothing is loaded into it
            layout = model.kv_layout(kv_type, groups_by_window=True)
            token_bytes, moved = cached_token_bytes(model, kv_type), moved_state_bytes(model)
        work = work_of(checkpoint, settings.weights, token_bytes, moved)

        def plan_for(instance: Instance | None) -> Planned:
            limit = _limit(settings, instance)
            if instance is None:
                report = _read_bench(str(settings.bench), checkpoint.name, weights)
                return _by_bench(report, checkpoint.name, weights, kv_type, layout, work, limit)
            machine = machine_of(
                instance,
                settings.engine,
                threads=settings.threads,
                read_gb_s=settings.bandwidth,
                kv_type=kv_type,
            )
            return Planned(
                name=checkpoint.name,
                weights=weights,
                kv_type=kv_type,
                layout=layout,
                work=work,
                machine=machine,
                cost=partial(step_time, machine, work),
                limit=limit,
                instance=instance,
            )

        yield plan_for


def _by_bench(
    report: dict[str, Any],
    name: str,
    weights: str,
    kv_type: str,
    layout: KvLayout,
    work: ModelWork,
    limit: host.MemoryLimit,
) -> Planned:
    """A plan for the machine that a bench of the model was run on."""
    machine = machine_of_report(report)
    cost = calibrated(machine, work, points_of(report, work.windows))
    busy = report.get("busy")
    return Planned(
        *(name, weights, kv_type, layout, work, machine, cost, limit),
        busy=None if busy is None else str(busy),
    )


def _read_bench(path: str, name: str, weights: str) -> dict[str, Any]:
    """A report of ``lanewise bench --json`` of this model."""
    try:
        report: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        measured = (report["model"], report["weights"])
        points = points_of(report)
        machine_of_report(report)
    except OSError as error:
        raise SettingsError(f"--bench: {path!r}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        raise SettingsError(
            f"--bench: {path!r} is no such report; accepted: what `lanewise bench --json` prints"
        ) from None
    if measured != (name, weights):
        raise SettingsError(
            f"--bench: {path!r} is of {measured[0]}, {measured[1]}; accepted: one of {name},"
            f" {weights}"
        )
    if len({point.size.rows for point in points}) < 2:
        raise SettingsError(
            f"--bench: {path!r} has {len(points)} results; accepted: a prompt and decode tests"
        )
    return report


def _limit(settings: PlanSettings, instance: Instance | None) -> host.MemoryLimit:
    if settings.memory is not None:
        return host.MemoryLimit(settings.memory, "--memory", dedicated=True)
    if instance is not None:
        n_bytes = int((1 - SYSTEM_SHARE) * instance.memory_bytes)
        return host.MemoryLimit(n_bytes, f"memory of {instance.name}", dedicated=False)
    return host.memory_limit()


def _check_lengths(settings: PlanSettings, longest: int) -> None:
    needed = settings.prompt_tokens + settings.answer_tokens
    context = settings.context or needed
    if needed > longest:
        raise SettingsError(
            f"--prompt-tokens: {settings.prompt_tokens} and --answer-tokens"
            f" {settings.answer_tokens}; accepted: the model's {longest} in all"
        )
    if not needed <= context <= longest:
        raise SettingsError(
            f"--context: {context}; accepted: from the {needed} of prompt and answer to the"
            f" model's {longest}"
        )
