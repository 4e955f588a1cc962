"""The dashboard and the alerts against a real Prometheus that scrapes the real server."""

import json
import math
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from browsing import chromium, expect, visit
from loadtests.__main__ import main as loadtest
from otlp_collector import collecting
from processes import prometheus_tool
from serving import answers, free_port, lanewise_server, running, wait_for

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDER = DEPLOY / "grafana" / "dashboards"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
PANELS = {
    name: [panel for panel in one["panels"] if panel["type"] != "row"]
    for name, one in DASHBOARDS.items()
}
STARTS = {one["annotations"]["list"][0]["expr"] for one in DASHBOARDS.values()}
QUERIES = sorted(
    {
        target["expr"]
        for panels in PANELS.values()
        for panel in panels
        for target in panel["targets"]
    }
    | STARTS
)
VARIABLES = {
    one["name"]: one["definition"]
    for dashboard in DASHBOARDS.values()
    for one in dashboard["templating"]["list"]
    if one["type"] == "query"
}
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
METRIC = re.compile(r"\b(?:vllm:|lanewise_|process_|http_)[a-z_]+")
BLOCK = re.compile(r"```promql\n(.*?)\n```", re.DOTALL)
PAGES = sorted((DEPLOY / "runbooks").glob("*.md"))


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict]:
        """The series an instant query returns, without those whose value is not a number."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            series = json.load(answer)["data"]["result"]
        return [one for one in series if not math.isnan(float(one["value"][1]))]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory) -> Iterator[Prometheus]:
    """A Prometheus with a minute of the server's life in it, traffic included."""
    prometheus_tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    with (
        collecting() as (endpoint, _),
        lanewise_server(
            *("--threads", "1", "--otlp-traces-endpoint", endpoint),
            *("--data-dir", str(folder / "data"), "--tokens-per-day", "1000000"),
        ) as server,
    ):
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        [job] = config["scrape_configs"]
        job["static_configs"] = [{"targets": [server.removeprefix("http://")]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(DEPLOY / "prometheus/alerts.yml", folder)
        command = ["make", "--directory", str(DEPLOY.parent), "dashboard"]
        command += [f"DASHBOARD=127.0.0.1:{port}", f"PROMETHEUS_DATA={folder}/data"]
        command += [f"PROMETHEUS_CONFIG={folder}/prometheus.yml"]
        url = f"http://127.0.0.1:{port}"
        with running(command, f"{url}/-/ready"):
            prometheus = Prometheus(url)
            # Rates need a sample from before the traffic and two with it.
            wait_for(lambda: bool(prometheus.query("up == 1")), "first scrape")
            assert not answers(f"{server}/nowhere")  # a request that fails
            for _ in range(3):
                arguments = ["--url", server, "--clients", "2", "--rounds", "1"]
                assert loadtest([*arguments, "--prompt-tokens", "40", "--max-tokens", "8"]) == 0
            # The series of a 404 begins with the first, and has no rate before the next scrape.
            finished = "sum(rate(vllm:request_success_total[30s])) > 0"
            finished += ' and sum(rate(http_requests_total{status="404"}[30s])) >= 0'
            wait_for(lambda: bool(prometheus.query(finished)), "a scrape after the traffic")
            yield prometheus


def substitute(expression: str) -> str:
    """A dashboard query as Grafana sends it with every variable on All."""
    expression = expression.replace("$__rate_interval", "30s")
    for name in VARIABLES:
        expression = expression.replace(f"${name}", ".*")
    assert "$" not in expression, f"unknown variable in {expression}"
    return expression


@pytest.mark.e2e
@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_the_dashboard_returns_data(scraped, expression):
    assert scraped.query(substitute(expression)), f"no data: {expression}"


@pytest.mark.e2e
@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_of_the_dashboard_has_values(scraped, variable):
    metric, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", VARIABLES[variable]).groups()
    assert all(series["metric"][label] for series in scraped.query(metric))
    assert scraped.query(metric)


@pytest.mark.e2e
def test_the_page_of_prometheus_draws_every_panel(scraped):
    with chromium() as browser, visit(browser, f"{scraped.url}/user/") as seen:
        page = seen.page
        expect(page.locator("#dashboard")).to_have_value("lanewise.json")
        for name, panels in PANELS.items():
            page.select_option("#dashboard", f"{name}.json")
            expect(page.locator("#state")).to_have_text(
                f"{len(panels)} of {len(panels)} panels have data"
            )
            assert page.locator(".panel h2").all_inner_texts() == [p["title"] for p in panels]
            widths = page.locator(".panel path").evaluate_all(
                "paths => paths.map(path => path.getBoundingClientRect().width)"
            )
            assert widths
            assert all(widths)
            maps = [panel for panel in panels if panel["type"] == "heatmap"]
            assert page.locator(".panel svg:has(rect)").count() == len(maps)
        assert seen.barriers() == []


@pytest.mark.e2e
def test_prometheus_keeps_the_traces_that_histograms_name(scraped):
    now = time.time()
    asked = {"query": "vllm:time_to_first_token_seconds_bucket", "start": now - 600, "end": now}
    address = f"{scraped.url}/api/v1/query_exemplars?{urllib.parse.urlencode(asked)}"
    with urllib.request.urlopen(address, timeout=10) as answer:
        series = json.load(answer)["data"]
    traces = [one["labels"]["trace_id"] for each in series for one in each["exemplars"]]
    assert traces
    assert all(re.fullmatch("[0-9a-f]{32}", trace) for trace in traces)


@pytest.mark.e2e
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_is_about_series_that_exist(scraped, alert):
    for metric in METRIC.findall(alert["expr"]):
        assert scraped.query(f"count({metric})"), f"{metric} does not exist"
    assert not scraped.query(alert["expr"]), "fires on a healthy server"


@pytest.mark.e2e
def test_every_query_of_a_runbook_is_about_series_that_exist(scraped):
    queries = {query for page in PAGES for query in BLOCK.findall(page.read_text())}
    assert len(queries) > 20
    for query in queries:
        scraped.query(query)  # an HTTPError if it cannot be understood
        for metric in METRIC.findall(query):
            assert scraped.query(f"count({metric})"), f"{query}: {metric} does not exist"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_have_titles_descriptions_and_do_not_overlap(name):
    taken = set()
    for panel in PANELS[name]:
        assert panel["title"]
        assert panel["description"].endswith(".")
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))


# What Grafana reads of each, so that a slip of the pen is no setting without an effect.
PANEL = {
    *("id", "type", "title", "description", "gridPos", "datasource", "fieldConfig", "options"),
    *("targets", "transformations"),
}
TARGET = {
    *("refId", "datasource", "editorMode", "expr", "legendFormat", "range", "instant"),
    *("format", "exemplar"),
}
FIELD = {"unit", "min", "max", "thresholds", "custom"}
CUSTOM = {"lineWidth", "fillOpacity", "showPoints", "stacking", "thresholdsStyle"}
OPTIONS = {
    "stat": {"reduceOptions", "colorMode", "graphMode", "textMode"},
    "timeseries": {"legend", "tooltip"},
    "table": {"showHeader"},
    "heatmap": {
        *("calculate", "cellGap", "color", "exemplars", "filterValues", "legend", "rowsFrame"),
        *("tooltip", "yAxis"),
    },
}
UNITS = {"s", "bytes", "percentunit", "reqps", "ops", "rowsps", "tok/s"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_knows_every_field_of_a_panel(name):
    kinds = set()
    for panel in PANELS[name]:
        kinds.add(panel["type"])
        assert panel.keys() <= PANEL
        assert panel["options"].keys() <= OPTIONS[panel["type"]]
        field = panel["fieldConfig"]["defaults"]
        assert field.keys() <= FIELD
        assert field.get("custom", {}).keys() <= CUSTOM
        assert field.get("unit") in {None, *UNITS}
        if steps := field.get("thresholds", {}).get("steps"):
            values = [step["value"] for step in steps]
            assert values[0] is None
            assert values[1] < values[2]
            assert {step["color"] for step in steps} == {"green", "orange", "red"}
        for target in panel["targets"]:
            assert target.keys() <= TARGET
            assert panel["type"] != "heatmap" or target["format"] == "heatmap"
    assert {"stat", "timeseries"} <= kinds
    variables = {one["name"] for one in DASHBOARDS[name]["templating"]["list"]}
    queries = [target["expr"] for panel in PANELS[name] for target in panel["targets"]]
    queries += [one["expr"] for one in DASHBOARDS[name]["annotations"]["list"]]
    used = {word for query in queries for word in re.findall(r"\$(\w+)", query)}
    assert used - {"__rate_interval"} <= variables


def test_the_dashboards_are_what_their_description_gives(tmp_path):
    command = [sys.executable, "-m", "deploy.dashboards", "--output", str(tmp_path)]
    subprocess.run(command, cwd=DEPLOY.parent, check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in FOLDER.iterdir()}
