"""The doctor command: its report as JSON and as text."""

import json

import pytest

from lanewise import topology
from lanewise.commands import doctor, opening
from lanewise.commands.selftest import LevelResult
from lanewise.host import MemoryLimit, Throttling
from lanewise.runtime import KernelInfo, LibraryMissingError
from lanewise.runtime.tuning import NEVER, Choice, Tuning
from lanewise.settings import DoctorSettings
from lanewise.topology import Core, Topology


@pytest.fixture
def run(monkeypatch, capsys, open_fake_model):
    """Run the command where one kernel row exists; ``equal`` is the outcome of the self-test."""

    def run_doctor(equal=True, selftest=None, **settings):
        results = [LevelResult("avx2", "q4_0", equal)]
        monkeypatch.setattr(doctor, "run_selftest", selftest or (lambda threads: results))
        monkeypatch.setattr(doctor, "usable_levels", lambda: ["scalar", "avx2"])
        monkeypatch.setattr(doctor, "best_isa", lambda: "avx2")
        monkeypatch.setattr(doctor.tuning, "choices", lambda isa: [])
        monkeypatch.setattr(doctor, "cpu_features", lambda: ["avx2", "f16c"])
        monkeypatch.setattr(doctor, "numerics_version", lambda: 1)
        monkeypatch.setattr(
            doctor, "kernels", lambda: [KernelInfo("gemm_x__avx2", "avx2", "Q4G32", 2, True)]
        )
        monkeypatch.setattr(doctor, "open_model", open_fake_model)
        status = doctor.run(DoctorSettings(**settings))
        return status, capsys.readouterr().out

    return run_doctor


def test_json_says_what_the_machine_can_do(run):
    status, text = run(json=True)
    report = json.loads(text)
    assert status == 0
    assert report["features"] == ["avx2", "f16c"]
    assert report["isa"] == "avx2"
    assert report["threads"] >= 1
    assert "affinity" in report["threads_reason"]
    assert report["memory"]["limit_bytes"] <= report["memory"]["total_bytes"]
    assert report["kernels"] == [
        {
            "symbol": "gemm_x__avx2",
            "isa": "avx2",
            "weights": "Q4G32",
            "min_rows": 2,
            "available": True,
        }
    ]
    assert report["selftest"]["ok"]
    assert "model" not in report


def test_what_the_cpu_quota_costs_is_shown(run, monkeypatch):
    monkeypatch.setattr(doctor.host, "cpu_quota", lambda *_: None)
    assert "CPU quota   none\n" in run()[1]
    monkeypatch.setattr(doctor.host, "cpu_quota", lambda *_: 1.5)
    monkeypatch.setattr(doctor.host, "cpu_throttling", lambda: Throttling(100, 96, 12.34))
    assert (
        "CPU quota   1.5 CPUs; stopped 12.3 s in 96 of 100 periods since the control group was made"
        ": raise it, or lower --threads\n"
    ) in run()[1]
    assert json.loads(run(json=True)[1])["cpu_quota"]["throttled_periods"] == 96


def test_choices_between_kernels_are_shown(run, monkeypatch):
    found = [
        Choice("gemm_x__sve", "gemm_x__i8mm", 24),
        Choice("gemm_y__sve", "gemm_y__i8mm", NEVER),
    ]
    monkeypatch.setattr(
        doctor.tuning, "prepare", lambda isa, cpu, enabled: Tuning(found, f"now {enabled}")
    )
    assert json.loads(run(json=True)[1])["autotune"] == {
        "choices": [
            {"symbol": "gemm_x__sve", "rival": "gemm_x__i8mm", "min_rows": 24},
            {"symbol": "gemm_y__sve", "rival": "gemm_y__i8mm", "min_rows": NEVER},
        ],
        "source": "now True",
    }
    text = run(autotune=False)[1]
    assert "autotune    now False\n" in text
    assert "gemm_x__sve from 24 rows, else gemm_x__i8mm\n" in text
    assert "gemm_y__sve is not used, else gemm_y__i8mm\n" in text


def test_nodes_and_what_is_done_about_them(run, monkeypatch):
    cores = tuple(Core((cpu, cpu + 4), cpu // 2) for cpu in range(4))
    found = Topology(cores, {0: 3 << 30, 1: 5 << 30}, knows_cores=True)
    asked = []
    monkeypatch.setattr(topology, "read_topology", lambda *_: found)
    monkeypatch.setattr(opening, "placing_refusal", asked.append)
    text = run(threads=4, cpu_pinning="on")[1]
    assert "nodes       0: 2 cores, CPUs 0-1,4-5, 3.00 GiB free\n" in text
    assert "            1: 2 cores, CPUs 2-3,6-7, 5.00 GiB free\n" in text
    assert "placement   threads pinned to CPUs 0-3 of 8 (2 on node 0, 2 on node 1)\n" in text
    assert "            memory a copy of the weights on each of nodes 0, 1, KV cache" in text
    report = json.loads(run(json=True, threads=4, cpu_pinning="on", numa="interleave")[1])
    assert report["topology"][1] == {
        "node": 1,
        "cores": 2,
        "cpus": "2-3,6-7",
        "free_bytes": 5 << 30,
    }
    assert report["placement"]["numa"] == "interleave"
    assert report["placement"]["nodes"] == [0, 1]
    assert asked == [[0, 1], [0, 1]]
    monkeypatch.setattr(opening, "placing_refusal", lambda nodes: "numa: mbind: not permitted")
    report = json.loads(run(json=True, threads=4, cpu_pinning="on", numa="interleave")[1])
    assert report["placement"]["memory"].endswith("not possible here: numa: mbind: not permitted")


def test_level_without_choices_says_so(run):
    text = run()[1]
    assert "autotune    nothing to choose: no two kernels of this level are close\n" in text


def test_model_says_how_much_context_fits(run):
    report = json.loads(run(json=True, model="any")[1])["model"]
    assert report["name"] == "tiny"
    # Everything fits beside this model: 64 sequences of its 64 tokens.
    assert report["kv_tokens"] == 64 * 64
    assert report["kv_bytes"] == report["kv_tokens"] * 64


def test_wrong_kernel_fails_the_command(run):
    status, text = run(equal=False)
    assert status == 1
    assert "FAILED: avx2, q4_0: its logits differ from scalar's" in text


def test_text_report_names_threads_and_reason(run):
    status, text = run(threads=3, model="any")
    assert status == 0
    assert "threads     3: as asked for" in text
    assert "KV cache    4096 tokens of f16" in text
    assert "self-test   ok: same bits as scalar in avx2" in text
    assert "level       avx2 (can run: scalar, avx2)" in text


def test_machine_without_the_library_still_gets_the_rest_of_the_report(run):
    def missing(threads):
        raise LibraryMissingError("liblanewise.so is not in the package")

    status, text = run(selftest=missing)
    assert status == 1
    assert "threads     " in text
    assert "the library cannot be used: liblanewise.so is not in the package; install anew" in text
    assert json.loads(run(selftest=missing, json=True)[1])["library_error"]


def test_the_verdict_comes_first_and_the_report_fits_a_screen(run, monkeypatch):
    monkeypatch.setattr(doctor.host, "huge_pages", lambda: "transparent: madvise; reserved: 0")
    lines = run(model="any")[1].splitlines()
    assert lines[0] == "verdict     all is well"
    assert len(lines) <= 18  # with a model; fifteen without
    assert len(run()[1].splitlines()) <= 15
    assert "gemm_x__avx2" not in "".join(lines)
    assert "gemm_x__avx2" in run(kernels=True)[1]


def test_each_problem_has_its_remedy(run, monkeypatch):
    monkeypatch.setattr(doctor.host, "cpu_throttling", lambda: Throttling(100, 96, 12.34))
    monkeypatch.setattr(doctor.host, "cpu_quota", lambda *_: 1.5)
    monkeypatch.setattr(doctor.host, "huge_pages", lambda: "transparent: never; reserved: 0")
    limit = MemoryLimit(300 << 20, "a test", dedicated=True)
    monkeypatch.setattr(doctor.host, "memory_limit", lambda: limit)
    lines = run()[1].splitlines()
    assert lines[0] == "verdict     3 problems:"
    assert "raise it, or lower --threads" in lines[1]
    assert "echo madvise" in lines[2]
    assert "raise the limit to 1.00 GiB" in lines[3]
    assert len(json.loads(run(json=True)[1])["problems"]) == 3


def test_a_kernel_that_fails_is_the_first_problem(run, monkeypatch):
    monkeypatch.setattr(doctor.host, "huge_pages", lambda: "transparent: never; reserved: 0")
    assert "self-test FAILED: avx2, q4_0" in run(equal=False)[1].splitlines()[1]


def test_a_machine_of_many_nodes_and_choices_fits_a_screen_too(run, monkeypatch):
    cores = tuple(Core((cpu,), cpu) for cpu in range(8))
    found = Topology(cores, dict.fromkeys(range(8), 1 << 30), knows_cores=True)
    monkeypatch.setattr(topology, "read_topology", lambda *_: found)
    monkeypatch.setattr(doctor.host, "huge_pages", lambda: "transparent: madvise; reserved: 0")
    choices = [Choice(f"gemm_{n}__sve", f"gemm_{n}__i8mm", n) for n in range(9)]
    tuned = Tuning(choices, "measured now")
    monkeypatch.setattr(doctor.tuning, "prepare", lambda isa, cpu, enabled: tuned)
    text = run()[1]
    assert len(text.splitlines()) <= 15
    assert "8 nodes in all; --json has them" in text
    assert len(json.loads(run(json=True)[1])["autotune"]["choices"]) == 9
