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

import pytest
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


def interpolated(text: str, variables: dict[str, str]) -> str:
    """What Compose makes of a value: ${A:-other}, ${A:+other} and ${A:?message}, one in another."""
    while found := re.search(r"\$\{([A-Z_]+):([-+?])([^${}]*)\}", text):
        name, operator, word = found.groups()
        value = variables.get(name, "")
        if operator == "?" and not value:
            value = f"REFUSED({word})"
        chosen = {"-": value or word, "+": word if value else "", "?": value}[operator]
        text = text[: found.start()] + chosen + text[found.end() :]
    return text


@pytest.mark.parametrize(
    ("variables", "address", "key"),
    [
        ({}, "127.0.0.1", ""),
        ({"LANEWISE_API_KEY": "k"}, "127.0.0.1", "k"),
        ({"LANEWISE_API_KEY": "k", "BIND_ADDRESS": "10.0.0.1"}, "10.0.0.1", "k"),
        ({"BIND_ADDRESS": "0.0.0.0"}, "0.0.0.0", "REFUSED(BIND_ADDRESS needs LANEWISE_API_KEY)"),
    ],
)
def test_compose_listens_for_others_only_with_a_key(variables, address, key):
    server = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["lanewise"]
    assert [interpolated(port, variables) for port in server["ports"]] == [f"{address}:8000:8000"]
    assert interpolated(server["environment"]["LANEWISE_API_KEY"], variables) == key


def test_compose_gives_no_service_more_than_it_needs():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["mem_limit"], name
        assert not service.get("privileged"), name
        assert "cap_add" not in service, name
        ports = [interpolated(port, {}) for port in service["ports"]]
        assert all(port.startswith("127.0.0.1:") for port in ports), name
    server = services["lanewise"]
    assert server["read_only"] is True
    assert server["user"].split(":")[0] not in ("0", "root")
    assert server["pids_limit"] > 0
    # What it writes goes to a volume or to memory of a size that is said.
    assert server["environment"]["XDG_CACHE_HOME"].startswith("/models/")
    assert all("size=" in one for one in server["tmpfs"])
    assert float(server["stop_grace_period"].rstrip("s")) > Settings().drain_timeout_s


def test_the_image_installs_nothing_whose_hash_is_not_known():
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip (?:install|wheel) [^&\n]*", text)
    assert installs
    for install in installs:
        assert "--require-hashes" in install or "--no-index" in install, install
    assert re.search(r"^USER lanewise$", text, re.MULTILINE)


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


@pytest.fixture(scope="module")
def unit() -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str
    parser.read_string((DEPLOY / "systemd/lanewise.service").read_text())
    return parser["Service"]


def test_systemd_unit_starts_the_server_and_outlasts_its_drain(unit):
    assert unit["ExecStart"].endswith("/lanewise serve")
    assert float(unit["TimeoutStopSec"]) > Settings().drain_timeout_s


def test_systemd_unit_gives_the_server_no_more_than_it_needs(unit):
    assert unit["DynamicUser"] == "yes"
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == ""
    assert unit["ProtectSystem"] == "strict"
    assert unit["SystemCallFilter"] == "@system-service"
    assert unit["MemoryMax"]
    for name in (
        *("LockPersonality", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateDevices"),
        *("PrivateTmp", "PrivateUsers", "ProtectClock", "ProtectControlGroups", "ProtectHostname"),
        *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictRealtime"),
        *("RestrictNamespaces", "RestrictSUIDSGID"),
    ):
        assert unit[name] == "yes", name
    # It looks at these to choose threads and memory.
    assert unit.get("ProcSubset", "all") == "all"
