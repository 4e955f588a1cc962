"""What an engine may use, and what it may keep its users waiting for."""

from collections.abc import Sequence as Items
from dataclasses import dataclass

from lanewise.engine.window import Windows


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of one step, and of sequences."""

    max_seqs: int
    max_step_tokens: int
    max_step_logits: int
    max_model_len: int
    prefix_cache: bool = True  # sequences read the blocks of others that begin alike
    # Tokens that each sees, its own included, in the layers of each group; None = all.
    windows: tuple[int | None, ...] = (None,)
    # Places for snapshots of states; None where no layer of the model keeps one.
    n_snapshots: int | None = None
    snapshot_blocks: int = 8  # between two snapshots of an answer

    def __post_init__(self) -> None:
        # Every running sequence can then take part in every step, so none waits for another's end.
        for name in ("max_step_tokens", "max_step_logits"):
            if getattr(self, name) < self.max_seqs:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; "
                    f"accepted: at least max_seqs = {self.max_seqs}"
                )

    @property
    def kv_windows(self) -> Windows:
        """Which blocks sequences hold."""
        return Windows.for_steps(self.windows, self.max_step_tokens)


@dataclass(frozen=True, kw_only=True)
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
        super().__post_init__()
        # The oldest sequence must be able to reach its end alone, or it could never be served.
        longest = self.kv_windows.longest(self.n_blocks, self.max_model_len)
        if self.max_model_len > longest:
            raise ValueError(
                f"max_model_len is {self.max_model_len}; the KV cache holds "
                f"{longest} tokens ({self.n_blocks} blocks)"
            )
