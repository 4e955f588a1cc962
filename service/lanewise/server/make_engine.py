"""Makes the engine of a loaded model: how much KV cache, which limits, which session."""

import logging
from dataclasses import dataclass, replace

from lanewise import __version__, host
from lanewise.engine.base.adapters import Adapters
from lanewise.engine.base.config import EngineConfig
from lanewise.engine.base.picture import PictureRules
from lanewise.engine.base.window import Windows
from lanewise.engine.engine import Engine
from lanewise.engine.guessing.block_head import head_of
from lanewise.engine.guessing.draft_model import DraftModel
from lanewise.engine.kv.states import blocks_between, blocks_per_snapshot
from lanewise.engine.metering.metrics import Metrics, ModelFacts
from lanewise.held import TEXTS
from lanewise.runtime import BLOCK_TOKENS, KvLayout, Model, Session, kernels_in_use
from lanewise.runtime.model import resolve_kv_type
from lanewise.runtime.step_threads import limit_threads
from lanewise.runtime.tower import Tower, bytes_for, kv_type_of
from lanewise.server.adapters import adapter_bytes
from lanewise.server.draft import OpenedDraft
from lanewise.server.make_store import store_opener
from lanewise.server.names import names_of
from lanewise.settings import Settings, SettingsError
from lanewise.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

# Rows of logits are large (a vocabulary each); prompts are scored in pieces that fit this.
LOGITS_BYTES = 128 << 20
MANY_THREADS, LONG_STEP_S = 8, 0.010


def make_engine(
    settings: Settings,
    model: Model,
    draft: OpenedDraft | None,
    tokenizer: Tokenizer,
    threads: int,
    limit: host.MemoryLimit,
    adapters: Adapters | None,
    *,
    sees: bool = False,
) -> Engine:
    """The engine with its session; the KV cache takes what memory the settings leave it.

    It ``sees`` where prompts may have pictures, for which the model has a tower.
    """
    cache = plan_cache(settings, model, draft, limit, adapters)
    config = engine_config(settings, model, tokenizer, threads, cache, limit)
    if sees and model.vision is not None:
        vision = model.vision
        rules = PictureRules(vision.n_axes, vision.both_ways != "none", vision.row_token_id)
        config = replace(config, pictures=rules)
    session = Session(
        model,
        threads=threads,
        blocks=config.n_blocks,
        max_batch_tokens=config.max_step_tokens,
        max_batch_logits=config.max_step_logits,
        kv_type=cache.kv_type,
        groups_by_window=draft is None,
        states=config.max_seqs + (config.n_snapshots or 0),
        max_guesses=config.max_draft,
        max_adapter_rank=0 if adapters is None else settings.max_lora_rank,
    )
    limit_threads(session, threads, settings.decode_threads)
    facts = ModelFacts(
        model_name=names_of(settings, model)[0],
        isa=model.info.isa,
        threads=threads,
        weights=model.weights,
        kernels=",".join(kernels_in_use(model.info.isa, model.weights)),
        version=__version__,
        kv_type=cache.kv_type,
        prefix_cache=config.prefix_cache,
        n_blocks=config.n_blocks,
        max_model_len=config.max_model_len,
        max_draft=config.max_draft,
        max_loras=0 if adapters is None else settings.max_loras,
        n_snapshots=config.n_snapshots or 0,
        state_bytes=cache.state_bytes,
    )
    guesses = (
        head_of(session, config, model) if draft is None else _run_draft(draft, threads, config)
    )
    tower = None
    if sees and model.tower is not None:
        most = most_patches(model.tower, config.max_model_len)
        tower = Tower(model.tower, threads=threads, max_patches=most)
    store = store_opener(settings, model, cache.kv_type, cache.n_snapshots)
    images = settings.image_cache_memory
    return Engine(session, config, Metrics(facts), guesses, tower, images, store)


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The KV cache: how many blocks of what, and how long a context they make possible."""

    blocks: int
    kv_type: str
    max_model_len: int
    # Tokens that each sees in every group of layers, as far as blocks out of sight are given back.
    windows: tuple[int | None, ...]
    max_seqs: int  # the settings', or fewer where states of more do not fit
    # Of models that keep a state: places for snapshots, blocks of an answer between two of them,
    # and what all states take.
    n_snapshots: int | None = None
    snapshot_blocks: int = 1
    state_bytes: int = 0


def plan_cache(
    settings: Settings,
    model: Model,
    draft: OpenedDraft | None,
    limit: host.MemoryLimit,
    adapters: Adapters | None,
) -> CachePlan:
    """Share the memory that is left; SettingsError or HostError if the context does not fit."""
    context = model.config.context_length
    asked = settings.max_model_len
    check_context(settings, context)
    kv_type = resolve_kv_type(settings.kv_cache_dtype, model.weights)
    # A draft model reads a text later than the model does, and from its beginning on.
    layout = model.kv_layout(kv_type, groups_by_window=draft is None)
    sizes = layout.windows if draft is None else (None,)
    windows = Windows.for_steps(sizes, settings.max_step_tokens)
    packed_bytes = model.info.packed_bytes + adapter_bytes(settings, model, adapters)
    packed_bytes += draft.model.info.packed_bytes if draft else 0
    packed_bytes += model.tower.info.packed_bytes if model.tower is not None else 0
    if model.tower is not None:
        most = most_patches(model.tower, asked or context)
        kv_type_of_tower = kv_type_of(model.tower.weights)
        packed_bytes += bytes_for(model.tower.config, most, settings.threads or 1, kv_type_of_tower)
        packed_bytes += settings.image_cache_memory
    block_bytes = layout.block_bytes + (draft.block_bytes if draft else 0)
    kv = _choose(settings, layout, windows, limit, asked or context, packed_bytes, block_bytes)
    _warn_of_too_much(kv, packed_bytes, limit)
    max_model_len = windows.longest(kv.blocks, asked or context)
    _check_length(asked, max_model_len, kv)
    logger.info(
        "KV cache: %d blocks of %d tokens in %s, %s (%s); the context holds %d tokens",
        *(kv.blocks, BLOCK_TOKENS, kv_type, host.format_size(kv.n_bytes), kv.reason),
        max_model_len,
    )
    if not layout.state_bytes:
        if settings.snapshot_memory is not None:
            logger.warning("snapshot_memory is of no use: no layer of this model keeps a state")
        return CachePlan(kv.blocks, kv_type, max_model_len, sizes, kv.max_seqs)
    each = host.format_size(layout.place_bytes(settings.max_draft))
    if kv.max_seqs < settings.max_seqs:
        logger.warning(
            "max_seqs is lowered from %d to %d: states of %s each take half of the memory for keys,"
            " values and states; more memory, or kv_memory, lets more sequences run at a time",
            *(settings.max_seqs, kv.max_seqs, each),
        )
    logger.info(
        "states: %s for %d sequences and %d snapshots, %s each",
        *(host.format_size(kv.state_bytes), kv.max_seqs, kv.n_snapshots, each),
    )
    return CachePlan(
        kv.blocks,
        kv_type,
        max_model_len,
        sizes,
        kv.max_seqs,
        n_snapshots=kv.n_snapshots,
        snapshot_blocks=blocks_between(layout, settings.max_draft),
        state_bytes=kv.state_bytes,
    )


def most_patches(tower: Model, max_model_len: int) -> int:
    """Patches of the largest image whose rows a context has room for."""
    assert tower.config.patches is not None
    return min(tower.config.context_length, max_model_len * tower.config.patches.merge**2)


def check_context(settings: Settings, context: int) -> None:
    """SettingsError where longer texts are asked for than the model reads."""
    asked = settings.max_model_len
    if asked is not None and asked > context:
        raise SettingsError(f"max_model_len is {asked}; accepted: at most the model's {context}")


def check_cache(
    settings: Settings, layout: KvLayout, context: int, limit: host.MemoryLimit
) -> None:
    """HostError where the KV cache of that memory holds no block, or not what is asked for."""
    windows = Windows.for_steps(layout.windows, settings.max_step_tokens)
    asked = settings.max_model_len
    kv = _choose(settings, layout, windows, limit, asked or context, 0, layout.block_bytes)
    _check_length(asked, windows.longest(kv.blocks, asked or context), kv)


def _check_length(asked: int | None, longest: int, kv: host.KvChoice) -> None:
    if asked is not None and asked > longest:
        raise host.HostError(
            f"max_model_len is {asked}; the KV cache of {host.format_size(kv.n_bytes)} "
            f"({kv.reason}) holds {longest} tokens"
        )


def _choose(
    settings: Settings,
    layout: KvLayout,
    windows: Windows,
    limit: host.MemoryLimit,
    longest: int,
    packed_bytes: int,
    block_bytes: int,
) -> host.KvChoice:
    """How many blocks there is memory for."""
    return host.choose_kv_blocks(
        kv_memory=settings.kv_memory,
        limit=limit,
        packed_bytes=packed_bytes,
        block_bytes=block_bytes,
        max_seqs=settings.max_seqs,
        max_model_len=longest,
        sequence_blocks=windows.most_blocks(longest),
        states=host.StateSizes(
            layout.place_bytes(settings.max_draft),
            settings.snapshot_memory if settings.prefix_cache else 0,
            blocks_per_snapshot(layout),
        ),
        held_bytes=_held_bytes(settings),
    )


def _held_bytes(settings: Settings) -> int:
    """What requests may hold, by settings that were made for this machine."""
    kept = settings.grammar_cache_memory + settings.response_store_bytes
    return (settings.request_memory or 0) + kept + TEXTS


def _warn_of_too_much(kv: host.KvChoice, packed_bytes: int, limit: host.MemoryLimit) -> None:
    """Say so when there is no memory for the cache that was asked for."""
    if kv.n_bytes + kv.state_bytes + packed_bytes > limit.n_bytes:
        logger.warning(
            "kv_memory of %s and weights of %s are more than the %s that there are (%s): the system"
            " may end the server when they fill",
            *map(host.format_size, (kv.n_bytes + kv.state_bytes, packed_bytes, limit.n_bytes)),
            limit.reason,
        )


def engine_config(
    settings: Settings,
    model: Model,
    tokenizer: Tokenizer,
    threads: int,
    cache: CachePlan,
    limit: host.MemoryLimit,
) -> EngineConfig:
    """What the engine may use, in its own terms."""
    has_spare_cpu = host.has_spare_cpu(threads)
    rows = min(LOGITS_BYTES, limit.n_bytes // 16) // (4 * model.config.vocab_size)
    return EngineConfig(
        n_blocks=cache.blocks,
        max_model_len=cache.max_model_len,
        vocab_size=model.config.vocab_size,
        unused_ids=tokenizer.unused_ids,
        max_seqs=cache.max_seqs,
        max_step_tokens=settings.max_step_tokens,
        max_step_logits=max(cache.max_seqs, min(rows, settings.max_step_tokens)),
        max_queued_requests=settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        queue_timeout_s=settings.queue_timeout_s,
        request_timeout_s=settings.request_timeout_s,
        itl_target_s=settings.itl_target_ms / 1000,
        prefix_cache=settings.prefix_cache,
        max_draft=settings.max_draft,
        windows=cache.windows,
        n_snapshots=cache.n_snapshots,
        snapshot_blocks=cache.snapshot_blocks,
        background_stretch=settings.batch_stretch,
        has_spare_cpu=has_spare_cpu,
        # Without a CPU to spare, or many, who plans and sends has to take one from the model: in
        # short steps that comes too late to be of use, and makes times between tokens uneven.
        min_ahead_s=0.0 if has_spare_cpu or threads >= MANY_THREADS else LONG_STEP_S,
    )


def _run_draft(draft: OpenedDraft, threads: int, config: EngineConfig) -> DraftModel:
    return draft.run(
        threads=threads,
        blocks=config.n_blocks,
        max_seqs=config.max_seqs,
        max_step_tokens=config.max_step_tokens,
        prefix_cache=config.prefix_cache,
    )
