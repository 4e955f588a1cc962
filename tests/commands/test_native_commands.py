"""The commands with the real library on a small random model."""

import json
import math
import os

import pytest

import topics
from lanewise import cli
from lanewise.commands import opening
from lanewise.commands.opening import open_model
from lanewise.commands.perplexity import score_windows
from lanewise.commands.selftest import CONFIG, random_checkpoint
from lanewise.loading.base.formats import TensorType
from lanewise.runtime import Session, best_isa
from lanewise.settings import ModelSettings

pytestmark = pytest.mark.native

# Weights of CONFIG's matrices: Q and output, K and V, gate, up and down, head.
MACS_PER_TOKEN = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 512 * 256 + 512 * 256


@pytest.fixture(autouse=True)
def random_model(monkeypatch, library):
    """Every model argument leads to a Q4_0 model with random weights."""
    monkeypatch.setattr(opening, "resolve_model", lambda argument: argument)
    monkeypatch.setattr(
        opening, "open_checkpoint", lambda path, **_: random_checkpoint(TensorType.Q4_0)
    )


@pytest.mark.slow
def test_bench_reports_every_test_below_its_limit(capsys):
    arguments = "bench --prefill 64 --decode 8 --batch 1,2 --repeat 1 --threads 1 --json"
    assert cli.main(arguments.split()) == 0
    report = json.loads(capsys.readouterr().out)
    assert [result["name"] for result in report["results"]] == ["pp64", "tg8", "tg8@2"]
    assert report["weights"] == "q4_0"
    assert all(result["share_of_limit"] > 0 for result in report["results"])
    assert report["limits"]["read_gb_s"] > 0.1
    assert report["limits"]["int8_gmac_s"] > 0.1


@topics.skip_if(os.uname().machine != "x86_64", "machine", "Arm kernels ask for weights ahead")
def test_asking_for_weights_ahead_is_refused_where_no_kernel_does(capsys):
    assert cli.main(["bench", "--fetch-ahead", "4096", "--threads", "1"]) != 0
    assert "fetch_ahead 4096: must be 0 on x86" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_bench_profile_accounts_for_the_time_bytes_and_multiplications(capsys, threads):
    arguments = f"bench --prefill 64 --decode 8 --batch 1,3 --repeat 1 --threads {threads}"
    assert cli.main([*arguments.split(), "--profile", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for result, batch in zip(report["results"], (None, 1, 3), strict=True):
        rows = result["profile"]
        names = list(dict.fromkeys(row["operation"] for row in rows))
        assert names[0] == "embed"
        assert names[-3:] == ["head", "sample", "outside"]
        assert {"qkv", "attention", "attn_output", "gate_up", "down"} < set(names)
        assert sum(row["share"] for row in rows) == pytest.approx(1, rel=1e-6)
        # Only matrix products have a kernel: the one that the number of rows calls for.
        kernels = {row["operation"]: row["kernel"] for row in rows if row["kernel"]}
        assert set(kernels) == {"qkv", "attn_output", "gate_up", "down", "head"}
        if batch:
            assert all(
                k.startswith(("gemv", "matmul") if batch == 1 else ("gemm", "matmul"))
                for k in kernels.values()
            )
            step = 1e-3 * sum(row["gmac_s"] * row["ms"] for row in rows if row["kernel"])
            assert step * 1e9 == pytest.approx(batch * MACS_PER_TOKEN, rel=1e-6)


@pytest.mark.slow
def test_doctor_passes_its_self_test(capsys):
    assert cli.main(["doctor", "--json", "--model", "random"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["selftest"]["ok"]
    assert report["isa"] == (os.environ.get("LANEWISE_ISA") or best_isa())
    assert report["model"]["packed_bytes"] > 100_000


@pytest.mark.slow
def test_a_cache_of_int8_takes_half_the_memory_for_as_many_tokens(capsys):
    tokens = {}
    for dtype in ("f16", "int8"):
        assert cli.main(["doctor", "--json", "--model", "random", "--kv-cache-dtype", dtype]) == 0
        tokens[dtype] = json.loads(capsys.readouterr().out)["model"]
        assert tokens[dtype]["kv_type"] == dtype
    # All the tokens that 64 sequences can use fit either way; they take half the memory.
    assert tokens["int8"]["kv_tokens"] == tokens["f16"]["kv_tokens"]
    assert tokens["int8"]["kv_bytes"] < 0.54 * tokens["f16"]["kv_bytes"]


@pytest.mark.slow
def test_random_model_is_as_good_as_guessing_whatever_the_chunks_and_batches():
    windows = [[(17 * w + 7 * i) % CONFIG.vocab_size for i in range(50)] for w in range(2)]
    windows.append(windows[0][:20])
    with open_model(ModelSettings()) as opened:
        scores = set()
        for threads, chunk, batch in [(1, 50, 1), (2, 50, 4), (1, 7, 2)]:
            with Session(
                opened.model,
                threads=threads,
                blocks=2 * batch,
                max_batch_tokens=chunk * batch,
                max_batch_logits=chunk * batch,
            ) as session:
                scores.add(score_windows(session, windows, chunk=chunk, batch=batch))
    (score,) = scores
    assert score.tokens == 2 * 49 + 19
    assert score.nll == pytest.approx(math.log(CONFIG.vocab_size), rel=0.25)
