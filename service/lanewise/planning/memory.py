"""Whether weights and conversations fit, by the rule that a server divides its memory by."""

from dataclasses import dataclass

from lanewise import host
from lanewise.engine.base.config import SchedulerConfig
from lanewise.engine.kv.states import blocks_per_snapshot
from lanewise.held import held_within
from lanewise.runtime import BLOCK_TOKENS, KvLayout


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a server started with default settings has for keys and values."""

    limit: host.MemoryLimit
    weight_bytes: int
    block_bytes: int
    blocks: int
    reason: str
    max_model_len: int  # tokens of one conversation at its longest
    user_blocks: int  # which that takes
    max_seqs: int  # that run at a time, fewer where their states need it; more users wait
    kv_tokens: int  # of the longest conversation that all blocks are enough for
    state_bytes: int = 0  # of the states of all that run, and of snapshots
    n_snapshots: int = 0

    @property
    def kv_bytes(self) -> int:
        """Of all blocks."""
        return self.blocks * self.block_bytes

    def needed_bytes(self, users: int) -> int:
        """What the conversations of so many take at their longest, as many as run at a time.

        States are there for all that may run, and snapshots.
        """
        of_blocks = min(users, self.max_seqs) * self.user_blocks * self.block_bytes
        return of_blocks + self.state_bytes

    def fits(self, users: int) -> bool:
        """Whether none of those ever has to give way."""
        return self.needed_bytes(users) <= self.kv_bytes + self.state_bytes

    def check_one_fits(self) -> None:
        """HostError if not even one conversation of ``max_model_len`` does."""
        if self.blocks < self.user_blocks:
            raise host.HostError(
                f"context: {self.max_model_len}; accepted: at most {self.kv_tokens} tokens, which "
                f"{host.format_size(self.kv_bytes)} hold ({self.reason})"
            )


def plan_memory(
    limit: host.MemoryLimit,
    weight_bytes: int,
    layout: KvLayout,
    config: SchedulerConfig,
    max_draft: int,
) -> MemoryPlan:
    """Divide the memory; HostError if not even one block fits.

    ``max_draft`` tokens of one sequence may be guessed in a step.
    """
    windows = config.kv_windows
    user_blocks = windows.most_blocks(config.max_model_len)
    choice = host.choose_kv_blocks(
        kv_memory=None,
        limit=limit,
        packed_bytes=weight_bytes,
        block_bytes=layout.block_bytes,
        max_seqs=config.max_seqs,
        max_model_len=config.max_model_len,
        sequence_blocks=user_blocks,
        states=host.StateSizes(layout.place_bytes(max_draft), None, blocks_per_snapshot(layout)),
        held_bytes=held_within(limit).n_bytes,
    )
    return MemoryPlan(
        limit=limit,
        weight_bytes=weight_bytes,
        block_bytes=layout.block_bytes,
        blocks=choice.blocks,
        reason=choice.reason,
        max_model_len=config.max_model_len,
        user_blocks=user_blocks,
        max_seqs=choice.max_seqs,
        kv_tokens=windows.longest(choice.blocks, choice.blocks * BLOCK_TOKENS),
        state_bytes=choice.state_bytes,
        n_snapshots=choice.n_snapshots,
    )
