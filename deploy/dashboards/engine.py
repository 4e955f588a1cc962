"""What the engine does with the time that it has."""

from deploy.dashboards.panels import MODEL, WINDOW, heatmap, lines, quantiles, rate, row, stat

PANELS = (
    stat("Running", "Sequences in the batch now.", f"sum(vllm:num_requests_running{{{MODEL}}})"),
    stat(
        "Waiting",
        "Sequences in the queue now.",
        f"sum(vllm:num_requests_waiting{{{MODEL}}})",
        None,
        *(1, 10),
    ),
    stat("Generated", "Tokens drawn per second.", rate("vllm:generation_tokens_total"), "tok/s"),
    stat(
        "KV cache",
        "Share of KV blocks in use.",
        f"max(vllm:kv_cache_usage_perc{{{MODEL}}})",
        "percentunit",
        *(0.8, 0.95),
    ),
    stat(
        "Busy",
        "Share of the time with sequences to run.",
        f"avg(rate(lanewise_busy_seconds_total{{{MODEL}}}{WINDOW}))",
        "percentunit",
    ),
    stat(
        "Step running now",
        "How long the step that runs now has been running; one that grows is a hanging step.",
        f"max(lanewise_step_age_seconds{{{MODEL}}})",
        "s",
        *(10, 60),
    ),
    row("Where the time of a request goes"),
    quantiles("Queue time", "Arrival to the first step.", "vllm:request_queue_time_seconds"),
    quantiles("Prefill time", "First step to first token.", "vllm:request_prefill_time_seconds"),
    quantiles("Decode time", "First token to the last.", "vllm:request_decode_time_seconds"),
    row("Load"),
    lines(
        "Sequences",
        "In the batch and in the queue.",
        [
            (f"sum(vllm:num_requests_running{{{MODEL}}})", "running"),
            (f"sum(vllm:num_requests_waiting{{{MODEL}}})", "waiting"),
        ],
    ),
    lines(
        "Prompt tokens waiting",
        "Tokens of prompts in the queue that have not been run yet.",
        [(f"sum(lanewise_queued_prompt_tokens{{{MODEL}}})", "tokens")],
    ),
    lines(
        "KV cache use",
        "Share of the KV cache in use, and share of prompt tokens that were found in it.",
        [
            (f"vllm:kv_cache_usage_perc{{{MODEL}}}", "{{instance}}"),
            (
                f"{rate('vllm:prefix_cache_hits_total')}"
                f" / {rate('vllm:prefix_cache_queries_total')}",
                "prompt tokens found",
            ),
        ],
        "percentunit",
        *(0.8, 0.95),
        most=1,
    ),
    lines(
        "Snapshots of states",
        "Of models that keep a state: snapshots taken, and times that a sequence began with one."
        " Few used though prompts begin alike: raise snapshot_memory.",
        [
            (rate("lanewise_state_snapshots_taken_total"), "taken"),
            (rate("lanewise_state_snapshots_used_total"), "used"),
        ],
        "ops",
    ),
    lines(
        "Stored prompts",
        "Of servers with kv_store: blocks of 32 tokens written and read; missed: removed by others"
        " or spoiled; failed: the disk is full, or not the server's. Of a bucket: failed = no"
        " answer in time.",
        [
            (rate("lanewise_kv_store_blocks_total", by="result"), "{{result}}"),
            (rate("lanewise_kv_store_remote_objects_total", by="result"), "bucket: {{result}}"),
        ],
        "ops",
    ),
    lines(
        "Preemptions",
        "Sequences that gave up their KV blocks.",
        [(rate("vllm:num_preemptions_total"), "preemptions")],
        "ops",
    ),
    lines(
        "Step errors",
        "Forward steps that failed.",
        [(rate("lanewise_step_errors_total", by="instance"), "{{instance}}")],
        "ops",
    ),
    lines(
        "Speculation",
        "Guessed tokens per second: all that were run, and those that came true and saved a step.",
        [
            (rate("vllm:spec_decode_num_draft_tokens_total"), "guessed"),
            (rate("vllm:spec_decode_num_accepted_tokens_total"), "came true"),
        ],
        "rowsps",
    ),
    row("Steps"),
    heatmap(
        "Tokens in a step",
        "Steps per second by their tokens: how well requests are batched.",
        *("vllm:iteration_tokens_total", None),
    ),
    lines(
        "Rows by path",
        "Rows through GEMV (one row, decode alone) and GEMM (prefill and batched decode).",
        [
            (rate("lanewise_gemv_rows_total"), "GEMV"),
            (rate("lanewise_gemm_rows_total"), "GEMM"),
        ],
        "rowsps",
        stacked=True,
    ),
    lines(
        "Matrix products by path",
        "Calls of GEMV and GEMM, and forward steps.",
        [
            (rate("lanewise_gemv_calls_total"), "GEMV"),
            (rate("lanewise_gemm_calls_total"), "GEMM"),
            (rate("lanewise_steps_total"), "steps"),
        ],
        "ops",
    ),
    quantiles(
        "Between steps",
        "From the end of a step's native call to the beginning of the next: what Python adds.",
        "lanewise_step_gap_seconds",
    ),
    lines(
        "Time of the engine",
        "Shares of the time: inside the native library, and all with sequences to run.",
        [
            (f"avg(rate(lanewise_native_seconds_total{{{MODEL}}}{WINDOW}))", "native"),
            (f"avg(rate(lanewise_busy_seconds_total{{{MODEL}}}{WINDOW}))", "busy"),
        ],
        "percentunit",
        most=1,
    ),
    heatmap(
        "Rows of an expert",
        "Experts of mixture models that were used per second, by how many rows of a step each had:"
        " many small ones waste weights that are read, few large ones are an imbalance.",
        *("lanewise_expert_rows", None),
    ),
    row("Embeddings and scores"),
    lines(
        "Texts",
        "Texts and pairs per second that became vectors or scores.",
        [(rate("lanewise_encoded_texts_total"), "texts")],
        "ops",
    ),
    lines(
        "Texts waiting",
        "Texts and pairs that wait for a step.",
        [(f"sum(lanewise_queued_texts{{{MODEL}}})", "texts")],
    ),
    heatmap(
        "Texts in a step",
        "Steps per second by their texts: how well requests are batched.",
        *("lanewise_step_texts", None),
    ),
    row("Structured output"),
    lines(
        "Forced tokens",
        "Tokens per second that grammars left no choice about: they take no draw of their own.",
        [(rate("lanewise_forced_tokens_total"), "forced")],
        "tok/s",
    ),
    lines(
        "Time for grammars",
        "Share of all time that steps waited for which tokens grammars let come next.",
        [(rate("lanewise_grammar_mask_seconds_total"), "masks")],
        "percentunit",
    ),
    lines(
        "Sandbox",
        "Grammars compiled and conversations rendered per second, by how that ended.",
        [
            (rate("lanewise_sandbox_grammars_total", by="result"), "grammar {{result}}"),
            (rate("lanewise_sandbox_templates_total", by="result"), "template {{result}}"),
        ],
        "ops",
    ),
)
