"""Settings from flags, environment variables and the YAML file."""

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

from lanewise.settings import (
    EVERY_SETTINGS,
    BenchSettings,
    ChatSettings,
    PullSettings,
    Settings,
    SettingsError,
    add_arguments,
    flag_of,
    grouped,
    hints,
    parse_size,
    resolve,
    resolve_with_sources,
    unknown_flags,
    unknown_variables,
    variable_of,
    variables_of_others,
)
from lanewise.settings.groups import GROUPS, ORDER


def parse(arguments, settings=Settings, environ=None):
    parser = argparse.ArgumentParser()
    add_arguments(parser, settings)
    flags = vars(parser.parse_args(arguments))
    config = flags.pop("config")
    return resolve(settings, flags, environ or {}, config)


@pytest.fixture
def config(tmp_path):
    def write(text):
        path = tmp_path / "server.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_defaults_need_no_source():
    assert parse([]) == Settings()
    assert (Settings().host, Settings().port, Settings().kv_cache_dtype) == (
        "127.0.0.1",
        8000,
        "auto",
    )


def test_flag_wins_over_variable_over_file_over_default(config):
    path = config("port: 1\nhost: from-file\nmax_seqs: 3\n")
    environ = {"LANEWISE_PORT": "2", "LANEWISE_HOST": "from-env"}
    settings = parse(["--config", path, "--port", "4"], environ=environ)
    assert (settings.port, settings.host, settings.max_seqs) == (4, "from-env", 3)
    assert settings.max_step_tokens == 512


def test_file_can_be_named_by_a_variable(config):
    assert parse([], environ={"LANEWISE_CONFIG": config("port: 9\n")}).port == 9


@pytest.mark.parametrize("settings", EVERY_SETTINGS)
def test_every_setting_is_flag_variable_and_key_at_once(settings, config):
    samples = {
        "SIZE": "7MiB",
        "N": "5",
        "NUMBER": "1.5",
        "SECONDS": "5",
        "MS": "5",
        "DAY": "2026-11-29",
        "DAYS": "5",
        "SHARE": "0.5",
        "H-H,…": "22-6",
        "N,…": "5,6",
        "TEXT": "x",
        "TEXT,…": "a,b",
        "URL,…": "http://a/b,https://c",
        "NAME=PATH,…": "a=b,c=/d/e=f",
        "NAME,…": "q4_0",
        "TYPE,…": "int8,q4",
        "NAME or PART=NAME,…": "head=q4_0",
        "JSON": '{"classifier_from_token": ["no", "yes"]}',
    }
    for item in dataclasses.fields(settings):
        kind = item.metadata["kind"]
        other = "on" if item.default is False else kind.accepts.split(" | ")[-1]
        text = "true" if kind.is_switch else samples.get(kind.metavar, other)
        flags = [flag_of(item.name)] + ([] if kind.is_switch else [text])
        values = [
            getattr(parse(flags, settings), item.name),
            getattr(parse([], settings, {variable_of(item.name): text}), item.name),
            getattr(parse(["--config", config(f"{item.name}: {text}\n")], settings), item.name),
        ]
        assert values[0] == values[1] == values[2] != item.default


@pytest.mark.parametrize("text", ["[1]", '{"hidden_size": 7}', "{", "yes"])
def test_overrides_are_keys_that_are_known(text):
    with pytest.raises(SettingsError, match=r"accepted: a JSON object with some of architectures"):
        parse(["--hf-overrides", text])


@pytest.mark.parametrize(
    "text", ["tools.example", "file:///a", "http://", "http://a/ b", "http://a;b", "https://a'b"]
)
def test_web_addresses_are_whole_and_plain(text):
    with pytest.raises(SettingsError, match=r"accepted: one or more of http://… or https://…"):
        parse(["--mcp-servers", text])


def test_lists_come_from_commas_repeated_flags_and_yaml_lists(config):
    expected = ("a", "b", "c")
    assert parse(["--api-key", "a,b", "--api-key", "c"]).api_key == expected
    assert parse([], environ={"LANEWISE_API_KEY": "a, b,c"}).api_key == expected
    assert parse(["--config", config("api_key: [a, b, c]\n")]).api_key == expected
    assert parse(["--batch", "1,8"], BenchSettings).batch == (1, 8)
    names = config("served-model-name:\n- a\n- org/b\n")
    assert parse(["--config", names]).served_model_name == ("a", "org/b")
    assert parse(["--config", names], ChatSettings).served_model_name == ("a", "org/b")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("512 MB", 512 * 10**6), ("1.5KiB", 1536), ("100", 100), ("2Mi", 2 << 20)],
)
def test_sizes_have_units(text, size):
    assert parse_size(text) == size
    assert parse(["--kv-memory", text]).kv_memory == size


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        (["--port", "abc"], {}, r"--port: 'abc' cannot be used; accepted: .* from 0 to 65535"),
        (["--port", "65536"], {}, "--port: '65536' cannot be used"),
        ([], {"LANEWISE_THREADS": "0"}, "LANEWISE_THREADS: '0' cannot be used; .* from 1 to 1024"),
        (
            [],
            {"LANEWISE_KV_CACHE_DTYPE": "int3"},
            r"LANEWISE_KV_CACHE_DTYPE: 'int3' .* accepted: auto | f16 | f32 | int8",
        ),
        (["--kv-memory", "4G"], {}, "--kv-memory: '4G' cannot be used; accepted: bytes .* GiB"),
        (["--kv-memory", "0"], {}, "--kv-memory: '0' cannot be used"),
        (["--drain-timeout-s", "inf"], {}, "--drain-timeout-s: 'inf' cannot be used"),
        (["--host", " "], {}, "--host: ' ' cannot be used; accepted: text that is not empty"),
    ],
)
def test_errors_name_source_value_and_what_is_accepted(arguments, environ, message):
    with pytest.raises(SettingsError, match=message):
        parse(arguments, environ=environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 80\n", "server.yaml: 'prot' is not a setting; did you mean 'port'"),
        ("zzzzzz: 80\n", "server.yaml: 'zzzzzz' is not a setting; accepted: admin_api_key, "),
        ("port: many\n", "server.yaml: port: 'many' cannot be used"),
        ("port: [1, 2]\n", r"server.yaml: port: \['1', '2'\] is a list"),
        ("port: {a: 1}\n", "server.yaml: port: a mapping"),
        ("- port\n", "server.yaml: a list; accepted: lines of 'key: value'"),
        ("a: b: c\n", "server.yaml: line 1 is not YAML"),
    ],
)
def test_errors_of_the_file_name_file_and_key(config, text, message):
    with pytest.raises(SettingsError, match=message):
        parse(["--config", config(text)])


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"--config: .*gone\.yaml: No such file"):
        parse(["--config", str(tmp_path / "gone.yaml")])
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SettingsError, match=r"binary\.yaml: not UTF-8 text"):
        parse(["--config", str(tmp_path / "binary.yaml")])


def test_one_file_may_serve_several_commands(config):
    path = config("max_seqs: 3\nprefill: 64\nthreads: 2\nweights:\n")
    assert parse(["--config", path]).threads == 2
    assert parse(["--config", path], BenchSettings).prefill == 64


def test_keys_may_be_written_like_flags(config):
    assert parse(["--config", config("max-seqs: 3\n")]).max_seqs == 3


def test_service_links_of_kubernetes_are_no_port():
    environ = {"LANEWISE_PORT": "tcp://10.0.0.1:8000", "LANEWISE_SERVICE_HOST": "10.0.0.1"}
    assert parse([], environ=environ).port == 8000


def test_empty_variable_counts_as_not_set():
    assert parse([], environ={"LANEWISE_KV_MEMORY": ""}).kv_memory is None


def test_settings_that_the_document_on_security_names_exist():
    text = (Path(__file__).parent.parent / "SECURITY.md").read_text()
    named = set(re.findall(r"`((?:\w+_)+\w+)`", text)) - {"cached_tokens", "keep_alive"}
    known = {item.name for item in dataclasses.fields(Settings)}
    assert {name for name in named if not name.startswith("LANEWISE_")} <= known


def test_keys_are_never_shown():
    with pytest.raises(SettingsError) as caught:
        parse([], environ={"LANEWISE_API_KEY": "secret,,other"})
    assert "secret" not in str(caught.value)
    assert "LANEWISE_API_KEY: what was given cannot be used" in str(caught.value)


@pytest.mark.parametrize("text", ["q4_0", "head=q4_0", "HEAD=q8_0,attention=Q4_0"])
def test_weights_are_a_type_or_types_of_parts(text):
    assert resolve(Settings, {"weights": text}, {}, None).weights == text.lower()


@pytest.mark.parametrize("text", ["q9", "head", "head=f16", "tail=q4_0", "head=q4_0,head=q8_0", ""])
def test_other_weights_are_refused(text):
    with pytest.raises(SettingsError, match=r"accepted: .*PART=NAME"):
        resolve(Settings, {"weights": text}, {}, None)


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ("--max-num-seqs", "here it is --max-seqs"),
        ("--ctx-size=4096", "--ctx-size is not a setting; here it is --max-model-len"),
        ("-ngl", "nothing to set: all layers run on the CPU"),
        ("--temp", "requests say it, each for itself"),
        ("--max-seq", "did you mean --max-seqs?"),
        ("--zzzzzz", "--zzzzzz is not a setting"),
        ("more", "unrecognized arguments: more; write a list with commas"),
    ],
)
def test_a_flag_that_is_none_is_told_what_it_may_have_meant(argument, says):
    assert unknown_flags(Settings, [argument]).endswith(says)


def test_a_flag_of_another_command_is_not_suggested():
    assert "max_seqs" not in unknown_flags(PullSettings, ["--max-num-seqs"])


def test_variables_that_set_nothing_are_told_of():
    environ = {
        "LANEWISE_MAX_SEQZ": "3",
        "LANEWISE_NUM_PARALLEL": "3",
        "LANEWISE_ZZZZZZ": "3",
        # these are nobody's mistake
        "LANEWISE_MAX_SEQS": "3",
        "LANEWISE_PREFILL": "3",
        "LANEWISE_CONFIG": "x.yaml",
        "LANEWISE_ZZZ": "",
        "LANEWISE_PORT": "tcp://10.0.0.1:8000",
        "LANEWISE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "LANEWISE_SERVICE_HOST": "10.0.0.1",
        "LANEWISE_METRICS_SERVICE_PORT_HTTP": "8000",
        "LANEWISE_REQUIRE": "native",
        "LANEWISE_THOROUGH": "1",
        "OTHER": "1",
    }
    assert list(unknown_variables(environ)) == [
        "LANEWISE_MAX_SEQZ is not a setting; did you mean LANEWISE_MAX_SEQS?",
        "LANEWISE_NUM_PARALLEL is not a setting; here it is LANEWISE_MAX_SEQS",
        "LANEWISE_ZZZZZZ is not a setting",
    ]


def test_variables_of_other_servers_have_counterparts():
    environ = {"OLLAMA_NUM_PARALLEL": "4", "LLAMA_ARG_CTX_SIZE": "1", "VLLM_API_KEY": "k"}
    environ["VLLM_USE_V1"] = "1"
    assert list(variables_of_others(environ)) == [
        "LLAMA_ARG_CTX_SIZE is another server's; here it is LANEWISE_MAX_MODEL_LEN",
        "OLLAMA_NUM_PARALLEL is another server's; here it is LANEWISE_MAX_SEQS",
        "VLLM_API_KEY is another server's; here it is LANEWISE_API_KEY",
    ]


def test_hints_name_settings_that_there_are():
    names = {item.name for item in dataclasses.fields(Settings)}
    assert set(hints.RENAMED.values()) <= names
    assert not set(hints.RENAMED) & names
    assert not set(hints.NOTHING_TO_SET) & {*names, *hints.RENAMED}


def test_every_setting_is_in_one_group():
    items = dataclasses.fields(Settings)
    shown = [item.name for group, members in grouped(items) for item in members]
    assert sorted(shown) == sorted(item.name for item in items)
    assert sum(map(len, GROUPS.values())) == len(ORDER)


def test_each_value_has_a_source(config):
    path = config("max_seqs: 3\nport: 80\nhost: '::1'\n")
    environ = {"LANEWISE_PORT": "81", "LANEWISE_HOST": "::2", "LANEWISE_CONFIG": path}
    settings, sources = resolve_with_sources(Settings, {"host": "::3"}, environ)
    assert (settings.max_seqs, settings.port, settings.host) == (3, 81, "::3")
    assert sources == {
        "max_seqs": f"{path}: max_seqs",
        "port": "LANEWISE_PORT",
        "host": "--host",
    }
