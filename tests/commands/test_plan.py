"""Plans by the command: of the bundled model, here, elsewhere and from a report of another host."""

import json
import re

import jsonschema
import pytest

from lanewise import cli
from lanewise.commands import bench, plan_report
from lanewise.runtime import Limits
from mtp_models import write_directory

pytestmark = pytest.mark.native

NUMBER, COUNT = {"type": "number", "minimum": 0}, {"type": "integer", "minimum": 1}
TEXT, MAYBE_TEXT = {"type": "string"}, {"type": ["string", "null"]}
LIMIT = {"enum": ["bandwidth", "arithmetic", "overhead", "memory"]}


def closed(**fields):
    return {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }


PRICE = closed(usd_hour=NUMBER, region=MAYBE_TEXT, as_of=MAYBE_TEXT, source=MAYBE_TEXT)
SCHEMA = closed(
    model=closed(name=TEXT, weights=TEXT, kv_type=TEXT, token_bytes=NUMBER, kv_token_bytes=NUMBER),
    engine={"enum": ["lanewise", "llama.cpp"]},
    machine=closed(
        name=TEXT,
        isa=TEXT,
        threads=COUNT,
        read_gb_s=NUMBER,
        measured={"type": "boolean"},
        instance={"type": ["object", "null"]},
        price={"anyOf": [PRICE, {"type": "null"}]},
    ),
    prompt_tokens=COUNT,
    answer_tokens=COUNT,
    context=COUNT,
    memory=closed(
        limit_bytes=COUNT,
        limit_reason=TEXT,
        weight_bytes=COUNT,
        tower_bytes={"type": "integer", "minimum": 0},
        kv_bytes=COUNT,
        kv_tokens=COUNT,
        kv_reason=TEXT,
        state_bytes={"type": "integer", "minimum": 0},
        snapshots={"type": "integer", "minimum": 0},
        max_seqs=COUNT,
    ),
    alone=closed(
        prompt_tokens_s=NUMBER, prompt_limit=LIMIT, decode_tokens_s=NUMBER, decode_limit=LIMIT
    ),
    most_users=COUNT,
    busy=MAYBE_TEXT,
    users={
        "type": "array",
        "items": closed(
            clients=COUNT,
            first_token_s=NUMBER,
            first_token_p95_s=NUMBER,
            between_tokens_s=NUMBER,
            tokens_s=NUMBER,
            requests_s=NUMBER,
            limit=LIMIT,
            shares=closed(bandwidth=NUMBER, arithmetic=NUMBER, overhead=NUMBER),
            preempted={"type": "integer", "minimum": 0},
            kv_needed_bytes=COUNT,
            fits={"type": "boolean"},
            usd_per_million_tokens={"type": ["number", "null"]},
        ),
    },
)


@pytest.fixture
def plan(capsys, library):
    def run(arguments):
        assert cli.main(["plan", *arguments.split()]) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def plan_json(plan):
    def run(arguments):
        report = json.loads(plan(arguments + " --json"))
        jsonschema.validate(report, SCHEMA)
        return report

    return run


def test_an_instance(plan_json):
    report = plan_json("--instance c7g.4xlarge --users 1,4 --prompt-tokens 100 --answer-tokens 20")
    assert report["machine"]["threads"] == 16
    assert not report["machine"]["measured"]
    assert [row["clients"] for row in report["users"]] == [1, 4]
    one, four = report["users"]
    assert one["tokens_s"] < four["tokens_s"] < 4 * one["tokens_s"]
    cost = report["machine"]["price"]["usd_hour"] / 3600 / one["tokens_s"] * 1e6
    assert one["usd_per_million_tokens"] == pytest.approx(cost)


def test_a_head_of_the_model_takes_memory(plan_json, tmp_path):
    path = write_directory("qwen3_5", tmp_path)
    asked = f"{path} --instance c7g.4xlarge --users 1 --prompt-tokens 20 --answer-tokens 10"
    plain, both = plan_json(asked), plan_json(asked + " --draft mtp")
    assert both["memory"]["weight_bytes"] > plain["memory"]["weight_bytes"]
    # One of four layers has attention, and the head too.
    assert both["model"]["kv_token_bytes"] == 2 * plain["model"]["kv_token_bytes"]


def test_what_is_known_better_than_the_table_is_used(plan_json):
    report = plan_json(
        "--instance c8g.16xlarge --threads 4 --bandwidth 50 --memory 1GiB --price 3 --users 1"
    )
    machine = report["machine"]
    assert (machine["threads"], machine["read_gb_s"]) == (4, 50.0)
    assert machine["price"]["usd_hour"] == 3.0
    assert report["memory"]["limit_bytes"] == 1 << 30


def test_a_price_that_nobody_knows_is_left_out(plan_json, plan):
    report = plan_json("--instance c4a-standard-8 --users 1")
    assert report["machine"]["price"] is None
    assert report["users"][0]["usd_per_million_tokens"] is None
    assert "not known; --price" in plan("--instance c4a-standard-8 --users 1")


def test_llama_cpp_is_slower_on_paper(plan_json):
    ours, other = (
        plan_json(f"--instance c6g.4xlarge --users 4 --engine {engine}")["users"][0]
        for engine in ("lanewise", "llama.cpp")
    )
    assert ours["tokens_s"] > other["tokens_s"]


def test_conversations_that_do_not_fit_make_memory_the_limit(plan_json, plan):
    arguments = "--instance c7g.large --memory 546MiB --users 1,32 --context 512"
    one, many = plan_json(arguments)["users"]
    assert (one["fits"], many["fits"]) == (True, False)
    assert many["limit"] == "memory"
    size = f"{-(-many['kv_needed_bytes'] // 2**20)}MiB"
    advice = f"32 users: conversations give way to others; `lanewise serve --kv-memory {size}`"
    assert advice in plan(arguments)


def test_users_that_are_too_many_are_told_so(plan):
    arguments = "--instance c8g.48xlarge --prompt-tokens 8 --answer-tokens 2 --users"
    assert "status 429" not in plan(f"{arguments} 320")
    assert "321 users: with more than 320 at a time some get status 429" in plan(f"{arguments} 321")


def test_the_table_says_what_binds_and_what_was_estimated(plan):
    text = plan("--instance Standard_D8ps_v6 --users 2")
    assert "Standard_D8ps_v6, sve, 8 threads" in text
    assert "eastus on 2026-06-18" in text
    assert "estimated, not published: clock_ghz, socket_gb_s, core_gb_s" in text
    assert re.search(r" (bandwidth|arithmetic|overhead) \d+%", text)


def test_machines_are_listed(plan):
    assert "c8g.48xlarge" in plan("--instances")
    rows = json.loads(plan("--instances --json"))
    assert {"name", "core", "isa", "cores", "memory_bytes", "price", "source"} <= set(rows[0])


@pytest.mark.slow
def test_this_machine_is_measured(plan_json, monkeypatch):
    limits = Limits(read_gb_s=20.0, int8_gmac_s=100.0)  # to measure these takes seconds
    monkeypatch.setattr(bench, "measure_limits", lambda threads, isa: limits)
    report = plan_json("--users 1,2 --prompt-tokens 64 --answer-tokens 16 --threads 1")
    assert report["machine"]["measured"]
    assert report["machine"]["threads"] == 1
    assert all(row["tokens_s"] > 1 for row in report["users"])


BENCH = {
    "model": "lanewise-demo-q8_0",
    "weights": "q8_0",
    "isa": "dotprod",
    "threads": 4,
    "cpu": "another host",
    "limits": {"read_gb_s": 80.0, "int8_gmac_s": 300.0},
    "context": 32,
    "results": [
        {"name": "pp256", "tokens_per_second": 10_000.0},
        {"name": "tg32", "tokens_per_second": 500.0},
        {"name": "tg32@4", "tokens_per_second": 1200.0},
    ],
}


def test_a_report_of_another_host_is_planned_with(plan_json, tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH))
    report = plan_json(f"--bench {path} --users 1,4 --prompt-tokens 256 --answer-tokens 64")
    assert report["machine"]["name"] == "another host"
    assert report["alone"]["prompt_tokens_s"] == pytest.approx(10_000, rel=0.05)
    one, four = report["users"]
    assert 256 / 10_000 < one["first_token_s"] < 256 / 10_000 + 0.010  # what the server adds
    assert 1 / 500 < one["between_tokens_s"] < 2 / 500  # contexts are longer than in the bench
    assert four["between_tokens_s"] > 1.3 * one["between_tokens_s"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "another"}, "is of another, q8_0; accepted: one of lanewise-demo-q8_0, q8_0"),
        ({"results": BENCH["results"][:1]}, "has 1 results; accepted: a prompt and decode tests"),
        ({"results": 3}, "is no such report; accepted: what `lanewise bench --json` prints"),
        ({"limits": {}}, "is no such report"),
        ({"limits": BENCH["limits"] | {"read_gb_s": "80"}}, "is no such report"),
        ({"threads": "4"}, "is no such report"),
        ({"threads": 0}, "is no such report"),
    ],
)
def test_a_report_that_cannot_be_used_is_refused(change, says, library, tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(BENCH | change))
    assert cli.main(["plan", "--bench", str(path)]) == 2
    assert f"--bench: {str(path)!r} {says}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--instance c9x.large", "--instance: 'c9x.large'; accepted: one of those"),
        ("--instance c7g.tiny", "such as c7g.medium, c7g.large, c7g.xlarge"),
        ("--instance c7g.large --threads 3", "--threads: 3; accepted: 1 to the 2 cores"),
        ("--instance c7g.large --bench x", "--bench: 'x' beside --instance c7g.large"),
        ("--bench /none", "--bench: '/none': No such file or directory"),
        ("--engine llama.cpp", "--engine: llama.cpp; accepted: only beside --instance"),
        ("--bandwidth 30", "--bandwidth: 30.0; accepted: only beside --instance"),
        ("--bandwidth 0", "--bandwidth: '0' cannot be used; accepted: a number above 0"),
        ("--price no", "--price: 'no' cannot be used; accepted: a number above 0"),
        ("--users 1,0", "--users: '1,0' cannot be used; accepted: whole numbers from 1"),
        ("--prompt-tokens 500", "--prompt-tokens: 500 and --answer-tokens 128; accepted: the"),
        ("--instance c7g.large --context 9", "--context: 9; accepted: from the 384 of prompt"),
        ("--instance c7g.large --context 513", "to the model's 512"),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, says, library, capsys):
    assert cli.main(["plan", *arguments.split()]) == 2
    assert says in capsys.readouterr().err


def test_a_model_without_room_is_an_error(library, capsys):
    assert cli.main(["plan", "--instance", "c7g.large", "--memory", "200MiB"]) == 1
    assert "of weights and a margin of 256.00 MiB" in capsys.readouterr().err


def found(plan, arguments):
    return json.loads(plan(f"{arguments} --prompt-tokens 32 --answer-tokens 16 --json"))["machines"]


def test_machines_that_hold_a_goal_come_by_price(plan):
    arm = found(plan, "--users 8 --itl 50 --ttft 5000 --arch arm")
    prices = [one["usd_hour"] for one in arm if one["usd_hour"] is not None]
    assert prices == sorted(prices)
    assert {one["core"].partition("-")[0] for one in arm} == {"neoverse"}
    assert all(one["between_tokens_s"] <= 0.05 for one in arm)
    assert all(one["first_token_p95_s"] <= 5 for one in arm)
    # What one machine is planned to do by itself is what the search says of it.
    alone = json.loads(
        plan(f"--instance {arm[0]['name']} --users 8 --prompt-tokens 32 --answer-tokens 16 --json")
    )
    assert alone["users"][0]["between_tokens_s"] == pytest.approx(arm[0]["between_tokens_s"])


def test_a_harder_goal_leaves_fewer_machines(plan):
    goal = "--users 8 --arch x86 --itl"
    easy = found(plan, f"{goal} 50")
    middle = sorted(1000 * one["between_tokens_s"] for one in easy)[len(easy) // 2]
    hard = found(plan, f"{goal} {middle}")
    assert {one["name"] for one in hard} < {one["name"] for one in easy}
    assert hard
    text = plan("--users 8 --arch x86 --itl 0.0001 --prompt-tokens 32 --answer-tokens 16")
    assert "no machine that is known holds it" in text


def test_a_search_is_for_no_machine_that_is_named(capsys):
    assert cli.main(["plan", "--itl", "50", "--instance", "c7g.large"]) == 2
    assert "accepted: without --instance" in capsys.readouterr().err


def test_machines_are_listed_by_kind(plan):
    names = [line.split()[0] for line in plan("--instances --arch x86").splitlines()[1:]]
    assert "c7a.large" in names
    assert "c8g.large" not in names


def test_advice_is_something_that_serve_takes(plan, capsys):
    """What helps is a flag of serve, in units, or a larger machine."""
    row = {"kv_needed_bytes": 300 * 2**20}
    memory = {"weight_bytes": 2**30, "limit_bytes": 2 * 2**30}
    advice = plan_report._remedy(row, memory)
    assert advice == "`lanewise serve --kv-memory 300MiB` holds them"
    size = advice.split("--kv-memory ")[1].split("`")[0]
    flags = ["serve", "--kv-memory", size]
    assert vars(cli.build_parser().parse_args(flags))["kv_memory"] == size
    more = plan_report._remedy(row | {"kv_needed_bytes": 2**30}, memory)
    assert "a machine with 2.2" in more


def test_a_plan_of_a_busy_machine_says_so(plan, monkeypatch):
    monkeypatch.setattr(bench, "why_busy", lambda tests: "others were there")
    assert "others used the measured machine: others were there" in plan(
        "--users 1 --prompt-tokens 16 --answer-tokens 8"
    )
