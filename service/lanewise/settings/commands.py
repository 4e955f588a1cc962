"""The settings of the commands beside ``serve``, and the list of all."""

from dataclasses import dataclass, field

from lanewise.settings.kinds import (
    ABOVE_0,
    BITS,
    COUNTS,
    KEYS,
    LOADED_AS,
    MTP,
    SIZE,
    SWITCH,
    TEMPERATURE,
    TEXT,
    TEXTS,
    choice,
    integer,
    knob,
)
from lanewise.settings.knobs import (
    DRAFT_TOKENS,
    ComputeSettings,
    ModelSettings,
    Settings,
    SourceSettings,
    WeightSettings,
)

MTP_DRAFT = knob(choice(MTP), "with the model's own head that guesses further tokens, as in serve")
JSON_REPORT = knob(SWITCH, "print one JSON object instead of a table")
# What `lanewise quantize` can make of matrices; quantizer/FORMAT.md describes each.
QUANTIZED_FORMATS = (
    *("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"),
    *("iq4_nl", "iq4_xs", "mxfp4", "cb2", "cb3", "cb4", "t2", "q4_g64", "q4_g128"),
    *("a4_g32", "a4_g64", "a4_g128", "a8_g32", "a8_g128", "fp6", "w8a8"),
)


@dataclass(frozen=True, kw_only=True)
class ReportSettings(ModelSettings):
    """What every command that prints a report understands."""

    json: bool = field(default=False, metadata=JSON_REPORT)


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
    draft: str | None = field(default=None, metadata=MTP_DRAFT)


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
    float_activations: bool = field(
        default=False,
        metadata=knob(
            SWITCH,
            "let quantized matrices multiply activations themselves, not int8 codes of them: a"
            " slow reference",
        ),
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
    float_activations: bool = field(
        default=False,
        metadata=knob(
            SWITCH,
            "compare with the original under float activations, a slow reference: what int8 codes"
            " of them cost; one MODEL will do",
        ),
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
    load_as: tuple[str, ...] = field(
        default=(),
        metadata=knob(
            LOADED_AS,
            "models that make vectors: also the first as it is when held in these types, as with"
            " --weights",
        ),
    )
    sentences: int = field(
        default=1000,
        metadata=knob(
            integer(1, 10000), "models that make vectors: sentences of the text to compare by"
        ),
    )
    chat: bool = field(
        default=False,
        metadata=knob(
            SWITCH,
            "also compare greedy answers to forty bundled prompts, by the model's chat template",
        ),
    )
    chat_tokens: int = field(
        default=64, metadata=knob(integer(1), "tokens of each of these answers at most")
    )
    tasks: tuple[str, ...] = field(
        default=(),
        metadata=knob(
            TEXTS,
            "also score these tasks of lm-eval, whose program lm_eval must be installed, through"
            " a server of each model",
        ),
    )
    tasks_limit: int | None = field(
        default=None, metadata=knob(integer(1), "questions of each task at most; all if not given")
    )
    picture: str | None = field(
        default=None,
        metadata=knob(TEXT, "write FILE.png and FILE.svg: perplexity over bits per weight"),
    )


@dataclass(frozen=True, kw_only=True)
class DoctorSettings(ReportSettings):
    """What ``lanewise doctor`` can be told."""

    kernels: bool = field(
        default=False, metadata=knob(SWITCH, "also list all kernels, and which can run here")
    )


@dataclass(frozen=True, kw_only=True)
class PlanSettings(ReportSettings):
    """What ``lanewise plan`` can be told."""

    instance: str | None = field(
        default=None,
        metadata=knob(TEXT, "plan for this machine of a cloud, such as c7g.4xlarge"),
    )
    instances: bool = field(
        default=False, metadata=knob(SWITCH, "list the machines that are known, and leave")
    )
    bench: str | None = field(
        default=None,
        metadata=knob(
            TEXT,
            "plan for the machine where `lanewise bench --json` of the model wrote this file;"
            " without it and --instance, this machine is measured",
        ),
    )
    itl: float | None = field(
        default=None,
        metadata=knob(
            ABOVE_0,
            "find machines: most milliseconds between two tokens, on average, for all users",
        ),
    )
    ttft: float | None = field(
        default=None,
        metadata=knob(
            ABOVE_0,
            "find machines: most milliseconds to the first token, in 95 of 100 requests",
        ),
    )
    arch: str = field(
        default="any",
        metadata=knob(choice("any", "arm", "x86"), "find or list machines of this kind"),
    )
    engine: str = field(
        default="lanewise",
        metadata=knob(choice("lanewise", "llama.cpp"), "whose kernels run; for an instance"),
    )
    users: tuple[int, ...] = field(
        default=(1, 4, 16),
        metadata=knob(COUNTS, "clients that always wait for an answer, one line for each"),
    )
    prompt_tokens: int = field(
        default=256, metadata=knob(integer(1), "tokens of each prompt, all new")
    )
    answer_tokens: int = field(default=128, metadata=knob(integer(2), "tokens of each answer"))
    draft: str | None = field(default=None, metadata=MTP_DRAFT)
    context: int | None = field(
        default=None,
        metadata=knob(
            integer(1),
            "tokens that each conversation may have in memory; prompt and answer when not given",
        ),
    )
    bandwidth: float | None = field(
        default=None,
        metadata=knob(ABOVE_0, "GB a second that all threads of the instance read together"),
    )
    memory: int | None = field(
        default=None, metadata=knob(SIZE, "memory that the server may use, of any machine")
    )
    price: float | None = field(
        default=None, metadata=knob(ABOVE_0, "USD that an hour of the machine costs")
    )


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
        metadata=knob(
            TEXT,
            "UTF-8 text to quantize on: slower, much better at few bits; bundled = the text that"
            " comes with the quantizer, which formats and --bits below 4 take when not given; none",
        ),
    )
    calibration_tokens: int = field(
        default=8192, metadata=knob(integer(2), "tokens of that text to use")
    )
    check_tokens: int = field(
        default=1536,
        metadata=knob(
            integer(0),
            "tokens of other text on which the result is compared with the source at the end,"
            " fewer where they take long; 0 = leave it out",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class InspectSettings(SourceSettings):
    """What ``lanewise inspect`` can be told."""

    json: bool = field(default=False, metadata=JSON_REPORT)
    check: bool = field(
        default=False,
        metadata=knob(SWITCH, "read all weights: checksums, and numbers that are not finite"),
    )
    outliers: bool = field(
        default=False,
        metadata=knob(SWITCH, "run a short text and say how far inputs of matrices stand out"),
    )


@dataclass(frozen=True, kw_only=True)
class PullSettings(SourceSettings):
    """What ``lanewise pull`` can be told."""


@dataclass(frozen=True, kw_only=True)
class ListSettings(SourceSettings):
    """What ``lanewise list`` can be told."""

    json: bool = field(default=False, metadata=JSON_REPORT)


@dataclass(frozen=True, kw_only=True)
class RemoveSettings(SourceSettings):
    """What ``lanewise rm`` can be told."""


@dataclass(frozen=True, kw_only=True)
class FamiliesSettings(SourceSettings):
    """What ``lanewise families`` can be told."""

    json: bool = field(default=False, metadata=JSON_REPORT)


@dataclass(frozen=True, kw_only=True)
class ChatSettings(ModelSettings):
    """What ``lanewise chat`` can be told."""

    model: str | None = field(
        default=None,
        metadata=knob(
            TEXT,
            "a model, which is served for as long as this runs, or http://HOST:PORT of a server"
            " with the OpenAI API",
        ),
    )
    served_model_name: tuple[str, ...] = field(
        default=(),
        metadata=knob(
            TEXTS,
            "which of a server's models to talk with, the first of several; the server's first when"
            " not given",
        ),
    )
    api_key: tuple[str, ...] = field(
        default=(), metadata=knob(KEYS, "the key that a server wants; the first of several is sent")
    )
    system: str | None = field(
        default=None, metadata=knob(TEXT, "what the model is told before the conversation")
    )
    temperature: float | None = field(
        default=None, metadata=knob(TEMPERATURE, "how freely to choose; the model's when not given")
    )
    max_tokens: int | None = field(
        default=None, metadata=knob(integer(1), "most tokens of an answer")
    )


@dataclass(frozen=True, kw_only=True)
class ConfigSettings(Settings):
    """What ``lanewise config`` can be told: all that ``serve`` can."""

    json: bool = field(default=False, metadata=JSON_REPORT)


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
)
