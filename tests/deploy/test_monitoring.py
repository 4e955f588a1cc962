"""The dashboard and the alerts against a real Prometheus that scrapes the real server."""

import json
import math
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from browsing import chromium, expect, visit
from loadtests.__main__ import main as loadtest
from serving import free_port, lanewise_server, running, wait_for

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/lanewise.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = sorted({target["expr"] for panel in PANELS for target in panel["targets"]})
VARIABLES = [v for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
ALERTS = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
METRIC = re.compile(r"\b(?:vllm:|lanewise_|process_|http_)[a-z_]+")
BLOCK = re.compile(r"```promql\n(.*?)\n```", re.DOTALL)
PAGES = sorted((DEPLOY / "runbooks").glob("*.md"))


def tool(name: str) -> str:
    """The path of a program of the Prometheus package."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed (Debian package: prometheus)")
    return path


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
    tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    with lanewise_server("--threads", "1") as server:
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
            for _ in range(3):
                arguments = ["--url", server, "--clients", "2", "--rounds", "1"]
                assert loadtest([*arguments, "--prompt-tokens", "40", "--max-tokens", "8"]) == 0
            finished = "sum(rate(vllm:request_success_total[30s])) > 0"
            wait_for(lambda: bool(prometheus.query(finished)), "a scrape after the traffic")
            yield prometheus


def substitute(expression: str) -> str:
    """A dashboard query as Grafana sends it with every variable on All."""
    expression = expression.replace("$__rate_interval", "30s")
    for variable in VARIABLES:
        expression = expression.replace(f"${variable['name']}", ".*")
    assert "$" not in expression, f"unknown variable in {expression}"
    return expression


@pytest.mark.e2e
@pytest.mark.parametrize("expression", QUERIES)
def test_every_query_of_the_dashboard_returns_data(scraped, expression):
    assert scraped.query(substitute(expression)), f"no data: {expression}"


@pytest.mark.e2e
@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable["name"])
def test_every_variable_of_the_dashboard_has_values(scraped, variable):
    metric, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", variable["definition"]).groups()
    assert all(series["metric"][label] for series in scraped.query(metric))
    assert scraped.query(metric)


@pytest.mark.e2e
def test_the_page_of_prometheus_draws_every_panel(scraped):
    with chromium() as browser, visit(browser, f"{scraped.url}/user/") as seen:
        expect(seen.page.locator("#state")).to_have_text(
            f"{len(PANELS)} of {len(PANELS)} panels have data"
        )
        assert seen.page.locator(".panel h2").all_inner_texts() == [p["title"] for p in PANELS]
        lines = seen.page.locator(".panel path").all()
        assert all(line.bounding_box()["width"] > 0 for line in lines)
        assert seen.barriers() == []


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


def test_panels_have_titles_descriptions_and_do_not_overlap():
    taken = set()
    for panel in PANELS:
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
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
