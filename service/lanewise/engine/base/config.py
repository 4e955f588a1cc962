"""What an engine may use, and how long its users may wait."""

from collections.abc import Sequence
from dataclasses import dataclass

from lanewise.engine.base.picture import NO_RULES, PictureRules
from lanewise.engine.base.window import Windows


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step, and of sequences."""

    max_seqs: int
    max_step_tokens: int
    max_step_logits: int
    max_model_len: int
    prefix_cache: bool = True  # sequences reuse blocks of other sequences with the same beginning
    # Tokens that each token attends to in each group of layers, itself included; None = all.
    windows: tuple[int | None, ...] = (None,)
    # Places for snapshots of recurrent states; None if no layer of the model has a state.
    n_snapshots: int | None = None
    pictures: PictureRules = NO_RULES
    snapshot_blocks: int = 8  # blocks between two snapshots of an answer
    background_stretch: float = 0.05  # share by which requests in the background lengthen steps

    def __post_init__(self) -> None:
        # Then every running sequence can have a row in every step, and none waits for another's
        # end.
        for name in ("max_step_tokens", "max_step_logits"):
            if getattr(self, name) < self.max_seqs:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; "
                    f"accepted: at least max_seqs = {self.max_seqs}"
                )

    @property
    def kv_windows(self) -> Windows:
        """The windows of all groups of layers, which decide what blocks a sequence holds."""
        return Windows.for_steps(self.windows, self.max_step_tokens)


@dataclass(frozen=True, kw_only=True)
class EngineConfig(SchedulerConfig):
    """Everything that an engine is configured with."""

    n_blocks: int
    vocab_size: int
    unused_ids: Sequence[int] = ()  # vocabulary rows that are no token; never drawn
    max_seqs: int = 64
    max_step_tokens: int = 512
    max_step_logits: int = 128
    max_queued_requests: int = 256
    max_queued_tokens: int = 1 << 20  # of prompts
    queue_timeout_s: float = 0.0  # 0 = none; so for the next two
    request_timeout_s: float = 0.0
    itl_target_s: float = 0.0
    max_draft: int = 0  # most guessed tokens of one sequence in one step; 0 = no speculation
    # Shortest duration of a step during which the next one is begun.
    min_ahead_s: float = 0.0
    has_spare_cpu: bool = False  # steps leave a CPU idle, on which masks may be filled

    def __post_init__(self) -> None:
        super().__post_init__()
        # The oldest sequence must be able to finish with all blocks, or it could never be served.
        longest = self.kv_windows.longest(self.n_blocks, self.max_model_len)
        if self.max_model_len > longest:
            raise ValueError(
                f"max_model_len is {self.max_model_len}; the KV cache holds "
                f"{longest} tokens ({self.n_blocks} blocks)"
            )
