"""What an engine may use, and what it may keep its users waiting for."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from lanewise.runtime import BLOCK_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may use."""

    n_blocks: int
    max_model_len: int
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
    prefix_cache: bool = True
    max_draft: int = 0  # guessed tokens of one sequence in one step at most; 0 = no speculation

    def __post_init__(self) -> None:
        # The oldest sequence must be able to reach its end alone, or it could never be served.
        if self.max_model_len > self.n_blocks * BLOCK_TOKENS:
            raise ValueError(
                f"max_model_len is {self.max_model_len}; the KV cache holds "
                f"{self.n_blocks * BLOCK_TOKENS} tokens ({self.n_blocks} blocks)"
            )
