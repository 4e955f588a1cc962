"""Writes Grafana's dashboards: ``python -m deploy.dashboards``.

Its format repeats itself for every panel; what differs from one to the next is in ``users.py``,
``engine.py`` and ``machine.py``.
"""

import argparse
import json
from pathlib import Path

from deploy.dashboards import engine, machine, users
from deploy.dashboards.grafana import dashboard

FOLDER = Path(__file__).parents[1] / "grafana" / "dashboards"
OF_MODELS, OF_SERVERS = ("model", "instance", "job"), ("instance", "job")
DASHBOARDS = {
    "lanewise": ("Lanewise", users.PANELS, OF_MODELS),
    "lanewise-engine": ("Lanewise: engine", engine.PANELS, OF_MODELS),
    "lanewise-machine": ("Lanewise: machine", machine.PANELS, OF_SERVERS),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder [%(default)s]")
    folder = parser.parse_args().output
    for uid, content in DASHBOARDS.items():
        text = json.dumps(dashboard(uid, *content), indent=1)
        (folder / f"{uid}.json").write_text(text + "\n")
