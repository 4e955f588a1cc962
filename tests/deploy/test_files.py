"""The files of deploy/ name each other correctly."""

import dataclasses
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import topics
from lanewise.router.entries import read_catalogue
from lanewise.settings import Settings, resolve, resolve_with_sources, variable_of

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
SETTINGS = {variable_of(name) for name in (*Settings.__dataclass_fields__, "config")}


def test_everything_that_compose_mounts_exists():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounts = [mount for service in services.values() for mount in service.get("volumes", ())]
    paths = [DEPLOY / mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert paths
    assert all(path.exists() for path in paths)


def test_compose_knows_every_word_of_its_file(tmp_path):
    text = (DEPLOY / "compose.yaml").read_text()
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    for name, content in (
        ("right.yaml", text),
        ("wrong.yaml", text.replace("cap_drop:", "cap_dropp:")),
    ):
        (tmp_path / name).write_text(content)
        done = subprocess.run([*check, tmp_path / name], capture_output=True, text=True)
        assert (done.returncode == 0) == (name == "right.yaml"), done.stdout
        assert ("cap_dropp" in done.stdout) == (name == "wrong.yaml")


def test_compose_can_serve_several_models():
    one, several = (
        yaml.safe_load((DEPLOY / name).read_text())["services"]["lanewise"]
        for name in ("compose.yaml", "compose.models.yaml")
    )
    environment = one["environment"] | several["environment"] | {"LANEWISE_CONFIG": ""}
    asked = resolve(Settings, {}, environment)
    [mount] = several["volumes"]
    source, target, _ = mount.split(":")
    assert (asked.models, asked.model) == (target, None)
    assert read_catalogue(str(DEPLOY / source), Settings()).default == "chat"
    assert several.keys() <= one.keys()


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
    assert "models:/models" in server["volumes"]
    assert all("size=" in one for one in server["tmpfs"])
    assert float(server["stop_grace_period"].rstrip("s")) > Settings().drain_timeout_s


def test_the_image_writes_to_its_volume_only():
    stage = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    [volume] = re.findall(r"^VOLUME (.*)$", stage, re.MULTILINE)
    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        [folder] = re.findall(rf"\b{name}=(\S+)", stage)
        assert Path(folder).is_relative_to(volume)


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
        if path.is_file() and path.suffix != ".pyc":
            # What CMake is told is no setting.
            text = path.read_text().replace("cmake.define.LANEWISE_", "")
            named = set(re.findall(r"\bLANEWISE_[A-Z_]+", text)) - {"LANEWISE_"}
            assert named <= SETTINGS, f"{path.name}: {named - SETTINGS}"


def uncommented(text: str) -> str:
    """The example of settings with every line in force: its default, or what it has behind e.g."""
    lines = re.findall(r"^(?:# )?([a-z_]+: )(?:e\.g\. )?(.*)$", text, re.MULTILINE)
    return "\n".join(map("".join, lines))


def test_the_example_of_settings_can_be_used_as_it_is_and_line_by_line(tmp_path):
    text = (DEPLOY / "config.yaml").read_text()
    whole = tmp_path / "whole.yaml"
    whole.write_text(uncommented(text))
    commented = set(re.findall(r"^# ([a-z_]+): ", text, re.MULTILINE))
    examples = set(re.findall(r"^# ([a-z_]+): e\.g\. ", text, re.MULTILINE))
    settings, sources = resolve_with_sources(Settings, {}, {}, str(whole))
    as_it_is = resolve(Settings, {}, {}, str(DEPLOY / "config.yaml"))
    assert len(commented) > 30
    assert sources.keys() >= commented
    for item in dataclasses.fields(Settings):
        if item.name in examples:
            assert getattr(settings, item.name) != item.default, item.name
        else:
            assert getattr(settings, item.name) == item.default, item.name
    assert as_it_is == Settings()


def test_compose_and_systemd_read_the_example_of_settings(unit):
    server = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["lanewise"]
    path = server["environment"]["LANEWISE_CONFIG"]
    assert f"./config.yaml:{path}:ro" in server["volumes"]
    assert f"LANEWISE_CONFIG={path}" in unit["Environment"]
    # In a container it is the ports that are those of this machine alone.
    stage = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "LANEWISE_HOST=0.0.0.0" in stage


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
def unit() -> dict[str, str]:
    """The service's options; lines of one that is there several times stand below each other."""
    text = (DEPLOY / "systemd/lanewise.service").read_text()
    options: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE):
        options[name] = f"{options[name]}\n{value}" if name in options else value
    return options


def test_systemd_unit_starts_the_server_and_outlasts_its_drain(unit):
    assert unit["ExecStart"].endswith("/lanewise serve")
    assert float(unit["TimeoutStopSec"]) > Settings().drain_timeout_s


def test_systemd_can_serve_several_models(unit):
    text = (DEPLOY / "systemd/several-models.conf").read_text()
    options = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert options["Environment"] == "LANEWISE_MODELS=/etc/lanewise/models.yaml"
    assert int(options["TasksMax"]) > int(unit["TasksMax"])
    # The router drains first; a signal to all processes would end its models before.
    assert unit["KillMode"] == "mixed"


def analyze(folder: Path, unit: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``systemd-analyze`` of a unit, which there starts a program that exists."""
    if shutil.which("systemd-analyze") is None:
        topics.skip("systemd", "no systemd-analyze on this machine")
    path = folder / "lanewise.service"
    path.write_text(unit.replace("/opt/lanewise/bin/lanewise", "/bin/true"))
    command = ["systemd-analyze", *arguments, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_systemd_understands_the_unit_and_finds_it_hardened(tmp_path):
    text = (DEPLOY / "systemd/lanewise.service").read_text()
    verify = ("verify", "--man=no")
    done = analyze(tmp_path, text, *verify)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert "ProtectSystm" in analyze(tmp_path, text.replace("System=", "Systm="), *verify).stderr
    security = ("security", "--offline=true", "--no-pager", "--threshold=15")  # 1.5 of 10
    done = analyze(tmp_path, text, *security)
    assert done.returncode == 0, done.stdout + done.stderr
    assert analyze(tmp_path, text.replace("DynamicUser=yes", ""), *security).returncode != 0


def test_systemd_unit_gives_the_server_no_more_than_it_needs(unit):
    assert unit["DynamicUser"] == "yes"
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == ""
    assert unit["ProtectSystem"] == "strict"
    assert unit["SystemCallFilter"] == "@system-service\n~@privileged"
    assert unit["MemoryMax"]
    for name in (
        *("LockPersonality", "MemoryDenyWriteExecute", "NoNewPrivileges", "PrivateDevices"),
        *("PrivateMounts", "PrivateTmp", "PrivateUsers", "ProtectClock", "ProtectControlGroups"),
        *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "RestrictRealtime"),
        *("ProtectHostname", "RestrictNamespaces", "RestrictSUIDSGID"),
    ):
        assert unit[name] == "yes", name
    # It looks at these to choose threads and memory.
    assert unit.get("ProcSubset", "all") == "all"
