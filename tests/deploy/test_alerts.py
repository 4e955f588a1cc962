"""Every alert fires on the series it is for, not before, and ends with them; and has its page."""

import dataclasses
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from lanewise.settings import Settings
from processes import prometheus_tool

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
PAGES = DEPLOY / "runbooks"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
PARTS = ["What it means", "What to look at", "What to do"]
DURATION = re.compile(r"\[(\d+[smhd])\]")
MODEL = {"instance": "a", "model_name": "m"}


@dataclass(frozen=True)
class Case:
    """Series of a value a minute, and the minutes at which there is no alert, one, and none again.

    A value is ``start+step x times``, as promtool writes it; ``_`` is none.
    """

    alert: str
    series: dict[str, str]
    quiet: int
    fires: int
    over: int
    labels: dict[str, str]
    summary: str


def histogram(name: str, bound: str, within: str, all_of_them: str) -> dict[str, str]:
    return {
        f'vllm:{name}_bucket{{instance="a", model_name="m", le="{bound}"}}': within,
        f'vllm:{name}_bucket{{instance="a", model_name="m", le="+Inf"}}': all_of_them,
        f'vllm:{name}_count{{instance="a", model_name="m"}}': all_of_them,
    }


def requests(status: str, values: str, path: str = "/v1/completions") -> dict[str, str]:
    labels = f'job="lanewise", instance="a", method="POST", handler="{path}", status="{status}"'
    return {f"http_requests_total{{{labels}}}": values}


FIRST, BETWEEN = ("time_to_first_token_seconds", "10.0"), ("inter_token_latency_seconds", "0.5")
# A fifth is late for 90 minutes, within an hour that had nothing late; then nothing again.
FAST = ("0+60x60 3600+48x90 7920+60x240", "0+60x60 3600+60x90 9000+60x240")
# A twelfth is late for 10 hours.
SLOW = ("0+60x360 21600+55x600 54600+60x400", "0+60x360 21600+60x600 57600+60x400")
CASES = (
    Case(
        "LanewiseDown",
        {'up{job="lanewise", instance="a"}': "1x4 0x10 1x5"},
        *(5, 7, 16),
        {"job": "lanewise", "instance": "a"},
        "a has not answered for a minute",
    ),
    Case(
        "LanewiseAbsent",
        {'up{job="lanewise", instance="a"}': "1x4 _x20 1x10"},
        *(9, 20, 26),
        {"job": "lanewise"},
        "Prometheus has known of no server for 5 minutes",
    ),
    Case(
        "LanewiseNotReady",
        {'lanewise_ready{instance="a"}': "0x2 1x3 0x10 1x5"},
        *(10, 13, 18),
        {"instance": "a"},
        "a has answered for 5 minutes that it is not ready",
    ),
    Case(
        "LanewiseCrashLoop",
        {
            'process_start_time_seconds{job="lanewise", instance="a"}': "1x20 2x1 _x1 3x1 4x30",
            'process_start_time_seconds{job="lanewise", instance="updated twice"}': "1x20 2x2 3x30",
        },
        *(24, 26, 45),
        {"job": "lanewise", "instance": "a"},
        "a has been started 3 times within 15 minutes",
    ),
    Case(
        "LanewiseErrors",
        requests("200", "0+90x40")
        | requests("503", "0x5 0+10x12 120x20")
        | requests("400", "0+500x2 1000x40")
        | requests("503", "0+30x40", "/health/ready")
        | requests("503", "0+30x40", "/ping"),
        *(9, 16, 28),
        {"instance": "a"},
        "a has answered 10% of its requests of 5 minutes with errors of its own",
    ),
    Case(
        "LanewiseStepErrors",
        {'lanewise_step_errors_total{instance="a"}': "0x4 5x20"},
        *(4, 6, 14),
        {"instance": "a"},
        "a: forward steps have failed in the last 5 minutes",
    ),
    Case(
        "LanewiseStepHangs",
        {'lanewise_step_age_seconds{instance="a", model_name="m"}': "1x4 60+60x10 0x5"},
        *(6, 8, 17),
        MODEL,
        "a: a step has been running for 4m 0s",
    ),
    Case(
        "LanewiseRejectsRequests",
        {
            'lanewise_requests_rejected_total{instance="a", model_name="m", reason="queue_full"}': (
                "0x4 0+60x20 1200x10"
            ),
            'lanewise_requests_rejected_total{instance="one burst", model_name="m", '
            'reason="queue_full"}': "0x4 60x40",
        },
        *(9, 20, 30),
        MODEL,
        "a has turned requests away for 5 minutes, now 1 per second: its queue is full",
    ),
    Case(
        "LanewiseFirstTokenBurnsFast",
        histogram(*FIRST, *FAST),
        *(100, 120, 160),
        {"model_name": "m"},
        "m: 20% of the last hour's requests waited over 10 s for a first token, and the last 5"
        " minutes' do; 1 % may in a month, which is over in two days like this",
    ),
    Case(
        "LanewiseFirstTokenBurnsSlowly",
        histogram(*FIRST, *SLOW),
        *(600, 720, 1000),
        {"model_name": "m"},
        "m: 8.333% of the last 6 hours' requests waited over 10 s for a first token, and the last"
        " 30 minutes' do; 1 % may in a month, which is over in five days like this",
    ),
    Case(
        "LanewiseInterTokenBurnsFast",
        histogram(*BETWEEN, *FAST),
        *(100, 120, 160),
        {"model_name": "m"},
        "m: 20% of the last hour's tokens came over 0.5 s after the one before, and the last 5"
        " minutes' do; 1 % may in a month, which is over in two days like this",
    ),
    Case(
        "LanewiseInterTokenBurnsSlowly",
        histogram(*BETWEEN, *SLOW),
        *(600, 720, 1000),
        {"model_name": "m"},
        "m: 8.333% of the last 6 hours' tokens came over 0.5 s after the one before, and the last"
        " 30 minutes' do; 1 % may in a month, which is over in five days like this",
    ),
    Case(
        "LanewiseQueueGrows",
        {
            'vllm:num_requests_waiting{instance="a"}': "0x10 3x20 0x10",
            'vllm:num_requests_waiting{instance="with a break"}': "3x8 0 3x8 0 3x8 0 3x8 0",
        },
        *(20, 22, 33),
        {"instance": "a"},
        "a: requests have been waiting for 10 minutes without a break",
    ),
    Case(
        "LanewiseCacheFull",
        {'vllm:kv_cache_usage_perc{instance="a"}': "0.5x10 0.99x20 0.5x10"},
        *(20, 23, 33),
        {"instance": "a"},
        "a: the KV cache has been full for 10 minutes",
    ),
    Case(
        "LanewiseCpuThrottled",
        {
            'lanewise_cpu_periods_total{instance="a"}': "0+600x60",
            'lanewise_cpu_throttled_periods_total{instance="a"}': "0+6x10 120+60x30 1920x20",
            'lanewise_cpu_periods_total{instance="without a quota"}': "0x60",
            'lanewise_cpu_throttled_periods_total{instance="without a quota"}': "0x60",
        },
        *(20, 30, 55),
        {"instance": "a"},
        "a: its CPU quota has stopped it for 10 minutes, now in 10% of all periods",
    ),
    Case(
        "LanewiseMemoryLow",
        {
            'lanewise_memory_limit_bytes{instance="a"}': "1000x50",
            'lanewise_memory_used_bytes{instance="a"}': "900x10 960x20 900x15",
        },
        *(20, 22, 33),
        {"instance": "a"},
        "a: for 10 minutes its memory limit has been almost used up, now 96%",
    ),
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [prometheus_tool("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def expected(case: Case) -> dict[str, object]:
    """A test of promtool's: what there is of an alert at three moments."""
    rule = ALERTS[case.alert]
    constant = {name: rule["annotations"][name] for name in ("action", "runbook_url")}
    alert = {
        "exp_labels": rule["labels"] | case.labels,
        "exp_annotations": constant | {"summary": case.summary},
    }
    moments = ((case.quiet, []), (case.fires, [alert]), (case.over, []))
    return {
        "interval": "1m",
        "input_series": [{"series": k, "values": v} for k, v in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": alerts}
            for minute, alerts in moments
        ],
    }


def test_every_alert_fires_and_ends(tmp_path):
    path = tmp_path / "alerts.test.yml"
    tests = [expected(case) for case in CASES]
    given = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    path.write_text(yaml.safe_dump(given))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_and_a_page_and_every_page_an_alert():
    assert {case.alert for case in CASES} == ALERTS.keys()
    assert {path.stem for path in PAGES.glob("*.md")} == {*ALERTS, "README"}
    for name, rule in ALERTS.items():
        assert rule["annotations"]["runbook_url"] == f"deploy/runbooks/{name}.md"
        assert f"[{name}]({name}.md)" in (PAGES / "README.md").read_text()


@pytest.mark.parametrize("alert", ALERTS)
def test_a_page_says_what_the_alert_means_and_knows_every_name_it_uses(alert):
    text = (PAGES / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == PARTS
    settings = {field.name for field in dataclasses.fields(Settings)}
    for name in re.findall(r"`([a-z]+_[a-z_]+)`", text):
        assert name in settings, f"no setting {name}"
    for name in re.findall(r"LANEWISE_([A-Z_]+)=", text):
        assert name.lower() in settings, f"no setting {name}"
    for page in re.findall(r"\]\(([\w./]+)\)", text):
        assert (PAGES / page).exists(), page


@pytest.mark.parametrize("alert", ALERTS)
def test_the_windows_of_an_alert_are_those_that_its_text_tells_of(alert):
    """What has to hold for a time says so; what looks back says how far."""
    rule = ALERTS[alert]
    windows = {rule["for"]} if "for" in rule else {*DURATION.findall(rule["expr"])}
    said = rule["annotations"]["summary"].replace("for a minute", "1 minutes")
    said = said.replace("the last hour", "1 hours")
    told = {f"{n}{unit[0]}" for n, unit in re.findall(r"(\d+) (minutes|hours)", said)}
    if alert == "LanewiseStepHangs":
        windows = set()  # its text has the time that was measured
    assert told == windows


@pytest.mark.parametrize("name", ["prometheus.yml", "local.yml"])
def test_prometheus_accepts_its_configuration(name):
    done = promtool("check", "config", DEPLOY / "prometheus" / name)
    assert done.returncode == 0, done.stdout + done.stderr
