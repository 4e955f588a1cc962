"""Opens the model of ``--draft`` and makes sure that its tokens are those of the model."""

import logging
from dataclasses import dataclass

from lanewise import host
from lanewise.engine.guessing.draft_model import DraftModel
from lanewise.loading.checkpoints.drafts import read_draft
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.runtime import Model, Session
from lanewise.runtime.model import resolve_kv_type
from lanewise.settings import Settings, SettingsError
from lanewise.text.tokenizer import Tokenizer
from lanewise.topology import Placement

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedDraft:
    """A loaded draft model and what both models' tokenizers have."""

    model: Model
    usable_ids: tuple[int, ...]
    kv_type: str

    @property
    def block_bytes(self) -> int:
        """What one KV block takes in its cache."""
        return self.model.kv_layout(self.kv_type).block_bytes

    def run(
        self, *, threads: int, blocks: int, max_seqs: int, max_step_tokens: int, prefix_cache: bool
    ) -> DraftModel:
        """Its session, in the engine's terms."""
        session = Session(
            self.model,
            threads=threads,
            blocks=blocks,
            max_batch_tokens=max_step_tokens,
            max_batch_logits=max_seqs,
            kv_type=self.kv_type,
        )
        return DraftModel(
            session,
            vocab_size=self.model.config.vocab_size,
            usable_ids=self.usable_ids,
            context_length=self.model.config.context_length,
            max_step_tokens=max_step_tokens,
            prefix_cache=prefix_cache,
            n_blocks=blocks,
        )


def open_draft(
    settings: Settings, tokenizer: Tokenizer, threads: int, placement: Placement | None
) -> OpenedDraft | None:
    """Load the draft model that the settings name, placed as the model is; the caller closes it.

    Raises SettingsError when its vocabulary is another one.
    """
    path = read_draft(settings.draft if settings.speculation else None).model
    if path is None:
        return None
    assert settings.draft is not None
    with open_checkpoint(path) as checkpoint:
        if checkpoint.config.has_states:
            raise SettingsError(
                f"draft is {settings.draft}, whose layers keep a state; accepted: a model without"
            )
        theirs = Tokenizer.from_files(checkpoint.tokenizer)
        check_vocabulary(tokenizer, theirs, settings.draft)
        checkpoint.limit_context(settings.max_model_len)
        model = Model.load(
            checkpoint,
            weights=None if "=" in (settings.weights or "") else settings.weights,
            isa=settings.isa,
            threads=threads,
            load=settings.load,
            placement=placement,
        )
    logger.info(
        "draft model: %s (%s, %s)",
        *(model.name, model.weights, host.format_size(model.info.packed_bytes)),
    )
    unused = set(theirs.unused_ids)
    usable = tuple(id_ for id_ in range(theirs.vocab_size) if id_ not in unused)
    return OpenedDraft(model, usable, resolve_kv_type(settings.kv_cache_dtype, model.weights))


def check_vocabulary(ours: Tokenizer, theirs: Tokenizer, name: str) -> None:
    """Raise unless every token is the same in both."""
    token = ours.first_unlike(theirs)
    if token is not None:
        texts = [
            repr(one.token_text(token)) if token < one.vocab_size else "missing"
            for one in (theirs, ours)
        ]
        raise SettingsError(
            f"draft is {name}, whose token {token} is {texts[0]}, the model's {texts[1]}; "
            "accepted: a model with the same vocabulary"
        )
