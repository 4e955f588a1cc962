"""What commands that read or run a model share: one field for each knob."""

from dataclasses import dataclass

from lanewise.settings.kinds import (
    ON_OFF,
    TEXT,
    choice,
    integer,
    knob,
    whole_or_parts,
)

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """What every command that names a model understands."""

    model: str | None = knob(
        None, TEXT, "a GGUF file, a Hugging Face folder, org/name or org/name:file.gguf of the hub"
    )


@dataclass(frozen=True, kw_only=True)
class ComputeSettings(SourceSettings):
    """What every command that computes understands."""

    threads: int | None = knob(
        None,
        integer(1, 1024),
        "threads that compute; from CPU quota, affinity and cores when not given",
    )


@dataclass(frozen=True, kw_only=True)
class WeightSettings(ComputeSettings):
    """What every command that packs weights understands."""

    weights: str | None = knob(
        None,
        whole_or_parts(
            ("q4_0", "q8_0", "f16", "bf16", "f32"),
            ("attention", "ffn", "experts", "head"),
            ("q4_0", "q8_0"),
        ),
        "type to hold matrices in, quantized while loading: of a float model, or of parts of"
        " any (head=q4_0,attention=q4_0)",
    )
    isa: str | None = knob(
        None,
        choice(
            "scalar",
            "avx2",
            "avx512vnni",
            "avx512vbmi",
            "amx",
            "neon",
            "dotprod",
            "i8mm",
            "sve",
        ),
        "instruction set level to use; the best one of this CPU when not given",
    )


@dataclass(frozen=True, kw_only=True)
class TowerSettings(SourceSettings):
    """What commands understand that load a tower beside a model."""

    mmproj: str | None = knob(
        None,
        TEXT,
        "mmproj file of a GGUF model, with what makes it see pictures; looked for beside the model"
        " when not given",
    )
    tower_weights: str | None = knob(
        None,
        choice("q8_0"),
        "type to hold the matrices in that read pictures, quantized while loading; the file's when"
        " not given",
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(WeightSettings):
    """What every command that runs a model understands."""

    load: str = knob(
        "auto",
        choice("auto", "map", "copy"),
        "packed weights: map the file or copy it; auto = copy what would be on small pages",
    )
    kv_cache_dtype: str = knob(
        "auto",
        choice("auto", "f16", "f32", "int8", "k8v4", "q4"),
        "type of cached keys and values; f16 or f32 if auto; int8 halves f16's"
        " memory, q4 quarters it",
    )
    cpu_pinning: str = knob(
        "auto",
        choice("auto", "on", "off"),
        "keep each thread on a physical core of its own; auto = where there are as many"
        " threads as cores and no CPU quota",
    )
    numa: str = knob(
        "auto",
        choice("auto", "off", "interleave", "replicate"),
        "where several memory nodes have the weights: pages in turn, or a copy on each; auto ="
        " replicate where threads are pinned and the copies take at most half the memory, else"
        " interleave",
    )
    autotune: bool = knob(
        True,
        ON_OFF,
        "measure once per CPU model which of two close kernels is faster; no answer depends on it",
    )
    decode_threads: int | None = knob(
        None,
        integer(1, 1024),
        "threads of steps of one to four tokens behind 1,024 others at most, rounded up to whole"
        " groups of eight; as few as are as fast as all, measured at start, when not given; no"
        " answer depends on it",
    )
    fetch_ahead: int = knob(
        0,
        integer(0, MIB),
        "Arm: ask for weights so many bytes before their use; 0 = left to the hardware; no"
        " answer depends on it",
    )
