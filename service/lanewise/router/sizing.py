"""A program that reads a model's header and says what memory its server will take, and where from.

Reads one JSON object, ``settings``, ``budget`` and ``memory``, and writes one.
"""

import json
import sys
from typing import Any

from lanewise import host
from lanewise.engine.base.config import SchedulerConfig
from lanewise.held import held_within
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.hub import resolve_model
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.planning.memory import plan_memory
from lanewise.runtime import Model
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.targets import held_bytes, held_name, tower_bytes
from lanewise.settings import Settings, SettingsError, resolve_mapping

# Interpreter, library, tokenizer and activations of a step.
PROCESS_BYTES = 384 * host.MIB
SHARE = 8  # of the budget one part is for keys and values of a model, unless its settings say


def size_of(settings: Settings, budget: int, memory: int | None) -> dict[str, Any]:
    """Bytes of the process, and the settings that hold it to that."""
    limit = host.MemoryLimit(memory or budget, "memory of --models", dedicated=True)
    held = held_within(
        limit,
        requests=settings.request_memory,
        grammars=settings.grammar_cache_memory,
        responses=settings.response_store_bytes,
        body=settings.max_body_bytes,
    )
    more = {"request_memory": held.requests, "grammar_cache_memory": held.grammars}
    more["response_store_bytes"] = held.responses
    path = resolve_model(settings.model)
    draft = read_draft(settings.draft if settings.speculation else None)
    with open_checkpoint(path, settings.hf_overrides, mtp=draft.mtp, head=draft.head) as checkpoint:
        checkpoint.limit_context(settings.max_model_len)
        weights = held_bytes(checkpoint, settings.weights)
        weights += tower_bytes(checkpoint, settings.tower_weights)
        fixed = weights + held.n_bytes + PROCESS_BYTES
        if checkpoint.config.pooling is not None:
            return {"bytes": memory or fixed, "settings": more}
        kv_type = resolve_kv_type(settings.kv_cache_dtype, held_name(checkpoint, settings.weights))
        with Model(checkpoint, isa=None, threads=1) as model:  # nothing is loaded into it
            layout = model.kv_layout(kv_type, groups_by_window=draft.model is None)
        context = settings.max_model_len or checkpoint.config.context_length
    if settings.kv_memory is not None:
        return {"bytes": memory or fixed + settings.kv_memory, "settings": more}
    if memory is not None:
        kv = memory - fixed
    else:
        steps = settings.max_step_tokens
        config = SchedulerConfig(
            max_seqs=settings.max_seqs,
            max_step_tokens=steps,
            max_step_logits=steps,
            max_model_len=context,
            windows=layout.windows,
        )
        plan = plan_memory(limit, weights, layout, config, settings.max_draft)
        kv = min(plan.kv_bytes + plan.state_bytes, max(plan.needed_bytes(1), budget // SHARE))
    return {"bytes": memory or fixed + kv, "settings": more | {"kv_memory": max(kv, 1)}}


def main() -> int:
    """Read, plan, write; the exit status."""
    asked = json.load(sys.stdin)
    try:
        settings = resolve_mapping(Settings, asked["settings"], "models")
        print(json.dumps(size_of(settings, asked["budget"], asked["memory"])))
    except (host.HostError, ModelFileError, SettingsError, OSError) as error:
        print(f"lanewise: {error}".replace("\n", " "), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
