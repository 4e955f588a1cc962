"""What files say reaches messages short, in one line and without control characters."""

import json
import logging
from pathlib import Path

import pytest
from model_files import FAMILIES, write_directory

from hostile_tokenizers import written
from lanewise.api.observing.logs import JsonFormatter, TextFormatter
from lanewise.cli import main
from lanewise.loading.base.checkpoint import ModelFileError, TokenizerFiles
from lanewise.text.chat_template import ChatTemplate, ChatTemplateError
from lanewise.text.tokenizer import Tokenizer
from lanewise.told import MOST, shortened, told

ODD = "a\nb\x1b[2Jc\u202ed\u2028\x85\x00\t"
LONG = [*range(100_000)]
HELLO = [{"role": "user", "content": "hi"}]
FIELDS = ("model_type", "hidden_size", "rope_theta", "architectures", "hidden_act", "rope_scaling")


def check(line: str) -> None:
    assert len(line) < 500, len(line)
    assert line.isprintable(), repr(line)


VALUES = pytest.mark.parametrize(
    "value", [LONG, ODD, ODD * 50_000, {ODD: 1}], ids=("list", "odd", "long", "key")
)


@VALUES
@pytest.mark.parametrize("field", FIELDS)
def test_values_of_a_config_stay_short_on_the_terminal(tmp_path, capsys, field, value):
    folder = write_directory(tmp_path, FAMILIES["qwen3"], shards=1)
    config = json.loads((folder / "config.json").read_text()) | {field: value}
    (folder / "config.json").write_text(json.dumps(config))
    main(["inspect", str(folder), "--check"])
    found = capsys.readouterr()
    for line in [*found.err.splitlines(), *found.out.splitlines()]:
        check(line)


@VALUES
@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "bos_token"),
        ("tokenizer_config.json", "chat_template"),
    ],
)
def test_values_of_a_tokenizer_stay_short(file, field, value):
    files = {file: {field: [value] if field == "eos_token_id" else value}}
    text = {"tokenizer.json": written({})}
    error = error_of_files(TokenizerFiles(Path("m"), 400, None, files, text))
    if error is not None:
        check(error)


def error_of_files(files: TokenizerFiles) -> str | None:
    try:
        Tokenizer.from_files(files)
    except ModelFileError as error:
        return str(error)
    return None


def test_words_of_a_template_stay_short():
    for text in (
        "{{ raise_exception(m) }}",
        "{{ m.x.y }}",
        "{% if m %}{{ " + "x" * 5000 + "|no }}",
    ):
        template = ChatTemplate({"default": text})
        with pytest.raises(ChatTemplateError) as caught:
            template.render(HELLO, m=ODD * 1000)
        check(str(caught.value))
    with pytest.raises(ChatTemplateError) as caught:
        ChatTemplate({"default": f"{{{{ raise_exception('{ODD}') }}}}"}).render(HELLO)
    check(str(caught.value))
    assert "a\\nb\\x1b[2Jc\\u202e" in str(caught.value)


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("lanewise", logging.WARNING, "", 0, message, arguments, None)


def test_lines_of_the_log_stay_short():
    for value in (ODD * 10_000, LONG):
        line = TextFormatter("%(asctime)s %(levelname)-7s %(message)s").format(
            record("%s: %r is no number", Path("m"), value)
        )
        check(line)
        assert line.endswith(" is no number")
        message = json.loads(JsonFormatter().format(record("%r is no number", value)))["message"]
        assert len(message) <= MOST


def test_beginning_and_end_are_kept():
    text = "m/config.json: hidden_size: " + "1, " * 1000 + "; accepted: 1 to 65536"
    assert told(text).startswith("m/config.json: hidden_size: 1, 1")
    assert told(text).endswith("; accepted: 1 to 65536")
    assert len(told(text)) == len(shortened(text)) == MOST
    assert told("é 東京 \U0001f600") == "é 東京 \U0001f600"
    assert told("\n" * 10_000).count("\\n") < 250
    assert told("\ud83d") == "\\ud83d"
