"""The settings of the server: one field for each knob."""

from collections.abc import Mapping
from dataclasses import dataclass

from lanewise.settings.kinds import (
    DAYS,
    HF_OVERRIDES,
    HOURS,
    KEYS,
    MILLISECONDS,
    NAMED_PATHS,
    ON_OFF,
    SECONDS,
    SHARE,
    SIZE,
    SOME_SECONDS,
    TEXT,
    TEXTS,
    WEB_ADDRESSES,
    choice,
    integer,
    knob,
)
from lanewise.settings.models import MIB, ModelSettings, TowerSettings

DRAFT_TOKENS = (
    integer(1, 64),
    "most guessed tokens that a sequence has in one step; fewer where they fail",
)


@dataclass(frozen=True, kw_only=True)
class Settings(ModelSettings, TowerSettings):
    """What ``lanewise serve`` can be told."""

    served_model_name: tuple[str, ...] = knob(
        (),
        TEXTS,
        "names of the model in the API, the first in metrics; the model's own when not given",
    )
    models: str | None = knob(
        None,
        TEXT,
        "a YAML file of several models to serve at one address, each loaded when it is asked for;"
        " instead of MODEL",
    )
    models_dir: str | None = knob(
        None,
        TEXT,
        "a folder whose GGUF files and Hugging Face folders are all served by their names, each"
        " loaded when it is asked for; instead of MODEL",
    )
    host: str = knob(
        "127.0.0.1", TEXT, "address to listen on; unix:PATH for a socket of this machine alone"
    )
    port: int = knob(8000, integer(0, 65535), "port to listen on", "-p")
    kv_memory: int | None = knob(
        None,
        SIZE,
        "memory for keys, values and states of conversations; from the memory limit when not given",
    )
    snapshot_memory: int | None = knob(
        None,
        SIZE,
        "models with recurrent state: part of kv_memory for snapshots, which let shared prompts"
        " and later turns resume; one for each 1024 tokens of the KV cache when not given",
    )
    max_model_len: int | None = knob(
        None,
        integer(1),
        "longest prompt plus answer in tokens; not given: the model's context, or less where"
        " the KV cache holds less",
    )
    max_step_tokens: int = knob(512, integer(1, 1 << 20), "most tokens in one step of the model")
    max_seqs: int = knob(64, integer(1, 65536), "most sequences that run at the same time")
    itl_target_ms: float = knob(
        170.0,
        MILLISECONDS,
        "prompts of others may stretch the time between two tokens to this, or to twice what it"
        " is without them; 0 = prompts as fast as they can",
    )
    speculation: bool = knob(
        True,
        ON_OFF,
        "guess the next tokens from what the text repeats and run them together, where that"
        " is faster; answers are the same",
    )
    draft: str | None = knob(
        None,
        TEXT,
        "what guesses too: a small model of the same vocabulary, a head for this model (EAGLE-3,"
        " DFlash, Gemma 4's assistant), or mtp: its own head",
    )
    draft_tokens: int = knob(15, *DRAFT_TOKENS)
    prefix_cache: bool = knob(
        True,
        ON_OFF,
        "compute what prompts have in common once: their keys and values stay in the cache"
        " until the place is needed",
    )
    share_prefix_cache: bool = knob(
        False,
        ON_OFF,
        "let requests with different API keys share what prompts have in common; a key can"
        " then tell by time and cached_tokens what others have sent",
    )
    kv_store: str | None = knob(
        None,
        TEXT,
        "directory in which computed prompts are kept: after a restart they are read instead of"
        " computed, also by other servers with the same model",
    )
    kv_store_bytes: int = knob(
        10 << 30, SIZE, "most that kv_store takes; what was used longest ago goes first"
    )
    kv_store_remote: str | None = knob(
        None,
        TEXT,
        "bucket behind kv_store, such as s3://BUCKET/PREFIX (gs://, az://), which servers with"
        " directories of their own share; needs obstore",
    )
    kv_store_key_file: str | None = knob(
        None,
        TEXT,
        "file with a secret that signs what is in kv_store and kv_store_remote: others who can"
        " write there cannot make the server use what they wrote; the same for all servers that"
        " share them",
    )
    kv_store_encrypt: bool = knob(
        False,
        ON_OFF,
        "encrypt what is in kv_store with the secret of kv_store_key_file (package `cryptography`)",
    )
    data_dir: str | None = knob(
        None,
        TEXT,
        "directory of this server alone for what it keeps of its clients: files, batches,"
        " usage; nothing is kept when not given",
    )
    max_file_bytes: int = knob(512 * MIB, SIZE, "largest file of /v1/files")
    max_files: int = knob(10_000, integer(1), "most files of an API key")
    file_quota: int = knob(10 << 30, SIZE, "most bytes of the files of an API key")
    file_days: float = knob(
        30.0, DAYS, "days after which a file goes that was sent without expires_after; 0 = never"
    )
    batch_concurrency: int = knob(
        32, integer(1, 65536), "requests of batches that are answered at a time"
    )
    batch_hours: tuple[str, ...] = knob(
        (),
        HOURS,
        "hours of the day, by the machine's clock, in which batches run; any when not given",
    )
    batch_stretch: float = knob(
        0.05,
        SHARE,
        "share by which batches may lengthen the steps of others; 0 = batches run alone",
    )
    receipts: str | None = knob(
        None,
        TEXT,
        "file with an Ed25519 private key in PEM, which signs the answer of a request that asks for"
        " a receipt (extra `receipts`)",
    )
    lora: tuple[tuple[str, str], ...] = knob(
        (),
        NAMED_PATHS,
        "LoRA adapters to load, directories that PEFT saved; a request names one as its model",
    )
    allow_runtime_lora: bool = knob(
        False,
        ON_OFF,
        "administrators' requests may load adapters from lora_root and unload them:"
        " /v1/load_lora_adapter, /v1/unload_lora_adapter; needs admin_api_key and lora_root",
    )
    lora_root: str | None = knob(
        None, TEXT, "directory under which adapters lie that requests may load"
    )
    max_loras: int = knob(8, integer(1, 1024), "most LoRA adapters in memory at a time")
    max_lora_rank: int = knob(64, integer(1, 512), "largest rank of a LoRA adapter")
    max_queued_requests: int = knob(
        256, integer(0), "requests that may wait before new ones get status 429"
    )
    max_queued_tokens: int = knob(
        1 << 20, integer(1), "tokens of prompts that may wait before new ones get status 429"
    )
    queue_timeout_s: float = knob(
        0.0, SECONDS, "time a request may wait for its turn, then status 503; 0 = any"
    )
    request_timeout_s: float = knob(
        0.0, SECONDS, "time a request may take in all, then status 504; 0 = any"
    )
    step_timeout_s: float = knob(
        120.0, SECONDS, "a step that takes longer makes the server not ready; 0 = any"
    )
    max_body_bytes: int = knob(8 * MIB, SIZE, "largest request body that is read")
    max_connections: int = knob(
        1000,
        integer(1),
        "open connections before new ones get status 503; a few more may ask for /health and"
        " /metrics",
    )
    max_head_bytes: int = knob(
        64 << 10, SIZE, "largest head of a request, request line and all fields together"
    )
    head_timeout_s: float = knob(
        10.0, SECONDS, "time a request's head may take from its first byte on; 0 = any"
    )
    body_timeout_s: float = knob(
        60.0, SECONDS, "time a request's body may take after its head; 0 = any"
    )
    send_timeout_s: float = knob(
        60.0, SECONDS, "time in which a client must take 16 KiB of its answer, or all; 0 = any"
    )
    request_memory: int | None = knob(
        None,
        SIZE,
        "memory of what all requests hold, bodies and what is made of them, beyond 64 KiB of"
        " each, before more get status 503; from the memory limit when not given",
    )
    max_grammar_bytes: int = knob(
        256 << 10, SIZE, "largest JSON schema, regular expression, choice or grammar"
    )
    grammar_timeout_s: float = knob(
        2.0, SOME_SECONDS, "processor time to compile a grammar in, then status 400"
    )
    grammar_memory: int = knob(128 * MIB, SIZE, "memory to compile a grammar in, then status 400")
    grammar_cache_memory: int = knob(
        256 * MIB, SIZE, "memory of the compiled grammars of running and of past requests together"
    )
    template_timeout_s: float = knob(
        1.0, SOME_SECONDS, "processor time to render a conversation in, then status 400"
    )
    template_memory: int = knob(
        128 * MIB, SIZE, "memory to render a conversation in, then status 400"
    )
    max_images: int = knob(16, integer(0), "most images of a request, of all its messages")
    max_image_bytes: int = knob(16 * MIB, SIZE, "largest image as it is sent, decoded from base64")
    max_image_pixels: int = knob(
        50_000_000, integer(1), "most pixels of an image, width by height, before it is decoded"
    )
    image_timeout_s: float = knob(
        3.0, SOME_SECONDS, "processor time to decode and resize an image in, then status 400"
    )
    image_memory: int = knob(
        1 << 30, SIZE, "memory to decode and resize an image in, then status 400"
    )
    image_hosts: tuple[str, ...] = knob(
        (), TEXTS, "hosts from which images are fetched that requests name by URL; none = no URLs"
    )
    image_fetch_timeout_s: float = knob(
        10.0, SOME_SECONDS, "time in which such an image must be there, then status 400"
    )
    image_cache_memory: int = knob(
        128 * MIB,
        SIZE,
        "memory of what towers made of images, kept for requests with the same ones",
    )
    max_messages: int = knob(
        1 << 14, integer(1), "most messages of a request, parts of their contents included"
    )
    max_tools: int = knob(128, integer(0), "most tools of a request")
    max_tool_bytes: int = knob(
        MIB, SIZE, "most text of a request's tools, descriptions and schemas together"
    )
    max_stop_strings: int = knob(64, integer(0), "most stop strings of a request")
    max_stop_token_ids: int = knob(1024, integer(0), "most stop_token_ids of a request")
    max_logit_bias: int = knob(1024, integer(0), "most entries of a request's logit_bias")
    max_texts: int = knob(
        2048, integer(1, 1 << 18), "most texts of a request for embeddings, scores or classes"
    )
    response_store_bytes: int = knob(
        64 * MIB, SIZE, "memory of answers of /v1/responses that are kept to go on from"
    )
    max_stored_responses: int = knob(
        1024, integer(0), "most such answers; the API key with the most loses its oldest first"
    )
    api_key: tuple[str, ...] = knob((), KEYS, "keys that clients must send; none = no key needed")
    api_key_file: str | None = knob(
        None,
        TEXT,
        "file with keys that clients must send, one a line, perhaps with limits; # = comment",
    )
    admin_api_key: tuple[str, ...] = knob(
        (), KEYS, "keys of administrators, who may load adapters and go before others by priority"
    )
    admin_api_key_file: str | None = knob(None, TEXT, "file with such keys, one a line")
    requests_per_minute: int = knob(0, integer(0), "most requests of a key in a minute; 0 = any")
    requests_per_day: int = knob(0, integer(0), "the same in a day, which begins at 0:00 UTC")
    tokens_per_minute: int = knob(0, integer(0), "most tokens, read and written; 0 = any")
    tokens_per_day: int = knob(0, integer(0), "the same in a day")
    allow_high_priority: bool = knob(False, ON_OFF, "any request may have a priority below 0")
    cors_origins: tuple[str, ...] = knob(
        (), TEXTS, "web origins whose pages may call the API, * for all"
    )
    allowed_hosts: tuple[str, ...] = knob((), TEXTS, "names by which it may be asked, * for any")
    mcp_servers: tuple[str, ...] = knob(
        (), WEB_ADDRESSES, "MCP servers whose tools the web page offers, from the user's browser"
    )
    chat_template: str | None = knob(
        None, TEXT, "file with a jinja chat template to use instead of the model's"
    )
    hf_overrides: Mapping[str, object] | None = knob(
        None,
        HF_OVERRIDES,
        "keys of the model's config.json to take others for; for Qwen3-Reranker:"
        """ '{"classifier_from_token": ["no", "yes"]}'""",
    )
    generation_config: str = knob(
        "auto",
        choice("auto", "off"),
        "temperature, top_p, top_k, min_p and repetition_penalty of requests that do not say:"
        " auto = those of the model's generation_config.json or GGUF metadata, off = OpenAI's",
    )
    lame_duck_s: float = knob(
        0.0,
        SECONDS,
        "time after SIGTERM in which requests are still taken while /health/ready says no:"
        " as long as load balancers take to notice",
    )
    drain_timeout_s: float = knob(30.0, SECONDS, "time running requests get to finish after that")
    otlp_traces_endpoint: str | None = knob(
        None,
        TEXT,
        "collector that spans of requests go to, http://host:4318/v1/traces (extra `otel`)",
    )
    log_level: str = knob(
        "info", choice("debug", "info", "warning", "error"), "least important messages to log"
    )
    log_format: str = knob("text", choice("text", "json"), "one line of text or JSON per message")

    @property
    def max_draft(self) -> int:
        """Guessed tokens of one sequence in one step at most; 0 without speculation."""
        return self.draft_tokens if self.speculation else 0
