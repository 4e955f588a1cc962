"""The settings of the commands beside ``serve``, and the list of all."""

from dataclasses import dataclass

from lanewise.settings.kinds import (
    ABOVE_0,
    BITS,
    CACHES,
    COUNTS,
    DAY,
    KEYS,
    LOADED_AS,
    SIZE,
    SWITCH,
    TEMPERATURE,
    TEXT,
    TEXTS,
    choice,
    integer,
    knob,
)
from lanewise.settings.knobs import DRAFT_TOKENS, Settings
from lanewise.settings.models import (
    ComputeSettings,
    ModelSettings,
    SourceSettings,
    TowerSettings,
    WeightSettings,
)

HEAD_DRAFT = (TEXT, "with a head that guesses further tokens: mtp, or a path, as in serve")
JSON_REPORT = (SWITCH, "print one JSON object instead of a table")
# What `lanewise quantize` can make of matrices; quantizer/FORMAT.md describes each.
QUANTIZED_FORMATS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "cb2", "cb3", "cb4", "t2", "q4_g64", "q4_g128"),
    *("a4_g32", "a4_g64", "a4_g128", "a8_g32", "a8_g128", "fp6", "w8a8"),
)


@dataclass(frozen=True, kw_only=True)
class ReportSettings(ModelSettings):
    """What every command that prints a report understands."""

    json: bool = knob(False, *JSON_REPORT)


@dataclass(frozen=True, kw_only=True)
class BenchSettings(ReportSettings):
    """What ``lanewise bench`` can be told."""

    prefill: int = knob(512, integer(0), "tokens of the prompt test; 0 = leave it out")
    decode: int = knob(128, integer(0), "tokens of each decode test; 0 = leave them out")
    batch: tuple[int, ...] = knob(
        (1, 8, 16), COUNTS, "sequences that decode together, one test for each"
    )
    context: int = knob(32, integer(1), "tokens in the context of each sequence before decoding")
    repeat: int = knob(3, integer(1), "runs of each test; their median is reported")
    profile: bool = knob(False, SWITCH, "run each test once more and show what its time goes to")
    publish: bool = knob(
        False,
        SWITCH,
        "print the standard rows as Markdown: a prompt of 512 tokens, 128 tokens of one and of"
        " 8 sequences, with CPU, kernels, settings, versions and the file's hash",
    )
    llama_bench: str | None = knob(
        None,
        TEXT,
        "with --publish: llama.cpp's program llama-bench, to run on the same GGUF file"
        " (llama-batched-bench beside it runs the 8 sequences)",
    )
    replay: tuple[str, ...] = knob(
        (),
        TEXTS,
        "instead of all that: files with a prompt, a line <<<answer>>> and an answer, which"
        " is decoded with and without speculation",
    )
    draft_tokens: int = knob(15, *DRAFT_TOKENS)
    draft: str | None = knob(None, *HEAD_DRAFT)


@dataclass(frozen=True, kw_only=True)
class TextSettings(ReportSettings):
    """What every command that scores a text understands."""

    file: str | None = knob(None, TEXT, "UTF-8 text to score")
    context: int | None = knob(
        None, integer(2), "tokens of one window; 512 or the model's context if that is less"
    )


@dataclass(frozen=True, kw_only=True)
class PerplexitySettings(TextSettings):
    """What ``lanewise perplexity`` can be told."""

    chars: int | None = knob(None, integer(1), "score only the first N characters of the file")
    chunk: int = knob(512, integer(1), "tokens of one window given to the model in one step")
    batch: int = knob(1, integer(1), "windows scored together; changes no bit of the result")
    float_activations: bool = knob(
        False,
        SWITCH,
        "let quantized matrices multiply activations themselves, not int8 codes of them: a"
        " slow reference",
    )


@dataclass(frozen=True, kw_only=True)
class CompareSettings(TextSettings):
    """What ``lanewise compare`` can be told."""

    model: str | None = knob(
        None,
        TEXT,
        "the original, which all are compared with; the first MODEL when not given",
        "--reference",
    )
    models: tuple[str, ...] = knob((), TEXTS, "models to compare; same as MODEL …")
    float_activations: bool = knob(
        False,
        SWITCH,
        "compare with the original under float activations, a slow reference: what int8 codes"
        " of them cost; one MODEL will do",
    )
    tokens: int = knob(4096, integer(2), "tokens of that text to score at most")
    prefill: int = knob(512, integer(0), "tokens of the prompt timed; 0 = leave it out")
    decode: int = knob(128, integer(0), "tokens whose decoding is timed; 0 = leave it out")
    repeat: int = knob(3, integer(1), "runs of each timing; their median is reported")
    load_as: tuple[str, ...] = knob(
        (),
        LOADED_AS,
        "models that make vectors: also the first as it is when held in these types, as with"
        " --weights",
    )
    caches: tuple[str, ...] = knob(
        (), CACHES, "compare one MODEL with itself, its keys and values cached in these types"
    )
    after: int = knob(
        0, integer(0), "--caches: score positions of a window that have so many tokens before them"
    )
    every: int = knob(1, integer(1), "--caches: score one of so many positions")
    sentences: int = knob(
        1000, integer(1, 10000), "models that make vectors: sentences of the text to compare by"
    )
    chat: bool = knob(
        False,
        SWITCH,
        "also compare greedy answers to forty bundled prompts, by the model's chat template",
    )
    chat_tokens: int = knob(64, integer(1), "tokens of each of these answers at most")
    tasks: tuple[str, ...] = knob(
        (),
        TEXTS,
        "also score these tasks of lm-eval, whose program lm_eval must be installed, through"
        " a server of each model",
    )
    tasks_limit: int | None = knob(
        None, integer(1), "questions of each task at most; all if not given"
    )
    picture: str | None = knob(
        None, TEXT, "write FILE.png and FILE.svg: perplexity over bits per weight"
    )


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(ReportSettings):
    """What ``lanewise doctor`` can be told."""

    kernels: bool = knob(False, SWITCH, "also list all kernels, and which can run here")


@dataclass(frozen=True, kw_only=True)
class PlanSettings(ReportSettings):
    """What ``lanewise plan`` can be told."""

    instance: str | None = knob(None, TEXT, "plan for this machine of a cloud, such as c7g.4xlarge")
    instances: bool = knob(False, SWITCH, "list the machines that are known, and leave")
    bench: str | None = knob(
        None,
        TEXT,
        "plan for the machine where `lanewise bench --json` of the model wrote this file;"
        " without it and --instance, this machine is measured",
    )
    itl: float | None = knob(
        None,
        ABOVE_0,
        "find machines: most milliseconds between two tokens, on average, for all users",
    )
    ttft: float | None = knob(
        None, ABOVE_0, "find machines: most milliseconds to the first token, in 95 of 100 requests"
    )
    arch: str = knob("any", choice("any", "arm", "x86"), "find or list machines of this kind")
    engine: str = knob(
        "lanewise", choice("lanewise", "llama.cpp"), "whose kernels run; for an instance"
    )
    users: tuple[int, ...] = knob(
        (1, 4, 16), COUNTS, "clients that always wait for an answer, one line for each"
    )
    prompt_tokens: int = knob(256, integer(1), "tokens of each prompt, all new")
    answer_tokens: int = knob(128, integer(2), "tokens of each answer")
    draft: str | None = knob(None, *HEAD_DRAFT)
    context: int | None = knob(
        None,
        integer(1),
        "tokens that each conversation may have in memory; prompt and answer when not given",
    )
    bandwidth: float | None = knob(
        None, ABOVE_0, "GB a second that all threads of the instance read together"
    )
    memory: int | None = knob(None, SIZE, "memory that the server may use, of any machine")
    price: float | None = knob(None, ABOVE_0, "USD that an hour of the machine costs")


@dataclass(frozen=True, kw_only=True)
class PackedSettings(TowerSettings):
    """What commands understand that write directories of our own."""

    text_only: bool = knob(False, SWITCH, "leave out what reads pictures")


@dataclass(frozen=True, kw_only=True)
class PackSettings(WeightSettings, PackedSettings):
    """What ``lanewise pack`` can be told."""

    output: str | None = knob(None, TEXT, "directory to write, which must be new or empty", "-o")


@dataclass(frozen=True, kw_only=True)
class QuantizeSettings(ComputeSettings, PackedSettings):
    """What ``lanewise quantize`` can be told."""

    output: str | None = knob(
        None, TEXT, "directory to write, new or empty; with --gguf a new file", "-o"
    )
    format: str | None = knob(
        None,
        choice(*QUANTIZED_FORMATS),
        "type of the matrices; without it, --bits and --target-kl, what suits model and machine",
    )
    bits: float | None = knob(
        None, BITS, "bits per weight of the whole file: a type for each matrix, by what it loses"
    )
    target_kl: float | None = knob(
        None,
        ABOVE_0,
        "nats of divergence from the source: the fewest bits that should lose no more, measured"
        " on the calibration text; 0.02 is fine, 0.15 noticeable",
    )
    head: str | None = knob(
        None,
        choice(*QUANTIZED_FORMATS, "f16", "bf16", "f32"),
        "type of embedding and head; q6_k when not given, q8_0 beside formats of eight bits",
    )
    gguf: bool = knob(False, SWITCH, "write a GGUF file, for types that GGUF has")
    calibrate: str | None = knob(
        None,
        TEXT,
        "UTF-8 text to quantize on: slower, much better at few bits; bundled = the text that"
        " comes with the quantizer, which formats and --bits below 4 take when not given; none",
    )
    calibration_tokens: int = knob(8192, integer(2), "tokens of that text to use")
    check_tokens: int = knob(
        1536,
        integer(0),
        "tokens of other text on which the result is compared with the source at the end,"
        " fewer where they take long; 0 = leave it out",
    )


@dataclass(frozen=True, kw_only=True)
class InspectSettings(SourceSettings):
    """What ``lanewise inspect`` can be told."""

    json: bool = knob(False, *JSON_REPORT)
    check: bool = knob(
        False, SWITCH, "read all weights: checksums, and numbers that are not finite"
    )
    outliers: bool = knob(
        False, SWITCH, "run a short text and say how far inputs of matrices stand out"
    )


@dataclass(frozen=True, kw_only=True)
class PullSettings(SourceSettings):
    """What ``lanewise pull`` can be told."""


@dataclass(frozen=True, kw_only=True)
class ListSettings(SourceSettings):
    """What ``lanewise list`` can be told."""

    json: bool = knob(False, *JSON_REPORT)


@dataclass(frozen=True, kw_only=True)
class RemoveSettings(SourceSettings):
    """What ``lanewise rm`` can be told."""


@dataclass(frozen=True, kw_only=True)
class StoreSettings(SourceSettings):
    """What ``lanewise store`` can be told."""

    kv_store: str | None = knob(None, TEXT, "the directory that serve was given")
    trim: int | None = knob(
        None, SIZE, "first remove what was used longest ago until this much is left"
    )
    verify: bool = knob(False, SWITCH, "look whether every file is whole; status 1 if not")
    export_file: str | None = knob(None, TEXT, "write all blocks to this file, a tar archive")
    import_file: str | None = knob(
        None,
        TEXT,
        "first put the blocks of such a file into the directory, made where it is missing",
    )


@dataclass(frozen=True, kw_only=True)
class VerifySettings(ReportSettings):
    """What ``lanewise verify`` can be told."""

    receipt: str | None = knob(None, TEXT, "file with a receipt, or with an answer that has some")
    public_key: str | None = knob(
        None,
        TEXT,
        "file with the public key in PEM that must have signed it; without it any key is taken,"
        " and told",
    )
    lora: str | None = knob(None, TEXT, "directory of the adapter that answered")
    chat_template: str | None = knob(
        None, TEXT, "file with the chat template that the server was given, if it was given one"
    )


@dataclass(frozen=True, kw_only=True)
class BatchSettings(Settings):
    """What ``lanewise batch`` can be told: all that a server can, and its files."""

    input: str | None = knob(
        None, TEXT, "file of requests, one a line, as /v1/batches and vLLM's run-batch take it"
    )
    output: str | None = knob(
        None,
        TEXT,
        "file to which answers are added; requests that have one there are left out",
        "-o",
    )
    batch_concurrency: int = knob(
        64, integer(1, 65536), "requests that are answered at a time, at most max_seqs"
    )


@dataclass(frozen=True, kw_only=True)
class FamiliesSettings(SourceSettings):
    """What ``lanewise families`` can be told."""

    json: bool = knob(False, *JSON_REPORT)


@dataclass(frozen=True, kw_only=True)
class ChatSettings(ModelSettings):
    """What ``lanewise chat`` can be told."""

    model: str | None = knob(
        None,
        TEXT,
        "a model, which is served for as long as this runs, or http://HOST:PORT of a server"
        " with the OpenAI API",
    )
    served_model_name: tuple[str, ...] = knob(
        (),
        TEXTS,
        "which of a server's models to talk with, the first of several; the server's first when"
        " not given",
    )
    api_key: tuple[str, ...] = knob(
        (), KEYS, "the key that a server wants; the first of several is sent"
    )
    system: str | None = knob(None, TEXT, "what the model is told before the conversation")
    temperature: float | None = knob(
        None, TEMPERATURE, "how freely to choose; the model's when not given"
    )
    max_tokens: int | None = knob(None, integer(1), "most tokens of an answer")


@dataclass(frozen=True, kw_only=True)
class UsageSettings(SourceSettings):
    """What ``lanewise usage`` can be told."""

    data_dir: str | None = knob(None, TEXT, "the directory that serve was given")
    first_day: str | None = knob(None, DAY, "the first day; all since the beginning when not given")
    last_day: str | None = knob(None, DAY, "the last day; today when not given")
    format: str = knob("csv", choice("csv", "json"), "what is printed")


@dataclass(frozen=True, kw_only=True)
class ConfigSettings(Settings):
    """What ``lanewise config`` can be told: all that ``serve`` can."""

    json: bool = knob(False, *JSON_REPORT)


EVERY_SETTINGS: tuple[type[SourceSettings], ...] = (
    Settings,
    ConfigSettings,
    ChatSettings,
    BenchSettings,
    PerplexitySettings,
    CompareSettings,
    DoctorSettings,
    PlanSettings,
    PackSettings,
    QuantizeSettings,
    InspectSettings,
    PullSettings,
    ListSettings,
    RemoveSettings,
    FamiliesSettings,
    UsageSettings,
    VerifySettings,
    BatchSettings,
)
