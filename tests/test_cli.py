"""The command line: settings reach their command, errors are one line."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import types

import pytest

from lanewise import cli
from lanewise.host import HostError
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.runtime import NativeError
from lanewise.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for name in [name for name in os.environ if name.startswith("LANEWISE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def serve(monkeypatch):
    """Stand in for the module of ``serve``; returns what its run function is to do."""

    def install(run):
        module = types.SimpleNamespace(run=run)
        monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)

    return install


def fail_with(error):
    def run(settings):
        raise error

    return run


def test_settings_reach_the_command(serve):
    seen = []
    serve(seen.append)
    assert cli.main(["serve", "some/model", "--port", "9000"]) == 0
    assert seen == [Settings(model="some/model", port=9000)]


@pytest.mark.parametrize(
    ("command", "threads"), [(["serve"], "1"), (["quantize", "--threads", "3"], "3")]
)
def test_blas_has_threads_where_it_computes(serve, monkeypatch, command, threads):
    """Fitting multiplies matrices in numpy; a server would only have threads that spin."""
    monkeypatch.setattr(os, "environ", {})
    serve(lambda settings: None)
    assert cli.main(command) == 0
    assert os.environ["OPENBLAS_NUM_THREADS"] == threads


def test_status_of_the_command_is_that_of_the_process(serve):
    serve(lambda settings: 1)
    assert cli.main(["serve"]) == 1


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (SettingsError("--port: bad"), 2, "lanewise: --port: bad\n"),
        (HostError("no memory"), 1, "lanewise: no memory\n"),
        (ModelFileError("x.gguf: broken"), 1, "lanewise: x.gguf: broken\n"),
        (NativeError("isa 'i8mm':\nnot here", 4), 1, "lanewise: isa 'i8mm': not here\n"),
        (FileNotFoundError(2, "No such file", "x"), 1, "lanewise: x: No such file\n"),
        (OSError(98, "Address already in use"), 1, "lanewise: Address already in use\n"),
        (KeyboardInterrupt(), 130, "lanewise: interrupted\n"),
    ],
)
def test_error_for_users_is_one_line(serve, capsys, error, status, line):
    serve(fail_with(error))
    assert cli.main(["serve"]) == status
    assert capsys.readouterr().err == line


def test_bug_keeps_its_traceback(serve):
    serve(fail_with(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["serve"])


def test_model_is_given_once(serve, capsys):
    serve(lambda settings: None)
    assert cli.main(["serve", "--model", "a"]) == 0
    assert cli.main(["serve", "b", "--model", "a"]) == 2
    assert "--model: 'a' beside MODEL 'b'" in capsys.readouterr().err


def test_flags_are_not_abbreviated(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["serve", "--thread", "2"])
    assert stop.value.code == 2
    assert "--thread" in capsys.readouterr().err


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_a_module_and_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"usage: lanewise {command} " in capsys.readouterr().out


def test_pull_needs_a_model(capsys):
    assert cli.main(["pull"]) == 2
    assert "MODEL: not given" in capsys.readouterr().err


def test_package_is_a_program():
    result = subprocess.run(
        [sys.executable, "-m", "lanewise", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("lanewise ")


def test_missing_model_is_one_line_and_status_1(tmp_path):
    gone = tmp_path / "gone.gguf"
    result = subprocess.run(
        [sys.executable, "-m", "lanewise", "bench", str(gone)], capture_output=True, text=True
    )
    assert result.returncode == 1
    assert "gone.gguf" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_flag_that_is_none_is_said_and_nothing_runs(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["serve", "--max-num-seqs", "3"])
    assert stop.value.code == 2
    assert "--max-num-seqs is not a setting; here it is --max-seqs" in capsys.readouterr().err


def test_a_variable_that_is_none_is_warned_of(serve, monkeypatch, capsys):
    monkeypatch.setenv("LANEWISE_MAX_SEQZ", "3")
    serve(lambda settings: None)
    assert cli.main(["serve"]) == 0
    assert "warning: LANEWISE_MAX_SEQZ is not a setting; did you" in capsys.readouterr().err


def test_overrides_are_shown_as_they_are_given(capsys):
    text = '{"classifier_from_token": ["no", "yes"]}'
    assert cli.main(["config", "--hf-overrides", text, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["hf_overrides"]
    assert shown == {"value": text, "from": "--hf-overrides"}


def test_config_says_what_is_in_force_and_why(library, monkeypatch, capsys):
    monkeypatch.setenv("LANEWISE_API_KEY", "secret,other")
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "4")
    assert cli.main(["config", "some/model", "--max-seqs", "7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["max_seqs"] == {"value": "7", "from": "--max-seqs"}
    assert found["model"] == {"value": "some/model", "from": "--model"}
    assert found["api_key"] == {"value": "2 not shown", "from": "LANEWISE_API_KEY"}
    assert found["port"] == {"value": "8000", "from": "default"}
    assert int(found["threads"]["value"].split()[0]) > 0
    assert "the best of this CPU" in found["isa"]["value"]
    assert "automatic, of" in found["kv_memory"]["value"]
    assert set(found) == {item.name for item in dataclasses.fields(Settings)}
    assert cli.main(["config"]) == 0
    shown = capsys.readouterr().out
    assert "secret" not in shown
    assert "OLLAMA_NUM_PARALLEL is another server's; here it is LANEWISE_MAX_SEQS" in shown


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("docter", "docter is not a command; did you mean doctor?"),
        ("run", "run is not a command; here it is chat"),
        ("model.gguf", "model.gguf is not a command; accepted: serve, chat, "),
    ],
)
def test_a_command_that_is_none_is_told_which_may_be_meant(word, says, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main([word, "--threads", "1"])
    assert f"lanewise: error: {says}" in capsys.readouterr().err


def helped(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        cli.main([*arguments])
    assert stop.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["help"]])
def test_alone_it_lists_its_commands_and_shows_examples(capsys, arguments):
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert name in text
        assert command.help.split()[0] in text
    assert text.count("  lanewise ") == 3


def test_help_of_a_command_is_its_own(capsys):
    assert helped(capsys, "help", "plan") == helped(capsys, "plan", "--help")
    with pytest.raises(SystemExit):
        cli.main(["help", "pul"])
    assert "did you mean pull?" in capsys.readouterr().err


def test_help_of_serve_fits_a_screen_and_the_rest_is_there(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = helped(capsys, "serve", "--help"), helped(capsys, "serve", "--help-all")
    assert len(short.splitlines()) <= 60
    assert "--help-all" in short
    for item in dataclasses.fields(Settings):
        flag = "--" + item.name.replace("_", "-")
        assert f"{flag} " in whole or item.name == "model"
    assert "--port" in short
    assert "--template-memory" not in short


def test_flags_that_the_short_help_leaves_out_work(serve):
    seen = []
    serve(seen.append)
    assert cli.main(["serve", "-p", "9000", "--template-memory", "1MiB"]) == 0
    assert (seen[0].port, seen[0].template_memory) == (9000, 1 << 20)


@pytest.mark.parametrize("name", [*cli.COMMANDS])
def test_each_command_has_an_example_that_it_takes(name):
    command = cli.COMMANDS[name]
    words = shlex.split(command.example)
    assert words
    found, others = cli.build_parser().parse_known_args([name, *words])
    assert not others
    assert found.command == name


@pytest.mark.parametrize(
    ("name", "needed"),
    [("quantize", "-o DIR"), ("pack", "-o DIR"), ("perplexity", "] --file TEXT"), ("rm", "MODEL")],
)
def test_what_must_be_given_is_in_the_usage_line(capsys, name, needed):
    assert needed in helped(capsys, name, "--help").splitlines()[0]


def test_the_version_has_a_short_flag(capsys):
    assert helped(capsys, "-V") == helped(capsys, "--version")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_flags(capsys, shell):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "--kv-memory" in script
    assert "quantize" in script


def test_completion_of_bash_is_a_script_that_bash_takes(capsys):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out + "\ncomplete -p lanewise\n"
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True)
    assert "complete" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["fish"], ["bash", "zsh"]])
def test_completion_names_the_shells_it_knows(capsys, arguments):
    assert cli.main(["completion", *arguments]) == 2
    assert "accepted: bash or zsh" in capsys.readouterr().err
