"""Makes the engine of a loaded model that is pooled."""

import logging

from lanewise import __version__
from lanewise.engine.encoding import EncoderConfig, EncoderEngine
from lanewise.engine.metering.metrics import Metrics, ModelFacts
from lanewise.host import MemoryLimit
from lanewise.runtime import Encoder, Model, kernels_in_use
from lanewise.server.names import names_of
from lanewise.settings import Settings, SettingsError

logger = logging.getLogger(__name__)

MAX_TOKENS = 65536  # of one step of the native library, which has whole texts
# Of the workspace, of each token and each value of its row: rows of a usual layer and their codes.
WORKSPACE_BYTES = 80
MIN_TOKENS = 512
ONLY_FOR_TEXT = ("draft", "lora", "allow_runtime_lora", "chat_template")


def make_encoder(
    settings: Settings, model: Model, threads: int, memory: MemoryLimit, max_tokens: int | None
) -> EncoderEngine:
    """The engine with its workspace; a text has ``max_tokens`` unless the settings say more."""
    for name in ONLY_FOR_TEXT:
        if getattr(settings, name):
            raise SettingsError(
                f"{name} is given, and {model.name} makes vectors; accepted: {name} for models"
                " that write text"
            )
    if settings.max_step_tokens > MAX_TOKENS:
        raise SettingsError(
            f"max_step_tokens is {settings.max_step_tokens}; accepted: at most {MAX_TOKENS} for"
            " models that make vectors"
        )
    limit = longest_text(settings.max_model_len, max_tokens, model.config.context_length)
    fits = fitting_tokens(model.config.hidden_size, memory.n_bytes)
    if settings.max_model_len is None and limit > fits:
        logger.warning(
            "texts of %d tokens would take more than a quarter of the memory: at most %d are"
            " served; max_model_len takes more",
            *(limit, fits),
        )
        limit = fits
    encoder = Encoder(model, threads=threads, max_tokens=max(limit, settings.max_step_tokens))
    logger.info(
        "texts of up to %d tokens; a row has %d floats; steps of %d tokens",
        *(limit, encoder.dims, settings.max_step_tokens),
    )
    facts = ModelFacts(
        model_name=names_of(settings, model)[0],
        isa=model.info.isa,
        threads=threads,
        weights=model.weights,
        kernels=",".join(kernels_in_use(model.info.isa, model.weights)),
        version=__version__,
        kv_type="none",
        prefix_cache=False,
        n_blocks=1,
        max_model_len=limit,
    )
    config = EncoderConfig(
        max_text_tokens=limit,
        vocab_size=model.config.vocab_size,
        dims=encoder.dims,
        max_step_tokens=settings.max_step_tokens,
        max_step_texts=encoder.max_texts,
        max_requests=settings.max_seqs + settings.max_queued_requests,
        max_queued_tokens=settings.max_queued_tokens,
        queue_timeout_s=settings.queue_timeout_s,
        request_timeout_s=settings.request_timeout_s,
    )
    return EncoderEngine(encoder, config, Metrics(facts))


def fitting_tokens(hidden_size: int, n_bytes: int) -> int:
    """Tokens of a text whose workspace takes about a quarter of so much memory."""
    return max(MIN_TOKENS, n_bytes // 4 // (WORKSPACE_BYTES * hidden_size))


def longest_text(asked: int | None, said: int | None, context: int) -> int:
    """Tokens of a text: as asked for, else as the directory says, else what the model takes.

    SettingsError for more than that.
    """
    if asked is not None and asked > context:
        raise SettingsError(f"max_model_len is {asked}; accepted: at most the model's {context}")
    if asked is not None and asked > MAX_TOKENS:
        raise SettingsError(
            f"max_model_len is {asked}; accepted: at most {MAX_TOKENS} for models that make vectors"
        )
    return asked or min(said or context, context, MAX_TOKENS)
