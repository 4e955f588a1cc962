"""Makes what all requests share: the engine around a model, and what the settings say."""

import contextlib
from functools import partial
from pathlib import Path

from lanewise import __version__, host
from lanewise.api.batches.runner import BatchRules
from lanewise.api.http.limits import DEFAULT_BYTES
from lanewise.api.observing.tracing import Tracer
from lanewise.api.shared.budgets import TextBudgets
from lanewise.api.shared.request_budgets import RequestBudgets
from lanewise.api.shared.response_store import ResponseStore
from lanewise.api.shared.state import ModelCard, ServerState
from lanewise.api.shared.workers import INLINE_SIZE, Workers
from lanewise.batches.hours import Hours
from lanewise.engine.encoding import EncoderEngine
from lanewise.engine.engine import Engine
from lanewise.loading.adapters.lora import files_under
from lanewise.records.database import Database
from lanewise.runtime import Model
from lanewise.server.adapters import make_adapters
from lanewise.server.draft import open_draft
from lanewise.server.eyes import make_eyes
from lanewise.server.make_encoder import make_encoder
from lanewise.server.make_engine import make_engine
from lanewise.server.make_issuer import make_issuer
from lanewise.server.make_records import open_files
from lanewise.server.model_text import Text
from lanewise.server.names import names_of
from lanewise.settings import Settings

MAX_BODY_BYTES = Settings.max_body_bytes
OF_BATCHES = 2  # one part of as much memory as requests may hold is what those of batches may


def make_state(
    settings: Settings,
    model: Model,
    text: Text,
    threads: int,
    limit: host.MemoryLimit,
    models: contextlib.ExitStack,
    records: Database | None = None,
) -> ServerState:
    """The state of a server of ``model``, whose engine is not started; ``models`` closes both."""
    tokenizer = text.tokenizer
    models.enter_context(model)
    adapters, see = None, None
    engine: Engine | EncoderEngine
    if text.pooling is not None:
        engine = make_encoder(settings, model, threads, limit, text.pooling.max_tokens)
    else:
        draft = open_draft(settings, tokenizer, threads, model.placement)
        if draft is not None:
            models.enter_context(draft.model)
        adapters = make_adapters(settings, model)
        windows = model.kv_layout("f32", groups_by_window=True).windows
        has_head = model.config.has_mtp
        see = make_eyes(settings, model.vision, tokenizer, windows, has_head=has_head)
        engine = make_engine(
            *(settings, model, draft, tokenizer, threads, limit, adapters),
            sees=see is not None,
        )
    return ServerState(
        engine=engine,
        tokenizer=tokenizer,
        names=names_of(settings, model),
        version=__version__,
        fingerprint=_fingerprint(model),
        chat_template=text.chat_template,
        see=see,
        pooling=text.pooling,
        sampling_defaults=text.sampling,
        card=ModelCard(
            model.config.architecture,
            model.info.held_weights,
            model.info.packed_bytes,
            text.notice,
        ),
        max_body_bytes=_max_body_bytes(settings, sees=see is not None),
        request_budgets=RequestBudgets.of(settings),
        workers=Workers(host.give_back_memory, 0 if tokenizer.is_limited else INLINE_SIZE),
        step_timeout_s=settings.step_timeout_s,
        api_keys=settings.api_key,
        share_prefix_cache=settings.share_prefix_cache,
        admin_keys=settings.admin_api_key,
        allow_high_priority=settings.allow_high_priority,
        adapters=adapters,
        locate_adapter=partial(files_under, Path(settings.lora_root or ""))
        if settings.allow_runtime_lora
        else None,
        budgets=TextBudgets.of(settings),
        records=records,
        files=open_files(settings, records),
        batch_rules=BatchRules(
            settings.batch_concurrency,
            Hours(settings.batch_hours),
            (settings.request_memory or DEFAULT_BYTES) // OF_BATCHES,
        ),
        responses=ResponseStore(settings.response_store_bytes, settings.max_stored_responses),
        issuer=None
        if text.pooling is not None
        else make_issuer(
            settings, model, None if text.chat_template is None else text.chat_template.digest
        ),
        tracer=Tracer(settings.otlp_traces_endpoint, __version__)
        if settings.otlp_traces_endpoint
        else None,
    )


def _max_body_bytes(settings: Settings, *, sees: bool) -> int:
    """What the settings say; where that is what they always say, an image has room in base64."""
    given = settings.max_body_bytes
    return max(given, 2 * settings.max_image_bytes) if sees and given == MAX_BODY_BYTES else given


def _fingerprint(model: Model) -> str:
    """Changes when the same request may get another answer; threads and CPU are no part of it."""
    angles = "short" if model.config.is_for_short_context else ""
    weights = "-".join(filter(None, (model.weights, model.parts, angles)))
    return f"lanewise-{__version__}-n{model.info.numerics}-{weights}"
