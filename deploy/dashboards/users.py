"""What people who wait for answers see of the service."""

from deploy.dashboards.panels import (
    FIRST_TOKEN_S,
    MODEL,
    SERVER,
    TOKEN_S,
    answers,
    heatmap,
    lengths,
    lines,
    per_second,
    quantiles,
    rate,
    row,
    stat,
    within,
)

ALL = answers('method=~".+"')
ERRORS = answers('status=~"500|503|504|529"')
FIRST_TOKEN = "vllm:time_to_first_token_seconds"
UNFINISHED = "validating|in_progress|finalizing|cancelling"
TOKEN = "vllm:inter_token_latency_seconds"
PANELS = (
    stat(
        "Servers ready",
        "Servers that take requests, of those that are known.",
        f"sum(lanewise_ready{{{SERVER}}})",
        None,
        *(1, 0.5),
    ),
    stat(
        "Alerts",
        "Alerts that fire now.",
        'count(ALERTS{alertname=~"Lanewise.*", alertstate="firing"}) or vector(0)',
        None,
        *(1, 2),
    ),
    stat("Requests", "Requests answered per second.", ALL, "reqps"),
    stat(
        "Errors",
        "Share of requests that failed for a reason of the server's own.",
        f"{ERRORS} / clamp_min({ALL}, 1e-9)",
        "percentunit",
        *(0.01, 0.05),
    ),
    stat(
        f"First token within {FIRST_TOKEN_S:g} s",
        "The objective is 99 %.",
        within(FIRST_TOKEN, FIRST_TOKEN_S),
        "percentunit",
        *(0.99, 0.95),
    ),
    stat(
        f"Token within {TOKEN_S:g} s",
        "Of the one before; the objective is 99 %.",
        within(TOKEN, TOKEN_S),
        "percentunit",
        *(0.99, 0.95),
    ),
    row("How long people wait"),
    quantiles(
        "Time to first token",
        "Arrival to first token, queue included.",
        *(FIRST_TOKEN, "s", FIRST_TOKEN_S / 2, FIRST_TOKEN_S),
    ),
    quantiles(
        "Inter-token latency",
        "Between two tokens of one sequence.",
        *(TOKEN, "s", TOKEN_S / 2, TOKEN_S),
    ),
    quantiles(
        "Mean time per output token",
        "Of a whole answer behind its first token: TPOT.",
        *("vllm:request_time_per_output_token_seconds", "s", TOKEN_S / 2, TOKEN_S),
    ),
    heatmap("First tokens", "Requests per second by their time to first token.", FIRST_TOKEN),
    heatmap("Gaps between tokens", "Tokens per second by the time since the one before.", TOKEN),
    quantiles("End to end", "Arrival to the last token.", "vllm:e2e_request_latency_seconds"),
    row("What becomes of requests"),
    lines(
        "Answers by status",
        "Requests per second; 499 is a client that left before its answer.",
        [(answers('method=~".+"', "status"), "{{status}}")],
        "reqps",
        stacked=True,
    ),
    lines(
        "Errors by endpoint",
        "Requests per second that were refused or failed.",
        [(answers('status=~"[45]..|0"', "handler, status"), "{{handler}} {{status}}")],
        "reqps",
        stacked=True,
    ),
    per_second(
        "Turned away",
        "Requests per second that found the queue full, or gave up in it, or took too long.",
        "lanewise_requests_rejected_total",
        "reason",
    ),
    lines(
        "Over their budget",
        "Requests per second refused because their key had used what it may, by the limit.",
        [(rate("lanewise_budget_refusals_total", SERVER, "limit"), "{{limit}}")],
        "reqps",
        stacked=True,
    ),
    per_second(
        "Finished",
        "Sequences ended per second, by reason.",
        "vllm:request_success_total",
        "finished_reason",
    ),
    per_second(
        "Cancelled",
        "Sequences whose client left, by where they were.",
        "lanewise_requests_cancelled_total",
        "stage",
    ),
    lines(
        "Tokens per second",
        "Prompt tokens that were computed and that were in the cache, and tokens drawn.",
        [
            (
                rate("vllm:prompt_tokens_by_source_total", f'source="local_compute", {MODEL}'),
                "prompt, computed",
            ),
            (
                rate("vllm:prompt_tokens_by_source_total", f'source="local_cache_hit", {MODEL}'),
                "prompt, from cache",
            ),
            (rate("vllm:generation_tokens_total"), "generated"),
        ],
        "tok/s",
    ),
    row("What is asked for"),
    lengths("Prompt length", "Tokens of a prompt", "vllm:request_prompt_tokens"),
    lengths("Answer length", "Tokens of an answer", "vllm:request_generation_tokens"),
    per_second(
        "Structured output",
        "Requests with structured output or tools: grammars compiled, found compiled, or refused.",
        "lanewise_grammars_total",
        "result",
    ),
    row("Batches"),
    lines(
        "Requests of batches",
        "Answered per second, beside all that is shown above.",
        [(rate("lanewise_batch_requests_total", SERVER, "result"), "{{result}}")],
        "reqps",
        stacked=True,
    ),
    lines(
        "Unfinished batches",
        "By where they are.",
        [
            (
                f'sum by (status) (lanewise_batches{{{SERVER}, status=~"{UNFINISHED}"}})',
                "{{status}}",
            ),
            (f"sum(lanewise_batch_requests_running{{{SERVER}}})", "requests at work"),
        ],
    ),
)
