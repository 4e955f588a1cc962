"""The only Python that sees a pointer: the native library's models and sessions as classes."""

from lanewise.native.library import NO_TOKEN, NONFINITE, LibraryMissingError, NativeError
from lanewise.runtime.adapter import Adapter
from lanewise.runtime.cpu import (
    ISA_LEVELS,
    KernelInfo,
    Limits,
    best_isa,
    check_isa,
    cpu_features,
    kernels,
    kernels_in_use,
    measure_limits,
    numerics_version,
    placing_refusal,
    usable_levels,
)
from lanewise.runtime.encoder import POOLINGS, Encoder
from lanewise.runtime.model import KvLayout, Model, ModelInfo
from lanewise.runtime.sampling import Draw, Sampled, Sampling, raise_failed
from lanewise.runtime.session import (
    BLOCK_TOKENS,
    DRAWN_BEFORE,
    EXPERT_ROWS,
    Counters,
    Finished,
    InputStats,
    OperationTime,
    Session,
    StepRefusedError,
)
from lanewise.runtime.step_arrays import RUN_HEAD, RUN_HEAD_AGAIN, RUN_MODEL, Batch

__all__ = [
    "BLOCK_TOKENS",
    "DRAWN_BEFORE",
    "EXPERT_ROWS",
    "ISA_LEVELS",
    "NONFINITE",
    "NO_TOKEN",
    "POOLINGS",
    "RUN_HEAD",
    "RUN_HEAD_AGAIN",
    "RUN_MODEL",
    "Adapter",
    "Batch",
    "Counters",
    "Draw",
    "Encoder",
    "Finished",
    "InputStats",
    "KernelInfo",
    "KvLayout",
    "LibraryMissingError",
    "Limits",
    "Model",
    "ModelInfo",
    "NativeError",
    "OperationTime",
    "Sampled",
    "Sampling",
    "Session",
    "StepRefusedError",
    "best_isa",
    "check_isa",
    "cpu_features",
    "kernels",
    "kernels_in_use",
    "measure_limits",
    "numerics_version",
    "placing_refusal",
    "raise_failed",
    "usable_levels",
]
