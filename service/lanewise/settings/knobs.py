"""The settings of each command: one field for each knob."""

from dataclasses import dataclass, field

from lanewise.settings.kinds import (
    BITS,
    COUNTS,
    MILLISECONDS,
    NAMED_PATHS,
    ON_OFF,
    SECONDS,
    SIZE,
    SWITCH,
    TEXT,
    TEXTS,
    choice,
    integer,
    knob,
)

MIB = 1 << 20

# What `lanewise quantize` can make of matrices; quantizer/FORMAT.md describes each.
QUANTIZED_FORMATS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "cb2", "cb3", "cb4", "t2", "q4_g64", "q4_g128"),
    *("a4_g32", "a4_g64", "a4_g128", "a8_g32", "a8_g128", "fp6", "w8a8"),
)


DRAFT_TOKENS = knob(
    integer(1, 64), "most guessed tokens that a sequence has in one step; fewer where they fail"
)


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """What every command that names a model understands."""

    model: str | None = field(
        default=None,
        metadata=knob(
            TEXT, "a GGUF file, a Hugging Face folder, org/name or org/name:file.gguf of the hub"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ComputeSettings(SourceSettings):
    """What every command that computes understands."""

    threads: int | None = field(
        default=None,
        metadata=knob(
            integer(1, 256),
            "threads that compute; from CPU quota, affinity and cores when not given",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class WeightSettings(ComputeSettings):
    """What every command that packs weights understands."""

    weights: str | None = field(
        default=None,
        metadata=knob(
            choice("q4_0", "q8_0", "f16", "bf16", "f32"),
            "type to hold the matrices in; a float model is quantized while it is loaded",
        ),
    )
    isa: str | None = field(
        default=None,
        metadata=knob(
            choice("scalar", "avx2", "avx512vnni", "amx", "neon", "dotprod", "i8mm", "sve"),
            "instruction set level to use; the best one of this CPU when not given",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings(WeightSettings):
    """What every command that runs a model understands."""

    load: str = field(
        default="auto",
        metadata=knob(
            choice("auto", "map", "copy"),
            "packed weights: map the file or copy it; auto = copy what would be on small pages",
        ),
    )
    kv_cache_dtype: str = field(
        default="auto",
        metadata=knob(
            choice("auto", "f16", "f32", "int8"),
            "type of cached keys and values; auto = that of the model, f16 or f32;"
            " int8 takes half the memory of f16",
        ),
    )
    cpu_pinning: str = field(
        default="auto",
        metadata=knob(
            choice("auto", "on", "off"),
            "keep each thread on a physical core of its own; auto = on hosts of several memory"
            " nodes whose cores are all ours",
        ),
    )
    numa: str = field(
        default="auto",
        metadata=knob(
            choice("auto", "off", "interleave", "replicate"),
            "where several memory nodes have the weights: pages in turn, or a copy on each; auto ="
            " replicate where threads are pinned and the copies take at most half the memory, else"
            " interleave",
        ),
    )
    autotune: bool = field(
        default=True,
        metadata=knob(
            ON_OFF,
            "measure once per CPU model which of two close kernels is faster; no answer depends"
            " on it",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings):
    """What ``lanewise serve`` can be told."""

    served_model_name: str | None = field(
        default=None, metadata=knob(TEXT, "name of the model in the API")
    )
    host: str = field(default="127.0.0.1", metadata=knob(TEXT, "address to listen on"))
    port: int = field(default=8000, metadata=knob(integer(0, 65535), "port to listen on"))
    kv_memory: int | None = field(
        default=None,
        metadata=knob(SIZE, "memory for keys and values; from the memory limit when not given"),
    )
    max_model_len: int | None = field(
        default=None,
        metadata=knob(
            integer(1), "longest prompt plus answer in tokens; the model's when not given"
        ),
    )
    max_step_tokens: int = field(
        default=512, metadata=knob(integer(1, 1 << 20), "most tokens in one step of the model")
    )
    max_seqs: int = field(
        default=64, metadata=knob(integer(1, 65536), "most sequences that run at the same time")
    )
    itl_target_ms: float = field(
        default=300.0,
        metadata=knob(
            MILLISECONDS,
            "time between two tokens that prompts of others may stretch it to, or to twice what it"
            " is without; their part of a step follows from what steps have cost; 0 = off",
        ),
    )
    speculation: bool = field(
        default=True,
        metadata=knob(
            ON_OFF,
            "guess the next tokens from what the text repeats and run them together, where that"
            " is faster; answers are the same",
        ),
    )
    draft: str | None = field(
        default=None,
        metadata=knob(
            TEXT, "a small model of the same vocabulary that guesses too; named like the model"
        ),
    )
    draft_tokens: int = field(default=15, metadata=DRAFT_TOKENS)
    prefix_cache: bool = field(
        default=True,
        metadata=knob(
            ON_OFF,
            "compute what prompts have in common once: their keys and values stay in the cache"
            " until the place is needed",
        ),
    )
    lora: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=knob(
            NAMED_PATHS,
            "LoRA adapters to load: requests choose one by its name as their model; PATH is a"
            " directory that PEFT saved",
        ),
    )
    allow_runtime_lora: bool = field(
        default=False,
        metadata=knob(
            ON_OFF,
            "requests may load adapters from any directory of the server and unload them:"
            " /v1/load_lora_adapter, /v1/unload_lora_adapter",
        ),
    )
    max_loras: int = field(
        default=8, metadata=knob(integer(1, 1024), "most LoRA adapters in memory at a time")
    )
    max_lora_rank: int = field(
        default=64, metadata=knob(integer(1, 512), "largest rank of a LoRA adapter")
    )
    max_queued_requests: int = field(
        default=256,
        metadata=knob(integer(0), "requests that may wait before new ones get status 429"),
    )
    max_queued_tokens: int = field(
        default=1 << 20,
        metadata=knob(integer(1), "tokens of prompts that may wait before new ones get status 429"),
    )
    queue_timeout_s: float = field(
        default=0.0,
        metadata=knob(SECONDS, "time a request may wait for its turn, then status 503; 0 = any"),
    )
    request_timeout_s: float = field(
        default=0.0,
        metadata=knob(SECONDS, "time a request may take in all, then status 504; 0 = any"),
    )
    step_timeout_s: float = field(
        default=120.0,
        metadata=knob(SECONDS, "a step that takes longer makes the server not ready; 0 = any"),
    )
    max_body_bytes: int = field(
        default=8 * MIB, metadata=knob(SIZE, "largest request body that is read")
    )
    api_key: tuple[str, ...] = field(
        default=(), metadata=knob(TEXTS, "keys that clients must send; none = no key needed")
    )
    cors_origins: tuple[str, ...] = field(
        default=("*",), metadata=knob(TEXTS, "web origins that may call the API")
    )
    chat_template: str | None = field(
        default=None,
        metadata=knob(TEXT, "file with a jinja chat template to use instead of the model's"),
    )
    drain_timeout_s: float = field(
        default=30.0, metadata=knob(SECONDS, "time running requests get to finish after SIGTERM")
    )
    log_level: str = field(
        default="info",
        metadata=knob(
            choice("debug", "info", "warning", "error"), "least important messages to log"
        ),
    )
    log_format: str = field(
        default="text",
        metadata=knob(choice("text", "json"), "one line of text or JSON per message"),
    )


@dataclass(frozen=True, kw_only=True)
class ReportSettings(ModelSettings):
    """What every command that prints a report understands."""

    json: bool = field(
        default=False, metadata=knob(SWITCH, "print one JSON object instead of a table")
    )


@dataclass(frozen=True, kw_only=True)
class BenchSettings(ReportSettings):
    """What ``lanewise bench`` can be told."""

    prefill: int = field(
        default=512, metadata=knob(integer(0), "tokens of the prompt test; 0 = leave it out")
    )
    decode: int = field(
        default=128, metadata=knob(integer(0), "tokens of each decode test; 0 = leave them out")
    )
    batch: tuple[int, ...] = field(
        default=(1, 8, 16),
        metadata=knob(COUNTS, "sequences that decode together, one test for each"),
    )
    context: int = field(
        default=32,
        metadata=knob(integer(1), "tokens in the context of each sequence before decoding"),
    )
    repeat: int = field(
        default=3, metadata=knob(integer(1), "runs of each test; their median is reported")
    )
    profile: bool = field(
        default=False,
        metadata=knob(SWITCH, "run each test once more and show what its time goes to"),
    )
    replay: tuple[str, ...] = field(
        default=(),
        metadata=knob(
            TEXTS,
            "instead of all that: files with a prompt, a line <<<answer>>> and an answer, which"
            " is decoded with and without speculation",
        ),
    )
    draft_tokens: int = field(default=15, metadata=DRAFT_TOKENS)


@dataclass(frozen=True, kw_only=True)
class TextSettings(ReportSettings):
    """What every command that scores a text understands."""

    file: str | None = field(default=None, metadata=knob(TEXT, "UTF-8 text to score"))
    context: int | None = field(
        default=None,
        metadata=knob(
            integer(2), "tokens of one window; 512 or the model's context if that is less"
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PerplexitySettings(TextSettings):
    """What ``lanewise perplexity`` can be told."""

    chars: int | None = field(
        default=None, metadata=knob(integer(1), "score only the first N characters of the file")
    )
    chunk: int = field(
        default=512,
        metadata=knob(integer(1), "tokens of one window given to the model in one step"),
    )
    batch: int = field(
        default=1,
        metadata=knob(integer(1), "windows scored together; changes no bit of the result"),
    )


@dataclass(frozen=True, kw_only=True)
class CompareSettings(TextSettings):
    """What ``lanewise compare`` can be told."""

    model: str | None = field(
        default=None,
        metadata=knob(
            TEXT,
            "the original, which all are compared with; the first MODEL when not given",
            "--reference",
        ),
    )
    models: tuple[str, ...] = field(
        default=(), metadata=knob(TEXTS, "models to compare; same as MODEL …")
    )
    tokens: int = field(
        default=4096, metadata=knob(integer(2), "tokens of that text to score at most")
    )
    prefill: int = field(
        default=512, metadata=knob(integer(0), "tokens of the prompt timed; 0 = leave it out")
    )
    decode: int = field(
        default=128, metadata=knob(integer(0), "tokens whose decoding is timed; 0 = leave it out")
    )
    repeat: int = field(
        default=3, metadata=knob(integer(1), "runs of each timing; their median is reported")
    )
    picture: str | None = field(
        default=None,
        metadata=knob(TEXT, "write FILE.png and FILE.svg: perplexity over bits per weight"),
    )


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(ReportSettings):
    """What ``lanewise doctor`` can be told."""


@dataclass(frozen=True, kw_only=True)
class PackSettings(WeightSettings):
    """What ``lanewise pack`` can be told."""

    output: str | None = field(
        default=None, metadata=knob(TEXT, "directory to write, which must be new or empty", "-o")
    )


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings(ComputeSettings):
    """What ``lanewise quantize`` can be told."""

    output: str | None = field(
        default=None,
        metadata=knob(TEXT, "directory to write, new or empty; with --gguf a new file", "-o"),
    )
    format: str | None = field(
        default=None,
        metadata=knob(
            choice(*QUANTIZED_FORMATS),
            "type of the matrices; without it and --bits, q4_0",
        ),
    )
    bits: float | None = field(
        default=None,
        metadata=knob(
            BITS, "bits per weight of the whole file: a type for each matrix, by what it loses"
        ),
    )
    head: str | None = field(
        default=None,
        metadata=knob(
            choice(*QUANTIZED_FORMATS, "f16", "bf16", "f32"),
            "type of embedding and head; q6_k when not given, q8_0 beside formats of eight bits",
        ),
    )
    gguf: bool = field(
        default=False, metadata=knob(SWITCH, "write a GGUF file, for types that GGUF has")
    )
    calibrate: str | None = field(
        default=None,
        metadata=knob(TEXT, "UTF-8 text to quantize on: slower, much better at few bits"),
    )
    calibration_tokens: int = field(
        default=8192, metadata=knob(integer(2), "tokens of that text to use")
    )


@dataclass(frozen=True, kw_only=True)
class InspectSettings(SourceSettings):
    """What ``lanewise inspect`` can be told."""

    json: bool = field(
        default=False, metadata=knob(SWITCH, "print one JSON object instead of a table")
    )
    check: bool = field(
        default=False,
        metadata=knob(SWITCH, "read all weights: checksums, and numbers that are not finite"),
    )


@dataclass(frozen=True, kw_only=True)
class PullSettings(SourceSettings):
    """What ``lanewise pull`` can be told."""


EVERY_SETTINGS: tuple[type[SourceSettings], ...] = (
    Settings,
    BenchSettings,
    PerplexitySettings,
    CompareSettings,
    DoctorSettings,
    PackSettings,
    QuantizeSettings,
    InspectSettings,
    PullSettings,
)
