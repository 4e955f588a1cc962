"""The benchmark command: shares of the limits, shape of the report, order of the steps."""

import json

import pytest

from lanewise.commands import bench
from lanewise.commands.bench_profile import Profile, report_rows
from lanewise.commands.bench_timing import Timed, waited_seconds
from lanewise.runtime import Limits, ModelInfo, OperationTime
from lanewise.settings import BenchSettings, SettingsError

LIMITS = Limits(read_gb_s=40.0, int8_gmac_s=500.0)
INFO = ModelInfo(
    isa="avx2",
    packed_bytes=800_000_000,
    matrix_bytes=770_000_000,
    matrix_weights=1_236_000_000,
    layer_weights=973_000_000,
    held_weights=1_236_000_000,
    expert_bytes=0,
    numerics=1,
)


@pytest.fixture
def run(monkeypatch, capsys, session_class, open_fake_model):
    """Run the command on the fake model; each measurement of the limits is better by 1."""
    measured = []

    def measure(threads, isa):
        measured.append(threads)
        return Limits(read_gb_s=1.0 + len(measured), int8_gmac_s=5.0)

    monkeypatch.setattr(bench, "Session", session_class)
    monkeypatch.setattr(bench, "open_model", open_fake_model)
    monkeypatch.setattr(bench, "measure_limits", measure)

    def run_bench(**settings):
        bench.run(BenchSettings(**settings))
        return capsys.readouterr().out

    return run_bench


def test_prefill_share_is_multiplications_over_the_integer_peak():
    work = bench.prefill_work(INFO)
    assert bench.share_of_limit(work, 250.0, LIMITS) == pytest.approx(250 * 0.973e9 / 500e9)


def test_decode_share_is_bytes_over_the_bandwidth():
    work = bench.decode_work(INFO, kv_token_bytes=32_768.0, context=100.0, batch=1)
    expected = 30 * (0.77e9 + 3_276_800) / 40e9
    assert bench.share_of_limit(work, 30.0, LIMITS) == pytest.approx(expected)


def test_states_of_each_sequence_are_read_and_written():
    work = bench.decode_work(INFO, 0.0, 0.0, batch=2, moved_state_bytes=1e8)
    plain = bench.decode_work(INFO, 0.0, 0.0, batch=2)
    assert (work.n_bytes, work.macs) == (plain.n_bytes + 1e8, plain.macs)


def test_batched_decode_share_is_the_larger_of_both():
    few = bench.decode_work(INFO, kv_token_bytes=0.0, context=0.0, batch=2)
    assert bench.share_of_limit(few, 60.0, LIMITS) == pytest.approx(60 * 0.385e9 / 40e9)
    many = bench.decode_work(INFO, kv_token_bytes=0.0, context=0.0, batch=16)
    assert bench.share_of_limit(many, 300.0, LIMITS) == pytest.approx(300 * 1.236e9 / 500e9)


def test_json_has_the_promised_shape(run):
    report = json.loads(run(prefill=8, decode=4, batch=(1, 3), threads=2, context=5, json=True))
    assert {"model", "weights", "isa", "threads", "limits", "results", "busy"} <= set(report)
    assert (report["size_bytes"], report["parameters"]) == (900, 2000)
    assert (report["model"], report["weights"]) == ("tiny", "q4_0")
    assert (report["isa"], report["threads"]) == ("avx2", 2)
    assert report["limits"] == {"read_gb_s": 3.0, "int8_gmac_s": 5.0}
    assert [set(result) for result in report["results"]] == [
        {"name", "tokens_per_second", "spread", "share_of_limit", "profile"}
    ] * 3
    assert [result["profile"] for result in report["results"]] == [None] * 3
    assert [result["name"] for result in report["results"]] == ["pp8", "tg4", "tg4@3"]
    assert all(result["tokens_per_second"] > 0 for result in report["results"])


def test_zero_leaves_a_test_out(run):
    assert [
        r["name"] for r in json.loads(run(prefill=0, decode=2, batch=(1,), json=True))["results"]
    ] == ["tg2"]
    assert [r["name"] for r in json.loads(run(prefill=2, decode=0, json=True))["results"]] == [
        "pp2"
    ]


def test_table_names_every_test(run):
    text = run(prefill=8, decode=4, batch=(1,))
    assert "pp8" in text
    assert "tg4" in text
    assert "int8 5 GMAC/s" in text


def test_the_table_has_what_llama_bench_has(run, monkeypatch):
    times = iter([9.0, 4.0, 2.0])  # of which the first warms up
    monkeypatch.setattr(bench, "_time_prefill", lambda *_: Timed(next(times, 2.0), 0.0))
    text = run(prefill=8, decode=0, repeat=2)
    # 8 tokens in 4 and 2 seconds: the median of the times, and the deviation of the speeds.
    assert "2.7 ± 1.4" in text
    assert "900" in text
    assert "0.0 M" in text
    assert "medians of 2, ± their standard deviation" in " ".join(text.split())
    assert "others used this machine: repeats of pp8 differ by 53%" in " ".join(text.split())


@pytest.mark.parametrize(("waited", "said"), [(0.0, None), (0.5, "25% of the time of tg4")])
def test_waiting_for_a_processor_says_that_others_were_there(run, monkeypatch, waited, said):
    monkeypatch.setattr(bench, "_time_decode", lambda *_, **__: Timed(1.0, waited))
    busy = json.loads(run(prefill=0, decode=4, batch=(1,), threads=2, json=True))["busy"]
    assert busy is None if said is None else said in busy


def test_time_that_threads_wait_is_read_of_all(tmp_path):
    for task, text in (("1", "5 2000000000 7"), ("2", "1 500000000 1"), ("3", "nonsense")):
        (tmp_path / task).mkdir()
        (tmp_path / task / "schedstat").write_text(text)
    assert waited_seconds(tmp_path) == 2.5
    assert waited_seconds(tmp_path / "nowhere") == 0


def test_decode_steps_run_all_sequences_together_at_growing_contexts(run, session_class):
    run(prefill=0, decode=3, batch=(2,), context=5, repeat=1)
    (session,) = session_class.opened
    decodes = [batch for batch in session.batches if len(batch.token_ids) == 2]
    assert [batch.context_lens for batch in decodes] == [[5, 5], [6, 6], [7, 7]] * 2
    prompts = [batch.token_ids for batch in session.batches if len(batch.token_ids) == 5]
    assert all(len(set(prompt)) == 5 for prompt in prompts)
    assert prompts[0] != prompts[1]


def test_greedy_tokens_are_fed_back(run, session_class, reference_logits):
    run(prefill=0, decode=2, batch=(1,), context=3, repeat=1)
    prompt, first, second = session_class.opened[0].batches[:3]
    sequence = list(prompt.token_ids)
    for step in (first, second):
        assert step.token_ids == [int(reference_logits(sequence).argmax())]
        sequence += step.token_ids


def test_profile_covers_the_decode_steps_alone(run, session_class):
    run(prefill=0, decode=3, batch=(2,), context=5, repeat=1, profile=True)
    (session,) = session_class.opened
    assert [batch.context_lens for batch in session.profiled] == [[5, 5], [6, 6], [7, 7]]


def test_profile_rates_are_of_working_time_and_shares_of_wall_time():
    profile = Profile(threads=2, seconds=4.0, steps=10)
    profile.operations = [
        OperationTime("qkv", "gemv_q4g32_q8g32_1x32__avx2", 4.0, 1.0, 20 * 10**9, 500 * 10**9),
        OperationTime("head", "gemv_f16_f32_1x32__avx2", 1.0, 0.0, 10**9, 10**9),
        OperationTime("attention", "", 1.0, 0.0, 10**9, 999 * 10**9),
    ]
    qkv, head, attention, outside = report_rows(profile, LIMITS)
    assert (qkv.ms, qkv.wait_ms, qkv.share) == (200.0, 50.0, 0.625)
    assert (qkv.gb_s, qkv.gmac_s, qkv.share_of_limit) == (10.0, 250.0, 0.5)
    # Arithmetic in f32 is no part of the int8 limit.
    assert head.share_of_limit == attention.share_of_limit == 2.0 / 40
    assert (outside.operation, outside.ms, outside.share) == ("outside", 50.0, 0.125)


def test_profile_table_shows_symbols_of_kernels_in_full(run):
    text = run(prefill=8, decode=0, profile=True)
    assert "pp8, profiled" in text
    assert "gemv_q4g32_q8g32_1x32__avx2" in text
    assert "outside" in text


def test_long_prompts_run_in_steps(monkeypatch, session_class):
    monkeypatch.setattr(bench, "MAX_STEP_TOKENS", 16)
    session = session_class(blocks=2, max_batch_tokens=16, max_batch_logits=1)
    bench.Bench(session, 1, 40, 40).prefill(0, 40)
    assert [len(batch.token_ids) for batch in session.batches] == [16, 16, 8]
    assert [len(batch.logit_rows) for batch in session.batches] == [0, 0, 1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prefill": 65}, "--prefill: 65; accepted: the model's 64 at most"),
        (
            {"prefill": 1, "decode": 60, "context": 5},
            "--decode: 60 after --context 5; accepted: .* 64",
        ),
    ],
)
def test_more_tokens_than_the_model_takes_are_refused(run, settings, message):
    with pytest.raises(SettingsError, match=message):
        run(**settings)
