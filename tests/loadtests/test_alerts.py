"""Faults for alerts: there is one for each, and scaled rules differ in nothing but their time."""

import os
import re
import subprocess
import threading

import pytest
import yaml

from loadtests.alerts.__main__ import ABSENT, main
from loadtests.alerts.faults import FAULTS
from loadtests.alerts.groups import busiest_thread
from loadtests.alerts.rules import RULES, alert_names, scaled_rules, shorter
from processes import prometheus_tool


def test_every_alert_has_a_fault_that_fires_it():
    assert {alert for fault in FAULTS.values() for alert in fault.alerts} | {
        ABSENT
    } == alert_names()


def test_minutes_are_shorter_and_nothing_else_is_another():
    assert [shorter("5m", 30), shorter("1h", 30), shorter("30s", 4)] == [
        "10000ms",
        "120000ms",
        "7500ms",
    ]
    rules = {rule["alert"]: rule for rule in scaled_rules(30)["groups"][0]["rules"]}
    given = {
        rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    }
    assert rules["LanewiseQueueGrows"]["for"] == "20000ms"
    assert "[10000ms]" in rules["LanewiseCpuThrottled"]["expr"]
    assert "[90000ms]" in rules["LanewiseCrashLoop"]["expr"]  # a server needs its time to begin
    assert "lanewise_step_age_seconds > 2" in rules["LanewiseStepHangs"]["expr"]
    assert "0.000" not in str(rules)
    for name, rule in rules.items():
        same = re.sub(r"\[[^]]+\]", "[]", rule["expr"]).replace('le="0.25"', 'le="10.0"')
        original = re.sub(r"\[[^]]+\]", "[]", given[name]["expr"])
        assert same == original.replace("> 60", "> 2")
        assert rule["annotations"] == given[name]["annotations"]


def test_prometheus_accepts_the_scaled_rules(tmp_path):
    promtool = prometheus_tool("promtool")
    path = tmp_path / "alerts.yml"
    path.write_text(yaml.safe_dump(scaled_rules(30)))
    subprocess.run([promtool, "check", "rules", path], check=True, capture_output=True)


def test_the_thread_that_computes_is_found():
    found, is_over = [], threading.Event()

    def compute() -> None:
        found.append(threading.get_native_id())
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        assert busiest_thread(os.getpid(), 0.5) == found[0]
    finally:
        is_over.set()
        thread.join()


@pytest.mark.e2e
@pytest.mark.native
@pytest.mark.usefixtures("library")
def test_an_overwritten_model_fires_its_alerts_and_they_end(capsys):
    prometheus_tool("prometheus")
    assert main(["--only", "overwritten", "--scale", "60"]) == 0
    told = capsys.readouterr().out
    for alert in FAULTS["overwritten"].alerts:
        assert re.search(rf"{alert} +fired after +[0-9.]+ s, ended +[0-9.]+ s after it", told)
