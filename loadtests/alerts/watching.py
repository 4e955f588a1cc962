"""A Prometheus with the scaled rules, and the servers it looks at."""

import json
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from loadtests.alerts.rules import scaled_rules
from loadtests.server import Server, free_port, stop, wait_until_ready

READY_S = 30.0
INTERVAL = "1s"


class Prometheus:
    """One that runs."""

    def __init__(self, url: str, targets: Path) -> None:
        self.url = url
        self._file = targets
        self._targets: list[str] = []
        self._lock = threading.Lock()

    def watch(self, *targets: str) -> None:
        """Scrape these addresses too."""
        with self._lock:
            self._targets += targets
            self._write()

    def forget(self, *targets: str) -> None:
        """Scrape these addresses no more."""
        with self._lock:
            self._targets = [one for one in self._targets if one not in targets]
            self._write()

    def _write(self) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps([{"targets": self._targets}]))
        new.rename(self._file)

    def firing(self) -> list[dict[str, str]]:
        """The labels of all alerts that fire now."""
        with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=10) as answer:
            alerts = json.load(answer)["data"]["alerts"]
        return [one["labels"] for one in alerts if one["state"] == "firing"]


@contextmanager
def watching(folder: Path, factor: float) -> Iterator[Prometheus]:
    """A Prometheus that scrapes every second; its rules' minutes are ``factor`` times shorter.

    OSError if there is none, or it does not start.
    """
    program = shutil.which("prometheus")
    if program is None:
        raise OSError("prometheus is not installed (Debian package: prometheus)")
    targets = folder / "targets.json"
    targets.write_text("[]")
    (folder / "alerts.yml").write_text(yaml.safe_dump(scaled_rules(factor)))
    config = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": "lanewise", "file_sd_configs": [{"files": [str(targets)]}]},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [program, f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    log = folder / "prometheus.log"
    with log.open("wb") as out:
        server = Server(port, subprocess.Popen(command, stdout=out, stderr=out), log)
    try:
        wait_until_ready(server, "/-/ready", READY_S)
        yield Prometheus(server.url, targets)
    finally:
        stop(server)
