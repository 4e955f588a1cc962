"""Scores of lm-eval's tasks, asked of a server of the model as users have it."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanewise.commands.chat_server import flags_of, own_server
from lanewise.commands.compared import Score
from lanewise.host import HostError
from lanewise.settings import CompareSettings, SettingsError

PROGRAM = "lm_eval"
NAME = "compared"  # of the model in its server's API
LONGEST = 4096  # tokens of a request; a server may have memory for less than the model allows
REQUESTS = 8  # at a time
METRICS = ("acc_norm", "acc", "exact_match", "f1", "word_perplexity", "perplexity")  # best first


def check_program(tasks: Sequence[str]) -> None:
    """SettingsError if tasks are wanted and nothing is there to ask them."""
    if tasks and shutil.which(PROGRAM) is None:
        raise SettingsError(
            f"--tasks: the program {PROGRAM} is not installed; python -m pip install 'lm-eval[api]'"
        )


def task_scores(model: str, context: int, settings: CompareSettings) -> dict[str, Score]:
    """Serve a model and have lm-eval score all tasks; HostError if it fails."""
    arguments = [*flags_of(replace(settings, model=model)), "--served-model-name", NAME]
    with (
        tempfile.TemporaryDirectory(prefix="lanewise-tasks-") as folder,
        own_server(arguments, lambda _line: None) as client,
    ):
        key = client.key or ""
        told = {
            "model": NAME,
            "base_url": f"{client.url}/v1/completions",
            "tokenizer_backend": "remote",
            "auth_token": key,  # good for this server, which ends with this command
            "max_length": str(min(context, LONGEST)),
            "num_concurrent": str(REQUESTS),
        }
        command = [PROGRAM, "--model", "local-completions"]
        command += ["--model_args", ",".join(f"{name}={value}" for name, value in told.items())]
        command += ["--tasks", ",".join(settings.tasks), "--output_path", folder]
        if settings.tasks_limit is not None:
            command += ["--limit", str(settings.tasks_limit)]
        environment = os.environ | {"OPENAI_API_KEY": key}
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise HostError(f"{PROGRAM} ended with status {done.returncode}; it says above why")
        return read_scores(Path(folder), settings.tasks)


def read_scores(folder: Path, tasks: Sequence[str]) -> dict[str, Score]:
    """The scores in the newest file of results below a folder."""
    files = sorted(folder.rglob("results*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not files:
        raise HostError(f"{PROGRAM} has written no results*.json; accepted: version 0.4.5 or later")
    results = json.loads(files[-1].read_text(encoding="utf-8")).get("results", {})
    if not results:
        raise HostError(f"{PROGRAM}: {files[-1].name} has no results")
    # A task given as a file has a name of its own there.
    names = tasks if all(task in results for task in tasks) else list(results)
    return {task: score_of(task, results[task]) for task in names}


def score_of(task: str, result: Mapping[str, Any]) -> Score:
    """The best-known metric of a task's result, whose keys are ``metric,filter``."""
    values = {
        key.partition(",")[0]: (value, key.partition(",")[2])
        for key, value in result.items()
        if isinstance(value, int | float) and "_stderr" not in key and "," in key
    }
    metric = next((name for name in (*METRICS, *values) if name in values), None)
    if metric is None:
        raise HostError(f"{PROGRAM}: {task}: no number in its result")
    value, how = values[metric]
    error = result.get(f"{metric}_stderr,{how}")
    return Score(metric, float(value), float(error) if isinstance(error, int | float) else None)
