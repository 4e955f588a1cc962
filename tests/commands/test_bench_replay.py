"""``bench --replay``: recordings are read or refused, and every token comes out as recorded."""

import json
from dataclasses import replace

import pytest

from family_models import family_model, write_case
from lanewise.commands import bench
from lanewise.commands.bench_replay import ANSWER_MARK, ReplayRunner, _requests, read_recordings
from lanewise.engine.engine import Engine
from lanewise.engine.guessing import prediction_head
from lanewise.engine.guessing.row_costs import RowCosts
from lanewise.runtime import Draw, Sampled, Sampling
from lanewise.settings import BenchSettings, SettingsError
from mtp_models import cyclic_tensors, write_directory
from toy_tokenizer import toy_tokenizer

LINE = "the quick brown fox jumps over the lazy dog. "


@pytest.fixture
def recording(tmp_path):
    path = tmp_path / "fox.txt"
    path.write_text(f"{LINE * 2}\n{ANSWER_MARK}\n{LINE * 3}")
    return path


def test_a_recording_is_a_prompt_and_an_answer(recording):
    [one] = read_recordings(BenchSettings(replay=(str(recording),)), toy_tokenizer())
    text = toy_tokenizer().decode(one.tokens)
    assert one.name == "fox"
    assert LINE * 2 + LINE * 3 in text
    assert toy_tokenizer().decode(one.tokens[one.n_prompt :]) == LINE * 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no mark", "has no line <<<answer>>>"),
        (f"prompt\n{ANSWER_MARK}\n", "and 0 behind it; accepted: at least 1 and 2"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, text, says):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(SettingsError, match=f"--replay: .*bad.txt .*{says}"):
        read_recordings(BenchSettings(replay=(str(path),)), toy_tokenizer())
    with pytest.raises(SettingsError, match=r"--replay: .*absent.txt: No such file"):
        read_recordings(BenchSettings(replay=(str(tmp_path / "absent.txt"),)), toy_tokenizer())


def test_several_sequences_answer_parts_of_equal_length(recording):
    [one] = read_recordings(BenchSettings(replay=(str(recording),)), toy_tokenizer())
    requests = _requests(one, 4)
    assert len({request.params.max_tokens for request in requests}) == 1
    assert len({len(request.prompt) for request in requests}) == 4
    for request in requests:
        assert len(request.prompt) + request.params.max_tokens <= len(one.tokens)


def test_draws_come_out_as_recorded():
    class Session:
        def step_and_draw(self, batch, draws):
            return [Sampled(99, 0.0) for _ in draws]

    runner = ReplayRunner(Session(), [[1, 2, 3], [4, 5, 6]])
    draws = [Draw(Sampling(choice=c), p) for c, p in [(0, 2), (1, 0), (1, 7)]]
    assert [one.token for one in runner.step_and_draw(None, draws)] == [3, 4, 6]


@pytest.mark.native
def test_the_bundled_model_replays(recording, library, capsys, monkeypatch):
    stopped = []
    stop = Engine.stop
    monkeypatch.setattr(Engine, "stop", lambda self: (stop(self), stopped.append(self.unfinished)))
    settings = BenchSettings(replay=(str(recording),), batch=(1, 3), repeat=2, threads=1, json=True)
    bench.run(settings)
    report = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["batch"]) for one in report["replays"]] == [("fox", 1), ("fox", 3)]
    for one in report["replays"]:
        assert one["tokens_per_second"] > 0 < one["without_speculation"]
        assert one["accepted_tokens"] <= one["draft_tokens"]
    assert stopped == [0, 0]


@pytest.mark.native
def test_a_model_that_keeps_a_state_replays_with_guesses(
    recording, library, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)
    path = write_case("qwen3_5", tmp_path / "model", max_position_embeddings=512)
    replays = {"replay": (str(recording),), "batch": (1, 2), "repeat": 1}
    bench.run(BenchSettings(model=str(path), threads=1, json=True, **replays))
    report = json.loads(capsys.readouterr().out)
    assert [one["batch"] for one in report["replays"]] == [1, 2]
    for one in report["replays"]:
        assert 0 < one["accepted_tokens"] <= one["draft_tokens"]


class Nothing(RowCosts):
    """Costs of a head that takes next to no time."""

    def seconds(self, rows: int) -> float:
        return 0.001


@pytest.mark.native
def test_a_head_of_the_model_guesses_what_is_recorded(library, capsys, monkeypatch, tmp_path):
    """Of a model whose head counts on: nothing else can guess a text without repeats."""
    monkeypatch.setattr(RowCosts, "are_known", True)
    monkeypatch.setattr(RowCosts, "seconds", lambda self, rows: 1.0)
    monkeypatch.setattr(prediction_head, "RowCosts", Nothing)
    alphabet = "".join(map(chr, range(33, 100)))
    path = tmp_path / "counts.txt"
    path.write_text(f"{alphabet[:20]}\n{ANSWER_MARK}\n{alphabet[20:]}")
    model = family_model("qwen3_5")
    folder = write_directory("qwen3_5", tmp_path / "model", *cyclic_tensors(model))
    settings = BenchSettings(model=str(folder), replay=(str(path),), batch=(1,), threads=1)
    counts = {}
    for draft in (None, "mtp"):
        bench.run(replace(settings, repeat=1, json=True, draft=draft))
        [one] = json.loads(capsys.readouterr().out)["replays"]
        counts[draft] = one["draft_tokens"], one["accepted_tokens"]
    assert counts[None] == (0, 0)
    assert counts["mtp"][0] == counts["mtp"][1] > 20
