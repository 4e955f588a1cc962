"""``lanewise compare`` of models that make vectors, from real files and models."""

import json

import numpy as np
import pytest

from encoder_models import GOLDEN, encoder_model
from encoder_tokenizers import WORDS, word_piece
from family_models import family_model, model_of, write_model
from lanewise import cli
from lanewise.commands.compare_vectors import Vectored, compared, nearest_of, sentences_of
from tiny_embedder import VOCAB_SIZE
from tiny_judge import OVERRIDES, write_judge


def test_sentences_are_cut_at_their_ends() -> None:
    text = 'He said: "It is. So what?"\nA line\nthat goes on. No.\n\nA heading so\n\nHe said it. '
    wanted = ['He said: "It is.', "A line that goes on.", "A heading so", "He said it."]
    assert sentences_of(text * 2) == wanted


def test_neighbours_are_those_of_a_plain_count() -> None:
    rng = np.random.default_rng(3)
    first = rng.standard_normal((300, 8))
    first /= np.linalg.norm(first, axis=1, keepdims=True)
    other = first + 0.3 * rng.standard_normal((300, 8))
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    found = nearest_of(first)
    for place in (0, 255, 256, 299):
        cosines = [(-float(first[place] @ one), at) for at, one in enumerate(first) if at != place]
        assert found[place].tolist() == [at for _, at in sorted(cosines)[:10]]
    row = compared(Vectored("m", "m", "f32", 1, 1.0), first, other)
    assert row.cosine == pytest.approx(np.einsum("ij,ij->i", first, other).mean())
    assert row.cosine_least == pytest.approx(np.einsum("ij,ij->i", first, other).min())
    lists = list(zip(found.tolist(), nearest_of(other).tolist(), strict=True))
    assert row.nearest_ten == pytest.approx(np.mean([len({*a} & {*b}) for a, b in lists]) / 10)
    assert row.nearest == np.mean([a[0] == b[0] for a, b in lists])
    assert row.order == np.mean([a == b for a, b in lists])
    same = compared(row, first, first)
    assert (same.nearest_ten, same.nearest, same.order) == (1, 1, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An embedder whose rows divide into groups that are quantized; a text of 60 sentences."""
    folder = tmp_path_factory.mktemp("models")
    written = json.loads((GOLDEN / "encoders.json").read_text())["bert"]
    wider = {48: 64, 80: 96}
    tensors = {
        name: [wider.get(size, size) for size in shape]
        for name, shape in written["tensors"].items()
    }
    config = written["config"] | {"hidden_size": 64, "intermediate_size": 96}
    model = model_of("wider", {"config": config, "tensors": tensors})
    write_model(model, folder / "embedder")
    word_piece(size=VOCAB_SIZE).save(str(folder / "embedder" / "tokenizer.json"))
    words = np.random.default_rng(1).choice(WORDS, (60, 9))
    (folder / "text.txt").write_text(" ".join(" ".join(line) + "." for line in words))
    return folder


@pytest.mark.native
@pytest.mark.usefixtures("library")
class TestModels:
    def test_fewer_bits_are_further_away(self, folder, capsys) -> None:
        command = ["compare", str(folder / "embedder"), "--file", str(folder / "text.txt")]
        command += ["--load-as", "q8_0,q4_0", "--threads", "1"]
        assert cli.main([*command, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        rows = report["models"]
        assert report["sentences"] == 60
        assert [row["weights"] for row in rows] == ["f32", "q8_0", "q4_0"]
        assert rows[0]["cosine"] is None
        assert 1 > rows[1]["cosine"] > rows[2]["cosine"] > 0.5
        assert rows[1]["cosine"] > 0.999
        assert 1 >= rows[1]["nearest_ten"] > rows[2]["nearest_ten"] > 0.2
        assert rows[1]["order"] >= rows[2]["order"]
        assert rows[0]["bytes"] > rows[1]["bytes"] > rows[2]["bytes"]
        assert cli.main([*command, "--sentences", "12"]) == 0
        out = capsys.readouterr().out
        assert "of ten nearest" in out
        assert "12 sentences" in out

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["embedder", "--load-as", "f16"], "'f16' cannot be used; accepted: q8_0 and q4_0"),
            (
                ["embedder", "bert", "--weights", "bf16"],
                "'bf16' cannot be made from f32; accepted: f32",
            ),
            (["embedder", "--load-as", "q8_0", "--chat"], "--chat: accepted for models that write"),
            (["embedder", "bert"], "vectors of 48 dimensions; accepted: 64"),
            (["embedder", "qwen3"], "qwen3: writes text; accepted: models that make vectors"),
            (["judge", "embedder"], "judge: scores texts; accepted: models that make vectors"),
            (["qwen3", "--load-as", "q8_0"], "--load-as: accepted for models that make vectors"),
        ],
    )
    def test_what_cannot_be_compared_is_named(self, folder, arguments, said, capsys) -> None:
        write_judge(folder / "judge", **OVERRIDES)
        write_model(family_model("qwen3"), folder / "qwen3")
        bert = write_model(encoder_model("bert"), folder / "bert")
        (bert / "tokenizer.json").write_text((folder / "embedder" / "tokenizer.json").read_text())
        given = [str(folder / one) if (folder / one).is_dir() else one for one in arguments]
        text = str(folder / "text.txt")
        assert cli.main(["compare", *given, "--file", text, "--threads", "1"]) != 0
        assert said in capsys.readouterr().err
