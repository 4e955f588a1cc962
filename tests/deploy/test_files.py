"""The files of deploy/ name each other correctly."""

import configparser
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import yaml

from lanewise.settings import Settings, variable_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = {variable_of(name) for name in Settings.__dataclass_fields__}


def test_everything_that_compose_mounts_exists():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounts = [mount for service in services.values() for mount in service.get("volumes", ())]
    paths = [DEPLOY / mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert paths
    assert all(path.exists() for path in paths)


def test_grafana_finds_the_dashboard_where_compose_mounts_it():
    grafana = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    targets = dict(mount.split(":")[:2] for mount in grafana["volumes"])
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    provider = DEPLOY / "grafana/provisioning/dashboards/lanewise.yaml"
    [configured] = yaml.safe_load(provider.read_text())["providers"]
    assert configured["options"]["path"] == targets["./grafana/dashboards"]
    assert (DEPLOY / "grafana/dashboards" / Path(home).name).is_file()


def test_every_setting_that_deploy_names_exists():
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            named = set(re.findall(r"\bLANEWISE_[A-Z_]+", path.read_text())) - {"LANEWISE_"}
            assert named <= SETTINGS, f"{path.name}: {named - SETTINGS}"


def test_everything_the_image_copies_exists():
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            for source in sources:
                assert (ROOT / source).exists(), f"{line}: {source} does not exist"


class HealthHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_the_health_check_of_the_image_sees_whether_the_server_answers():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    [command] = re.findall(r"^HEALTHCHECK .*? CMD (\[.*\])$", text, re.MULTILINE)
    _, *arguments = json.loads(command)
    with http.server.HTTPServer(("127.0.0.1", 0), HealthHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = os.environ | {"LANEWISE_PORT": str(server.server_port)}
        check = [sys.executable, *arguments]
        assert subprocess.run(check, env=environment, check=False).returncode == 0
        server.shutdown()
    done = subprocess.run(check, env=environment, capture_output=True, check=False)
    assert done.returncode == 1


def test_systemd_unit_starts_the_server_and_outlasts_its_drain():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read_string((DEPLOY / "systemd/lanewise.service").read_text())
    assert unit["Service"]["ExecStart"].endswith("/lanewise serve")
    assert float(unit["Service"]["TimeoutStopSec"]) > Settings().drain_timeout_s
