"""The settings in groups, as ``--help`` and ``lanewise config`` show them."""

from collections.abc import Iterable, Iterator
from dataclasses import Field
from typing import Any

GROUPS = {
    "model": (
        *("models", "models_dir", "served_model_name", "chat_template", "generation_config"),
        *("weights", "load", "kv_cache_dtype", "max_model_len", "hf_overrides"),
        *("mmproj", "tower_weights"),
    ),
    "machine": (
        *("threads", "isa", "cpu_pinning", "numa", "autotune", "decode_threads"),
        *("fetch_ahead", "kv_memory", "snapshot_memory"),
    ),
    "network": (
        *("host", "port", "cors_origins", "allowed_hosts", "mcp_servers"),
        *("max_connections", "max_head_bytes"),
        *("max_body_bytes", "request_memory", "head_timeout_s", "body_timeout_s"),
        "send_timeout_s",
    ),
    "keys": (
        *("api_key", "api_key_file", "admin_api_key", "admin_api_key_file"),
        *("requests_per_minute", "requests_per_day", "tokens_per_minute", "tokens_per_day"),
        *("allow_high_priority", "receipts"),
    ),
    "steps and queue": (
        *("max_seqs", "max_step_tokens", "itl_target_ms", "prefix_cache", "share_prefix_cache"),
        *("kv_store", "kv_store_bytes", "kv_store_remote", "kv_store_key_file"),
        "kv_store_encrypt",
        *("max_queued_requests", "max_queued_tokens", "queue_timeout_s", "request_timeout_s"),
        *("step_timeout_s", "lame_duck_s", "drain_timeout_s"),
    ),
    "data": (
        *("data_dir", "max_file_bytes", "max_files", "file_quota", "file_days"),
        *("batch_concurrency", "batch_hours", "batch_stretch"),
    ),
    "guessing": ("speculation", "draft", "draft_tokens"),
    "adapters": ("lora", "allow_runtime_lora", "lora_root", "max_loras", "max_lora_rank"),
    "bounds of a request": (
        *("max_messages", "max_tools", "max_tool_bytes", "max_stop_strings", "max_stop_token_ids"),
        *("max_logit_bias", "max_texts", "max_grammar_bytes", "grammar_timeout_s"),
        *("grammar_memory", "grammar_cache_memory", "template_timeout_s", "template_memory"),
        *("max_images", "max_image_bytes", "max_image_pixels", "image_timeout_s", "image_memory"),
        *("image_cache_memory", "image_hosts", "image_fetch_timeout_s"),
        *("response_store_bytes", "max_stored_responses"),
    ),
    "log and traces": ("log_level", "log_format", "otlp_traces_endpoint"),
}
# What `serve --help` shows; `--help-all` shows the rest too.
ESSENTIAL = (
    *("model", "served_model_name", "weights", "kv_cache_dtype", "max_model_len", "threads"),
    *("kv_memory", "host", "port", "api_key_file", "max_seqs", "itl_target_ms", "lora", "draft"),
)
OTHERS = "this command"
ORDER = {name: (group, at) for group, names in GROUPS.items() for at, name in enumerate(names)}


def grouped(items: Iterable[Field[Any]]) -> Iterator[tuple[str, list[Field[Any]]]]:
    """Settings by group, in the order above; what is in none comes first, under ``OTHERS``."""
    found: dict[str, list[Field[Any]]] = {group: [] for group in (OTHERS, *GROUPS)}
    for item in items:
        found[ORDER.get(item.name, (OTHERS, 0))[0]].append(item)
    for group, members in found.items():
        members.sort(key=lambda item: ORDER.get(item.name, (OTHERS, 0))[1])
        if members:
            yield group, members
