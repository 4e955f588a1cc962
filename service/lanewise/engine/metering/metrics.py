"""Metrics for operators: vLLM's names, so that its dashboards work, and our own."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import sub

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics_text

from lanewise.engine.metering.histograms import CountedHistogram, size_buckets
from lanewise.engine.metering.series import EncodingSeries, StateSeries, StoreSeries
from lanewise.runtime import BLOCK_TOKENS, EXPERT_ROWS, Counters

# The creation time of every series would be a third of the scraped text; no query needs it.
disable_created_metrics()  # type: ignore[no-untyped-call]

TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_TOKEN_BUCKETS = tuple(float(2**i) for i in (0, *range(3, 15)))
GAP_BUCKETS = (
    *(0.0001, 0.0002, 0.0003, 0.0004, 0.0005, 0.00075, 0.001, 0.0015),
    *(0.002, 0.005, 0.01, 0.02, 0.05, 0.1),
)
CHOICE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)
FINISHED_REASONS = ("stop", "length", "abort", "error")
REJECTED_REASONS = (
    *("queue_full", "queued_tokens", "queue_timeout", "time_limit", "shutting_down"),
)
SANDBOX_RESULTS = (
    *("done", "refused", "time", "memory", "depth", "size", "crash", "busy", "stopped"),
)
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
WAITING_REASONS = ("capacity", "deferred")
STAGES = ("queue", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts that do not change while the server runs, for the info gauges."""

    model_name: str
    isa: str
    threads: int
    weights: str
    kernels: str
    version: str
    kv_type: str
    prefix_cache: bool
    n_blocks: int
    max_model_len: int
    max_draft: int = 0
    max_loras: int = 0
    n_snapshots: int = 0
    state_bytes: int = 0  # bytes of all recurrent states


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's load at one moment, for a line in the log."""

    prompt_tokens: float
    generation_tokens: float
    running: float
    waiting: float
    kv_usage: float


class Metrics:
    """All series of one engine, in their own registry."""

    def __init__(self, facts: ModelFacts) -> None:
        self.facts = facts
        self.registry = CollectorRegistry()
        self._labels = {"model_name": facts.model_name, "engine": "0"}
        self._last_counters = Counters(0, 0, 0, 0, 0, 0)
        self._make_vllm_gauges(facts)
        self._make_vllm_counters(facts)
        self._make_vllm_histograms(facts)
        self._make_own(facts)
        self.encoding = EncodingSeries(self._labels, self.registry)
        self.states = StateSeries(self._labels, self.registry, facts.n_snapshots, facts.state_bytes)
        self.store = StoreSeries(self._labels, self.registry)
        ProcessCollector(registry=self.registry)

    def render(self, open_metrics: bool = False) -> bytes:
        """The metrics in Prometheus' text format, or in OpenMetrics, which has exemplars."""
        if not open_metrics:
            return generate_latest(self.registry)
        # The package's default escaping turns the colons of vLLM's names into underscores.
        text: bytes = open_metrics_text(self.registry, "allow-utf-8")  # type: ignore[no-untyped-call]
        return text

    def load(self) -> Load:
        """Work done so far and work waiting."""
        return Load(
            prompt_tokens=self._value("vllm:prompt_tokens_by_source_total", source=SOURCES[0]),
            generation_tokens=self._value("vllm:generation_tokens_total"),
            running=self._value("vllm:num_requests_running"),
            waiting=self._value("vllm:num_requests_waiting"),
            kv_usage=self._value("vllm:kv_cache_usage_perc"),
        )

    def _value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, self._labels | labels) or 0.0

    def set_load(self, running: int, waiting: int, n_used: int) -> None:
        """Set how many sequences run and wait, and how many KV blocks they use."""
        self.running.set(running)
        self.waiting.set(waiting)
        self._waiting_by_reason["capacity"].set(waiting)
        self.blocks_used.set(n_used)
        self.kv_usage.set(n_used / self.facts.n_blocks)
        self._gpu_kv_usage.set(n_used / self.facts.n_blocks)

    def set_adapters(self, running: str, waiting: str) -> None:
        """Set the names of adapters in use and waited for, separated by commas."""
        self._lora_info.clear()
        labels = str(self.facts.max_loras), running, waiting
        self._lora_info.labels(*self._labels.values(), *labels).set_to_current_time()

    def count_prompts(self, n_cached: int, n_computed: int) -> None:
        """Add prompt tokens, by whether their keys and values were found or computed."""
        self.prompt_tokens.inc(n_cached + n_computed)
        self._prompts_cached.inc(n_cached)
        self._prompts_by_source["local_cache_hit"].inc(n_cached)
        self._prompts_by_source["local_compute"].inc(n_computed)

    def count_prefixes(self, n_asked: int, n_found: int) -> None:
        """Add tokens that were looked up in the KV cache, and the tokens found."""
        for queries, hits in self._prefixes:
            queries.inc(n_asked)
            hits.inc(n_found)

    def count_native(self, counters: Counters) -> None:
        """Add what the session did since the last call."""
        last = self._last_counters
        self.native_steps.inc(counters.steps - last.steps)
        self.gemv_calls.inc(counters.gemv_calls - last.gemv_calls)
        self.gemm_calls.inc(counters.gemm_calls - last.gemm_calls)
        self.gemv_rows.inc(counters.gemv_rows - last.gemv_rows)
        self.gemm_rows.inc(counters.gemm_rows - last.gemm_rows)
        self.native_seconds.inc(counters.native_seconds - last.native_seconds)
        self.mask_seconds.inc(counters.held_seconds - last.held_seconds)
        if counters.expert_rows > last.expert_rows:
            new = map(sub, counters.experts_by_rows, last.experts_by_rows)
            self.expert_rows.add_counted(new, counters.expert_rows - last.expert_rows)
        self._last_counters = counters

    def skip_native(self, counters: Counters) -> None:
        """Drop what the session did since the last call."""
        self._last_counters = counters

    def count_drafts(self, drafts: Iterable[tuple[int, int]]) -> None:
        """Add drafts, each as (guessed tokens, accepted tokens)."""
        for n_guessed, n_accepted in drafts:
            self.drafts.inc()
            self.draft_tokens.inc(n_guessed)
            self.accepted_tokens.inc(n_accepted)
            for position in range(n_accepted):
                self.accepted_at[str(position)].inc()

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, list(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        metric = Counter(name, text, list(self._labels), registry=self.registry)
        return metric.labels(**self._labels)

    def _counters(
        self, name: str, text: str, label: str, values: tuple[str, ...]
    ) -> dict[str, Counter]:
        """One counter for each value of an additional label, all present from the start."""
        metric = Counter(name, text, [*self._labels, label], registry=self.registry)
        return {value: metric.labels(**self._labels, **{label: value}) for value in values}

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> CountedHistogram:
        return CountedHistogram(name, text, self._labels, buckets, self.registry)

    def _info(self, name: str, text: str, labels: dict[str, str]) -> None:
        Gauge(name, text, list(labels), registry=self.registry).labels(**labels).set(1)

    def _make_vllm_gauges(self, facts: ModelFacts) -> None:
        self.running = self._gauge("vllm:num_requests_running", "Sequences in the batch.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Sequences in the queue.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Sequences in the queue, by what they wait for.",
            [*self._labels, "reason"],
            registry=self.registry,
        )
        self._waiting_by_reason = {
            reason: by_reason.labels(*self._labels.values(), reason) for reason in WAITING_REASONS
        }
        used = "Share of KV blocks in use, 0 to 1."
        self.kv_usage = self._gauge("vllm:kv_cache_usage_perc", used)
        self._gpu_kv_usage = self._gauge("vllm:gpu_cache_usage_perc", f"{used} The older name.")
        self._lora_info = Gauge(
            "vllm:lora_requests_info",
            "Adapters that requests use and wait for; the value is the time of the report.",
            [*self._labels, "max_lora", "running_lora_adapters", "waiting_lora_adapters"],
            registry=self.registry,
        )
        self.set_adapters("", "")
        self._info(
            "vllm:cache_config_info",
            "How the KV cache is laid out.",
            {
                "block_size": str(BLOCK_TOKENS),
                "num_gpu_blocks": str(facts.n_blocks),
                "num_cpu_blocks": str(facts.n_blocks),
                "cache_dtype": facts.kv_type,
                "enable_prefix_caching": str(facts.prefix_cache),
                **self._labels,
            },
        )

    def _make_vllm_counters(self, facts: ModelFacts) -> None:
        self.prompt_tokens = self._counter(
            "vllm:prompt_tokens", "Prompt tokens, whether computed or found in the KV cache."
        )
        self._prompts_by_source = self._counters(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens, by where their keys and values came from.",
            "source",
            SOURCES,
        )
        self._prompts_cached = self._counter(
            "vllm:prompt_tokens_cached", "Prompt tokens found in the KV cache, and not computed."
        )
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens drawn.")
        asked = "Prompt tokens looked for in the KV cache."
        found = "Prompt tokens found in the KV cache, and not computed."
        self._prefixes = [
            (
                self._counter(f"vllm:{name}_queries", asked),
                self._counter(f"vllm:{name}_hits", found),
            )
            for name in ("prefix_cache", "gpu_prefix_cache")  # the second is the older name
        ]
        self.preemptions = self._counter(
            "vllm:num_preemptions", "Sequences that gave up their KV blocks."
        )
        self.drafts = self._counter("vllm:spec_decode_num_drafts", "Drafts run.")
        self.draft_tokens = self._counter(
            "vllm:spec_decode_num_draft_tokens", "Guessed tokens run."
        )
        self.accepted_tokens = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Guessed tokens that came true."
        )
        self.accepted_at = self._counters(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that came true, by their place in the draft.",
            "position",
            tuple(map(str, range(facts.max_draft))),
        )
        self.success = self._counters(
            "vllm:request_success", "Sequences ended.", "finished_reason", FINISHED_REASONS
        )

    def _make_vllm_histograms(self, facts: ModelFacts) -> None:
        def times(
            name: str, text: str, buckets: tuple[float, ...] = REQUEST_BUCKETS
        ) -> CountedHistogram:
            return self._histogram(f"vllm:{name}_seconds", text, buckets)

        def sizes(name: str, text: str, buckets: tuple[float, ...]) -> CountedHistogram:
            return self._histogram(f"vllm:{name}", text, buckets)

        self.ttft = times("time_to_first_token", "Arrival to first token.", TTFT_BUCKETS)
        self.itl = times("inter_token_latency", "Between two tokens.", TOKEN_BUCKETS)
        self.tpot = times(
            "request_time_per_output_token", "Mean time between tokens.", TOKEN_BUCKETS
        )
        self.e2e = times("e2e_request_latency", "Arrival to end.")
        self.queue = times("request_queue_time", "Arrival to first step.")
        self.inference = times("request_inference_time", "First step to end.")
        self.prefill = times("request_prefill_time", "First step to first token.")
        self.decode = times("request_decode_time", "First token to end.")
        lengths = size_buckets(facts.max_model_len)
        self.prompt_size = sizes("request_prompt_tokens", "Tokens of a prompt.", lengths)
        self.output_size = sizes("request_generation_tokens", "Tokens of an answer.", lengths)
        self.largest_output_size = sizes(
            "request_max_num_generation_tokens", "Longest answer of a request.", lengths
        )
        self.params_n = sizes("request_params_n", "Answers asked for.", CHOICE_BUCKETS)
        self.params_max_tokens = sizes(
            "request_params_max_tokens", "max_tokens asked for.", lengths
        )
        self.step_tokens = sizes("iteration_tokens_total", "Tokens in a step.", STEP_TOKEN_BUCKETS)

    def _make_own(self, facts: ModelFacts) -> None:
        self.native_steps = self._counter("lanewise_steps", "Forward steps.")
        self.gemv_calls = self._counter("lanewise_gemv_calls", "Matrix products with one row.")
        self.gemm_calls = self._counter("lanewise_gemm_calls", "Matrix products with more rows.")
        self.gemv_rows = self._counter("lanewise_gemv_rows", "Rows through GEMV.")
        self.gemm_rows = self._counter("lanewise_gemm_rows", "Rows through GEMM.")
        self.expert_rows = self._histogram(
            "lanewise_expert_rows",
            "Rows routed to each expert used in a step, by layer.",
            tuple(map(float, EXPERT_ROWS)),
        )
        self.busy_seconds = self._counter(
            "lanewise_busy_seconds", "Time with sequences to run, steps and all between them."
        )
        self.warm_up_seconds = self._gauge(
            "lanewise_warm_up_seconds",
            "Duration of the server's own first request, which other metrics leave out.",
        )
        self.native_seconds = self._counter(
            "lanewise_native_seconds", "Time inside the native library; a part of the busy time."
        )
        self.forced_tokens = self._counter(
            "lanewise_forced_tokens",
            "Tokens forced by a grammar: generated without a draw.",
        )
        self.mask_seconds = self._counter(
            "lanewise_grammar_mask_seconds",
            "Time that steps waited for masks of grammars; a part of the busy time.",
        )
        self.grammars = self._counters(
            "lanewise_grammars",
            "Requests with a grammar, by how it was obtained.",
            "result",
            ("compiled", "cached", "refused"),
        )
        self.sandbox_grammars = self._counters(
            "lanewise_sandbox_grammars",
            "Grammars compiled in the sandbox, by how that ended.",
            "result",
            SANDBOX_RESULTS,
        )
        self.sandbox_templates = self._counters(
            "lanewise_sandbox_templates",
            "Conversations rendered in the sandbox, by how that ended.",
            "result",
            SANDBOX_RESULTS,
        )
        self.image_views = self._counters(
            "lanewise_image_views",
            "Images, or tiles of them, that a sequence needed rows of, by where they came from.",
            "result",
            ("computed", "cached"),
        )
        self.image_tokens = self._counter(
            "lanewise_image_tokens", "Rows for prompts that were made of images."
        )
        self.image_seconds = self._counter(
            "lanewise_image_seconds", "Time that was spent on making them; a part of the busy time."
        )
        self.sandbox_images = self._counters(
            "lanewise_sandbox_images",
            "Images decoded and prepared in the sandbox, by how that ended.",
            "result",
            SANDBOX_RESULTS,
        )
        self.sandbox_workers = self._counter(
            "lanewise_sandbox_workers",
            "Processes of the sandbox that were started, one for each that a job ended.",
        )
        self.sandbox_restarts = self._counter(
            "lanewise_sandbox_restarts", "Times that the sandbox itself had to be started again."
        )
        self.step_errors = self._counter(
            "lanewise_step_errors", "Steps that failed, and draws that found NaN or infinity."
        )
        self.cancelled = self._counters(
            "lanewise_requests_cancelled", "Sequences whose client left.", "stage", STAGES
        )
        self.rejected = self._counters(
            "lanewise_requests_rejected",
            "Requests turned away or given up.",
            "reason",
            REJECTED_REASONS,
        )
        self.queued_tokens = self._gauge(
            "lanewise_queued_prompt_tokens", "Tokens of prompts that have not been run yet."
        )
        self.step_age = self._gauge(
            "lanewise_step_age_seconds", "How long the step that runs now has been running."
        )
        self.step_gap = self._histogram(
            "lanewise_step_gap_seconds",
            "From the end of a step's native call to the next one's beginning.",
            GAP_BUCKETS,
        )
        self.blocks_used = self._gauge("lanewise_kv_blocks_used", "KV blocks in use.")
        self._gauge("lanewise_kv_blocks", "KV blocks.").set(facts.n_blocks)
        self._info(
            "lanewise_info",
            "What computes.",
            {
                "isa": facts.isa,
                "threads": str(facts.threads),
                "weights": facts.weights,
                "kernels": facts.kernels,
                "version": facts.version,
                **self._labels,
            },
        )
