"""The table of calibrated beside uncalibrated models, through the commands it runs."""

import pytest

import tiny_models
from loadtests.calibration import Loss, Row, main

pytestmark = pytest.mark.native


@pytest.mark.thorough
def test_a_table_has_a_row_for_each_format_and_a_column_for_each_text(tmp_path, capsys):
    model = tiny_models.write_hf(tiny_models.tiny_model("llama2"), tmp_path / "tiny")
    text = tiny_models.write_text(tmp_path / "text.txt")
    sizes = ["--tokens", "256", "--judge-tokens", "128"]
    main(
        [
            str(model),
            "--formats",
            "q4_0,cb3",
            "--calibrate",
            str(text),
            "--judge",
            str(text),
            *sizes,
        ]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| model | format | bits | judged on | uncalibrated | text | "
    rows = [line.split(" | ") for line in lines[2:4]]
    assert [row[:2] + row[3:4] for row in rows] == [
        ["| tiny", "q4_0", "text"],
        ["| tiny", "cb3", "text"],
    ]
    uncalibrated = [float(row[4]) for row in rows]
    assert 0 < uncalibrated[0] < uncalibrated[1]
    assert lines[-1].startswith("2 cells, ")


def test_a_calibrated_model_is_worse_only_beyond_the_error_of_the_measurement():
    without = Loss(0.1, 0.01)
    row = Row("m", "q4_0", "wiki", 4.5, without, {"a": Loss(0.13, 0.01), "b": Loss(0.15, 0.01)})
    assert row.worse() == ["b"]
    assert row.markdown() == "| m | q4_0 | 4.50 | wiki | 0.1000 | 0.1300 | 0.1500 worse | "
