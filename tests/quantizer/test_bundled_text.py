"""The text that comes with the quantizer: of many kinds, unlike test texts, cut where it begins."""

import json
import shutil

import pytest

import tiny_models
from data_files import data
from family_models import family_model, write_model
from lanewise import cli
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.settings import SettingsError
from lanewise.text.tokenizer import Tokenizer
from lanewise_quantizer.commands import quantize
from lanewise_quantizer.commands.bundled import bundled_windows, windows_of
from lanewise_quantizer.commands.calibrated import calibration_windows
from lanewise_quantizer.text import HELD_OUT, KINDS, documents, plain_text

pytestmark = [pytest.mark.native, pytest.mark.slow, pytest.mark.usefixtures("library")]
TEST_TEXTS = (
    "wiki.test.raw",
    "tinyshakespeare.txt",
    "tinystories_val_yuninxia.txt",
    "alice.heldout.txt",
)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    model = tiny_models.tiny_model("llama2", **SIZES)
    return tiny_models.write_hf(model, tmp_path_factory.mktemp("source") / "m")


def test_every_kind_has_documents_and_all_are_enough():
    sizes = {kind: sum(len(d.plain.encode()) for d in documents(kind)) for kind in KINDS}
    assert min(sizes.values()) > 10_000
    assert sum(sizes.values()) > 110_000  # 16,384 tokens of seven bytes
    roles = {m["role"] for d in documents("chat") for m in d.messages}
    assert roles == {"system", "user", "assistant"}
    assert all(d.messages[-1]["role"] == "assistant" for d in documents("chat"))
    assert not any("<<<" in d.plain for kind in (*KINDS, HELD_OUT) for d in documents(kind))
    assert "User: Is 221 a prime number?" in plain_text()


def pieces(text, size=48):
    joined = " ".join(text.split())
    return {joined[at : at + size] for at in range(len(joined) - size + 1)}


def test_nothing_to_judge_on_is_calibrated_on():
    held_out = "\n".join(d.plain for d in documents(HELD_OUT))
    assert not pieces(held_out) & pieces(plain_text())


@pytest.mark.parametrize("name", TEST_TEXTS)
def test_no_test_text_is_in_it(name):
    bundled = pieces(plain_text()) | pieces("\n".join(d.plain for d in documents(HELD_OUT)))
    assert not pieces(data(f"text/{name}").read_text(encoding="utf-8")) & bundled


def test_windows_begin_where_texts_do_and_go_on_with_long_ones():
    texts = [[1] * 5, [2] * 20, [3] * 2, [4] * 9]
    assert windows_of(texts, [0], 9) == [
        [0, 1, 1, 1, 1, 1, 2, 2, 2],
        [0, 2, 2, 2, 2, 2, 2, 2, 2],
        [0, 2, 2, 2, 2, 2, 2, 2, 2],  # one token is left, which begins no window
        [0, 3, 3, 4, 4, 4, 4, 4, 4],
    ]


def test_any_number_of_tokens_has_all_kinds_and_the_models_template(source):
    with open_checkpoint(source) as checkpoint:
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer)
        size = checkpoint.config.context_length
        bundled = bundled_windows(checkpoint, size, 8 * size)
        every = bundled_windows(checkpoint, size, 10**9).windows
    assert bundled.problem is None
    assert bundled.windows == every[:8]
    assert {len(window) for window in every} == {size}
    begun = [tokenizer.decode(window) for window in bundled.windows]
    assert sum(text.startswith("user: What is the capital of Portugal") for text in begun) == 1
    for kind in ("prose", "articles", "code", "data", "languages"):
        first = documents(kind)[0].text
        assert sum(text[:20] == first[:20] for text in begun) == 1
    start = tokenizer.encode("", add_bos=True, parse_special=False)
    assert all(window.count(start[0]) == 1 for window in bundled.windows if window[1] != start[0])


def with_template(source, folder, template):
    shutil.copytree(source, folder)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"chat_template": template}))
    return folder


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ raise_exception('no system messages') }}", "no system messages"),
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "not rendered within",
        ),
    ],
)
def test_a_template_that_cannot_be_used_is_told(source, tmp_path, template, problem, capsys):
    """It is a program that came with the model: it runs within bounds."""
    model = with_template(source, tmp_path / "model", template)
    with open_checkpoint(model) as checkpoint:
        assert len(calibration_windows(checkpoint, "bundled", 512))
    warning = capsys.readouterr().err
    assert "dialogues are calibrated on as plain text" in warning
    assert problem in warning


def test_the_bundled_text_calibrates(source, tmp_path):
    made = []
    for name, more in (("plain", []), ("fitted", ["--calibrate", "bundled"])):
        options = ["-o", str(tmp_path / name), "--format", "q4_0", "--calibration-tokens", "512"]
        assert cli.main(["quantize", str(source), *options, *more]) == 0
        made.append((tmp_path / name / "model.safetensors").read_bytes())
    assert made[0] != made[1]


def test_more_tokens_than_there_are_is_told(source, capsys):
    with open_checkpoint(source) as checkpoint:
        ids = calibration_windows(checkpoint, "bundled", 10**9)
    assert f"the bundled text has {ids.size} in whole windows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--format", "cb2"], "cb2: calibrating on the bundled text; --calibrate none is quicker"),
        (["--bits", "3.9"], "--bits 3.9: calibrating on the bundled text"),
        (["--format", "cb2", "--calibrate", "none"], ""),
        (["--format", "cb2", "--head", "w8a8"], ""),  # a row with one scale takes no text
        (["--format", "cb4"], ""),
    ],
)
def test_formats_of_few_bits_are_calibrated_unasked(
    source, tmp_path, monkeypatch, capsys, options, told
):
    texts = []

    def stop(_checkpoint, file, _tokens):
        texts.append(file)
        raise SettingsError("far enough")

    monkeypatch.setattr(quantize, "calibration_windows", stop)
    status = cli.main(["quantize", str(source), "-o", str(tmp_path / "out"), *options])
    assert (status != 0) == bool(told)
    assert texts == ["bundled"] * bool(told)
    assert told in capsys.readouterr().err


def test_what_cannot_be_calibrated_is_rounded_and_told(tmp_path, capsys):
    source = write_model(family_model("gemma3n"), tmp_path / "m")
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--bits", "3.99"]
    assert cli.main(command) == 0
    told = capsys.readouterr().err
    assert "warning: --bits 3.99 would be better calibrated: gemma3n" in told
