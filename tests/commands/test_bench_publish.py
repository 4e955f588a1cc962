"""The standard rows as Markdown, beside programs that answer as llama.cpp's do."""

import contextlib
import hashlib
import json
import types

import pytest

from lanewise.commands import bench, bench_publish
from lanewise.commands.opening import Opened
from lanewise.runtime import Limits
from lanewise.settings import BenchSettings, SettingsError
from lanewise.topology import Placement

TESTS = [
    {"n_prompt": 512, "n_gen": 0, "avg_ts": 50.0, "build_commit": "0c1e570", "build_number": 6123},
    {"n_prompt": 0, "n_gen": 128, "avg_ts": 4.0, "build_commit": "0c1e570", "build_number": 6123},
]
TOGETHER = {"pp": 32, "tg": 128, "pl": 8, "speed_tg": 8.0}
REPORT = {
    "model": "tiny",
    "weights": "q4_0",
    "cpu": "Zen 5 | 2",
    "threads": 2,
    "busy": None,
    "results": [
        {"name": name, "tokens_per_second": speed, "spread": 0.5}
        for name, speed in (("pp512", 100.0), ("tg128", 10.0), ("tg128@8", 32.0))
    ],
}


def program(path, text, status=0):
    lines = ["#!/bin/sh", f'echo "$@" >> {path}.calls', "echo log >&2", "cat <<'EOF'", text, "EOF"]
    path.write_text("\n".join([*lines, f"exit {status}\n"]))
    path.chmod(0o755)
    return path


@pytest.fixture
def model_file(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def opened(model_file, monkeypatch):
    monkeypatch.setattr(
        bench_publish, "kernels_in_use", lambda isa, weights: [f"gemv_{weights}__{isa}"]
    )
    checkpoint = types.SimpleNamespace(path=model_file, files=(model_file,), name="tiny")
    info = types.SimpleNamespace(isa="avx2", numerics=3)
    model = types.SimpleNamespace(info=info, weights="q4_0")
    placement = Placement((), "not pinned", "off", (), (), "wherever")
    return Opened(checkpoint, model, 2, "f16", placement)


def test_rows_have_what_it_takes_to_measure_them_again(opened):
    lines = bench_publish.as_markdown(BenchSettings(), opened, REPORT, None).splitlines()
    assert lines[0] == "| model | CPU | threads | test | tokens/s |"
    assert lines[2] == "| tiny q4_0 | Zen 5 / 2 | 2 | prompt of 512 tokens | 100.0 ± 0.5 |"
    text = "\n".join(lines)
    assert f"tiny.gguf, 7 bytes, sha256 {hashlib.sha256(b'weights').hexdigest()}" in text
    assert "kernels: avx2: gemv_q4_0__avx2" in text
    assert "KV cache f16, context 32, medians of 3; threads not pinned; memory wherever" in text
    assert "(numeric contract 3)" in text
    assert "llama.cpp" not in text
    busy = bench_publish.as_markdown(BenchSettings(), opened, {**REPORT, "busy": "tests"}, None)
    assert busy.endswith("others used this machine: tests; figures are too low")


def test_llama_cpp_runs_the_same_file_with_as_many_threads(opened, tmp_path, model_file):
    theirs = program(tmp_path / "llama-bench", json.dumps(TESTS))
    program(tmp_path / "llama-batched-bench", f"log\n{json.dumps(TOGETHER)}")
    settings = BenchSettings(publish=True, llama_bench=str(theirs), repeat=5)
    bench_publish.check(settings, (model_file,))
    measured = bench_publish.measure_theirs(settings, opened)
    assert measured.speeds == {"pp512": 50.0, "tg128": 4.0, "tg128@8": 8.0}
    calls = (tmp_path / "llama-bench.calls").read_text().split()
    assert calls == f"-m {model_file} -t 2 -p 512 -n 128 -r 5 -o json".split()
    lines = bench_publish.as_markdown(settings, opened, REPORT, measured).splitlines()
    assert [line.split(" | ")[-2:] for line in lines[2:5]] == [
        ["50.0", "2.00 |"],
        ["4.0", "2.50 |"],
        ["8.0", "4.00 |"],
    ]
    assert "llama.cpp 6123 (0c1e570)" in "\n".join(lines)


def test_without_its_batched_program_a_cell_stays_empty(opened, tmp_path):
    theirs = program(tmp_path / "llama-bench", json.dumps(TESTS))
    settings = BenchSettings(publish=True, llama_bench=str(theirs))
    measured = bench_publish.measure_theirs(settings, opened)
    lines = bench_publish.as_markdown(settings, opened, REPORT, measured).splitlines()
    assert lines[4].endswith("| 32.0 ± 0.5 | - | - |")


@pytest.mark.parametrize(
    ("text", "status", "message"),
    [("[]", 3, "status 3: log"), ("no", 0, "wrote no JSON"), ("[]", 0, "wrote no list of tests")],
)
def test_programs_that_fail_are_told(opened, tmp_path, text, status, message):
    theirs = program(tmp_path / "llama-bench", text, status)
    settings = BenchSettings(publish=True, llama_bench=str(theirs))
    with pytest.raises(SettingsError, match=message):
        bench_publish.measure_theirs(settings, opened)


@pytest.mark.parametrize(
    ("publish", "name", "files", "message"),
    [
        (False, "llama-bench", ["a.gguf"], "together with --publish"),
        (True, "llama-bench", ["folder"], "for a model in one GGUF file"),
        (True, "llama-bench", ["a.gguf", "b.gguf"], "for a model in one GGUF file"),
        (True, "nothing", ["a.gguf"], "is no file"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_measured(
    tmp_path, publish, name, files, message
):
    program(tmp_path / "llama-bench", "[]")
    settings = BenchSettings(publish=publish, llama_bench=str(tmp_path / name))
    with pytest.raises(SettingsError, match=message):
        bench_publish.check(settings, [tmp_path / one for one in files])


def test_folders_have_one_digest_of_all_their_files(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    before = bench_publish.digest([tmp_path])
    (tmp_path / "b").write_bytes(b"3")
    assert bench_publish.digest([tmp_path]) != before


def test_the_command_prints_the_standard_rows_alone(opened, monkeypatch, capsys):
    seen = []

    def measure(settings, _):
        seen.append((settings.prefill, settings.decode, settings.batch, settings.context))
        return REPORT, []

    monkeypatch.setattr(bench, "open_model", lambda *_, **__: contextlib.nullcontext(opened))
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "measure_limits", lambda *_: Limits(1.0, 1.0))
    bench.run(BenchSettings(publish=True, prefill=7, batch=(3,)))
    assert seen == [(512, 128, (1, 8), 32)]
    assert capsys.readouterr().out.startswith("| model | CPU |")
