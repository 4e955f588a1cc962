"""What somebody may have meant by a name that is no setting: a slip, or another server's word."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping

# What vLLM, llama.cpp and Ollama call it, flags without dashes and variables without their prefix.
RENAMED = {
    "max_pending_body_bytes": "request_memory",  # ours, before
    # vLLM
    "max_num_seqs": "max_seqs",
    "max_num_batched_tokens": "max_step_tokens",
    "gpu_memory_utilization": "kv_memory",
    "kv_cache_memory_bytes": "kv_memory",
    "enable_prefix_caching": "prefix_cache",
    "dtype": "weights",
    "quantization": "weights",
    "lora_modules": "lora",
    "enable_lora": "lora",
    "speculative_config": "draft",
    "allowed_origins": "cors_origins",
    "trusted_hosts": "allowed_hosts",
    "download_dir": "model",
    "uvicorn_log_level": "log_level",
    # llama.cpp
    "m": "model",
    "hf": "model",
    "hf_repo": "model",
    "c": "max_model_len",
    "ctx_size": "max_model_len",
    "np": "max_seqs",
    "parallel": "max_seqs",
    "n_parallel": "max_seqs",
    "b": "max_step_tokens",
    "batch_size": "max_step_tokens",
    "ub": "max_step_tokens",
    "ubatch_size": "max_step_tokens",
    "t": "threads",
    "threads_batch": "threads",
    "tb": "threads",
    "ctk": "kv_cache_dtype",
    "ctv": "kv_cache_dtype",
    "cache_type_k": "kv_cache_dtype",
    "cache_type_v": "kv_cache_dtype",
    "md": "draft",
    "model_draft": "draft",
    "draft_max": "draft_tokens",
    "a": "served_model_name",
    "alias": "served_model_name",
    "no_mmap": "load",
    "mlock": "load",
    "cpu_mask": "cpu_pinning",
    "chat_template_file": "chat_template",
    "log_verbosity": "log_level",
    # Ollama
    "num_parallel": "max_seqs",
    "context_length": "max_model_len",
    "num_ctx": "max_model_len",
    "num_thread": "threads",
    "max_queue": "max_queued_requests",
    "kv_cache_type": "kv_cache_dtype",
    "origins": "cors_origins",
    "debug": "log_level",
}
NOTHING_TO_SET = {
    **dict.fromkeys(
        ("ngl", "n_gpu_layers", "gpu_layers", "main_gpu", "tensor_split", "device"),
        "all layers run on the CPU",
    ),
    **dict.fromkeys(
        ("tensor_parallel_size", "tp", "pipeline_parallel_size", "data_parallel_size"),
        "one process computes with all cores (threads, numa)",
    ),
    **dict.fromkeys(("jinja", "flash_attn", "fa", "cont_batching"), "it is always so"),
    **dict.fromkeys(
        ("n_predict", "n", "temp", "top_k", "top_p", "min_p", "seed", "repeat_penalty"),
        "requests say it, each for itself",
    ),
    "trust_remote_code": "no code of a model is ever run",
    "keep_alive": "a model stays loaded while the server runs",
    "enforce_eager": "there is no other way here",
}
# Variables of the project that are no settings, and those that Kubernetes sets for its Services.
NO_SETTINGS = {"config", "require", "thorough", "library", "qemu", "arm_tools"}
OF_KUBERNETES = re.compile(
    r"(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)"
)
OTHER_PREFIXES = ("VLLM_", "LLAMA_ARG_", "LLAMA_", "OLLAMA_")


def hint(name: str, known: Collection[str], spelled: Callable[[str], str] = str) -> str | None:
    """What may have been meant; ``spelled`` makes a flag or a variable of a setting's name."""
    if (ours := RENAMED.get(name)) in known and ours is not None:
        return f"here it is {spelled(ours)}"
    if name in NOTHING_TO_SET:
        return f"there is nothing to set: {NOTHING_TO_SET[name]}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {spelled(close[0])}?" if close else None


def unknown_variables(
    environ: Mapping[str, str], prefix: str, known: Collection[str]
) -> Iterator[str]:
    """A sentence for each variable with our prefix that sets nothing."""
    for variable in sorted(environ):
        name = variable.removeprefix(prefix)
        if name == variable or not environ[variable] or OF_KUBERNETES.fullmatch(name):
            continue
        if name.lower() in NO_SETTINGS or name.lower() in known:
            continue
        meant = hint(name.lower(), known, lambda ours: prefix + ours.upper())
        yield f"{variable} is not a setting" + (f"; {meant}" if meant else "")


def variables_of_others(
    environ: Mapping[str, str], prefix: str, known: Collection[str]
) -> Iterator[str]:
    """A sentence for each variable of another server that has a counterpart here."""
    for variable in sorted(environ):
        for other in OTHER_PREFIXES:
            name = variable.removeprefix(other).lower()
            ours = name if name in known else RENAMED.get(name)
            if variable.startswith(other) and ours in known and ours is not None:
                yield f"{variable} is another server's; here it is {prefix}{ours.upper()}"
                break
