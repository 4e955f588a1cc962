"""What an engine may use, and what it may keep its users waiting for."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from lanewise.engine.scheduler import SchedulerConfig
from lanewise.engine.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(SchedulerConfig):
    """What the engine may use."""

    n_blocks: int
    vocab_size: int
    unused_ids: Items[int] = ()  # rows of the vocabulary that are no token; never drawn
    max_seqs: int = 64
    max_step_tokens: int = 512
    max_step_logits: int = 128
    max_queued_requests: int = 256
    max_queued_tokens: int = 1 << 20  # of prompts
    queue_timeout_s: float = 0.0  # 0 = none, as for the next two
    request_timeout_s: float = 0.0
    itl_target_s: float = 0.0
    max_draft: int = 0  # guessed tokens of one sequence in one step at most; 0 = no speculation
    # A step is begun before the one before it has ended if that one takes as long as this.
    min_ahead_s: float = 0.0
    has_spare_cpu: bool = False  # that steps leave to others: masks may be filled while they run

    def __post_init__(self) -> None:
        SchedulerConfig.__post_init__(self)  # super() does not know a class that got slots
        # The oldest sequence must be able to reach its end alone, or it could never be served.
        window = Window(self.sliding_window, self.max_step_tokens)
        longest = window.longest(self.n_blocks, self.max_model_len)
        if self.max_model_len > longest:
            raise ValueError(
                f"max_model_len is {self.max_model_len}; the KV cache holds "
                f"{longest} tokens ({self.n_blocks} blocks)"
            )
