"""What the machine gives to the servers, and takes from them."""

from deploy.dashboards.panels import SERVER, WINDOW, Panel, Target, lines, rate, row, stat

PANELS = (
    stat(
        "Up",
        "Share of the known servers that answer.",
        f"avg(up{{{SERVER}}})",
        "percentunit",
        *(1, 0.5),
    ),
    stat("CPUs busy", "Of all servers together.", rate("process_cpu_seconds_total", SERVER)),
    stat(
        "Throttled",
        "Largest share of the quota's periods in which it stopped a server.",
        f"max(rate(lanewise_cpu_throttled_periods_total{{{SERVER}}}{WINDOW})"
        f" / clamp_min(rate(lanewise_cpu_periods_total{{{SERVER}}}{WINDOW}), 1e-9))",
        "percentunit",
        *(0.01, 0.05),
    ),
    stat(
        "Memory of the limit",
        "Largest share of a memory limit in use.",
        f"max(lanewise_memory_used_bytes{{{SERVER}}} / lanewise_memory_limit_bytes{{{SERVER}}})",
        "percentunit",
        *(0.85, 0.95),
    ),
    stat(
        "Starts",
        "Starts of servers within the last hour.",
        f"sum(changes(process_start_time_seconds{{{SERVER}}}[1h]))",
        None,
        *(1, 3),
    ),
    stat(
        "Open files",
        "Largest share of the files that a server may open.",
        f"max(process_open_fds{{{SERVER}}} / process_max_fds{{{SERVER}}})",
        "percentunit",
        *(0.7, 0.9),
    ),
    row("CPU and memory"),
    lines(
        "CPU",
        "CPUs kept busy, by server.",
        [(f"rate(process_cpu_seconds_total{{{SERVER}}}{WINDOW})", "{{instance}}")],
    ),
    lines(
        "Throttled by the CPU quota",
        "Share of the quota's periods in which it stopped the server, whose threads then wait for"
        " one another.",
        [
            (
                f"rate(lanewise_cpu_throttled_periods_total{{{SERVER}}}{WINDOW})"
                f" / clamp_min(rate(lanewise_cpu_periods_total{{{SERVER}}}{WINDOW}), 1e-9)",
                "{{instance}}",
            )
        ],
        "percentunit",
        *(0.01, 0.05),
        most=1,
    ),
    lines(
        "Time stopped by the quota",
        "Seconds of all CPUs per second for which the quota stopped the server.",
        [(f"rate(lanewise_cpu_throttled_seconds_total{{{SERVER}}}{WINDOW})", "{{instance}}")],
        "s",
    ),
    lines(
        "Memory",
        "Resident memory of each server; what counts against its limit, files in use included, and"
        " that limit.",
        [
            (f"process_resident_memory_bytes{{{SERVER}}}", "{{instance}}"),
            (f"lanewise_memory_used_bytes{{{SERVER}}}", "{{instance}} against the limit"),
            (f"lanewise_memory_limit_bytes{{{SERVER}}}", "{{instance}} limit"),
        ],
        "bytes",
    ),
    lines(
        "Memory of the limit, by server",
        "Share of the memory limit in use; the kernel ends a server at 1.",
        [
            (
                f"lanewise_memory_used_bytes{{{SERVER}}} / lanewise_memory_limit_bytes{{{SERVER}}}",
                "{{instance}}",
            )
        ],
        "percentunit",
        *(0.85, 0.95),
        most=1,
    ),
    lines(
        "What requests hold",
        "Bytes of what requests have brought and had made, until they are answered.",
        [(f"lanewise_request_memory_bytes{{{SERVER}}}", "{{instance}}")],
        "bytes",
    ),
    row("Servers"),
    lines(
        "Ready",
        "1 where a server takes requests: warmed up, not shutting down, and neither hanging nor"
        " failing.",
        [(f"lanewise_ready{{{SERVER}}}", "{{instance}}")],
        most=1,
    ),
    lines(
        "Connections",
        "Open connections.",
        [(f"lanewise_http_connections{{{SERVER}}}", "{{instance}}")],
    ),
    lines(
        "Warm-up",
        "How long a server's own first request took, before it was ready.",
        [(f"lanewise_warm_up_seconds{{{SERVER}}}", "{{instance}}")],
        "s",
    ),
    lines(
        "Scrapes",
        "How long a server takes to tell its metrics.",
        [(f"scrape_duration_seconds{{{SERVER}}}", "{{instance}}")],
        "s",
    ),
    Panel(
        "table",
        "What runs",
        "What each server runs.",
        (Target(f"lanewise_info{{{SERVER}}}", kind="table"),),
        width=16,
    ),
)
