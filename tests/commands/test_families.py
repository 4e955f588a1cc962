"""The families command: what it says is what the table reads."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from lanewise import cli
from lanewise.loading.families.table import FAMILIES, REASONS
from lanewise.loading.towers.table import TOWERS

GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_family_has_a_row_of_its_own(capsys):
    assert cli.main(["families", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["model_type"] for row in said["families"]] == [one.name for one in FAMILIES]
    abouts = [row["about"] for row in said["families"]]
    assert len({*abouts}) == len(FAMILIES)
    assert all(about.endswith(".") for about in abouts)
    assert said["refused"].keys() == REASONS.keys()


def test_every_family_that_is_listed_is_compared_with_transformers():
    compared = {
        case["config"]["model_type"]
        for name in ("families/families.json", "encoders/encoders.json")
        for case in json.loads((GOLDEN / name).read_text()).values()
    }
    assert {family.name for family in FAMILIES} <= compared


def test_every_tower_has_a_row_and_is_compared_with_transformers(capsys):
    assert cli.main(["families", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["towers"]
    assert [row["architecture"] for row in rows] == [tower.projector for tower in TOWERS]
    compared = json.loads((GOLDEN / "towers" / "towers.json").read_text())
    types = {case["config"]["model_type"] for case in compared.values()}
    assert all(types & {*tower.names} for tower in TOWERS)


def test_the_table_is_for_people(capsys):
    assert cli.main(["families"]) == 0
    out = capsys.readouterr().out
    assert "qwen3_moe" in out
    assert "gpt-oss" in out
    assert "qwen3vl_merger" in out
    assert "Refused, because" in out


def test_a_model_is_refused(capsys):
    assert cli.main(["families", "a.gguf"]) == 2
    assert "MODEL: 'a.gguf' given" in capsys.readouterr().err


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_is_one_file(family):
    module = import_module(family.program.__module__)
    assert module.FAMILY is family
