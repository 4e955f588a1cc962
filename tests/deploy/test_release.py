"""The workflows are valid, ask for no more than they need, and run what can be tried here."""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.sbom import version_of

ROOT = Path(__file__).resolve().parents[2]
CI = ROOT / ".ci"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = version_of(ROOT / "service" / "lanewise")
ONLY_FOR_A_TAG = "github.event_name == 'push'"
DIGEST = "sha256:" + "d" * 64
# Commands of a step that are neither make nor a script of ours, by their first words.
PLAIN = (
    "apt-get update",
    "git config",
    "docker login",
    "gh release",
    "if grep",
    ".venv/bin/lanewise",
)


def workflow(name: str) -> dict[str, Any]:
    text = (ROOT / ".github" / "workflows" / name).read_text()
    return yaml.load(text, yaml.BaseLoader)


def steps_of(jobs: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in jobs.values() for step in job.get("steps", ())]


def test_workflows_are_what_the_schema_of_their_host_allows(tmp_path):
    check = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
    ]
    done = subprocess.run([*check, *WORKFLOWS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    broken = tmp_path / "broken.yml"
    broken.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "run-on:"))
    assert subprocess.run([*check, broken], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_of_others_are_pinned_to_a_commit(path):
    uses = re.findall(r"uses: (.*)", path.read_text())
    assert uses
    for one in uses:
        pinned = re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", one)
        assert pinned or (ROOT / one).is_file(), one


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_only_jobs_that_publish_may_write(path):
    whole = workflow(path.name)
    assert whole["permissions"] in ({}, {"contents": "read"})
    for name, job in whole["jobs"].items():
        rights = job.get("permissions", whole["permissions"])
        if "write" in rights.values():
            assert job["if"] == ONLY_FOR_A_TAG, name
            assert job["environment"], name
        secret = "secrets." in json.dumps(job)
        assert not secret or job.get("if") == ONLY_FOR_A_TAG, name


def test_nothing_is_published_unless_everything_was_built_and_tested():
    jobs = workflow("release.yml")["jobs"]
    published = {name for name in jobs if name.startswith("publish-")}
    assert {job["if"] for name, job in jobs.items() if name in published} == {ONLY_FOR_A_TAG}

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*map(before, direct))

    for name in published:
        assert before(name) >= jobs.keys() - published


def test_what_is_published_is_what_the_complete_run_made():
    """A workflow that is called leaves its artefacts in the run of the caller."""
    jobs = workflow("release.yml")["jobs"]
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml"
    made = steps_of(workflow("ci.yml")["jobs"]) + steps_of(jobs)
    names = [s["with"]["name"] for s in made if "upload-artifact" in s.get("uses", "")]
    assert sorted(names) == ["bill", "image-${{ matrix.arch }}", "wheels"]
    taken = [s["with"] for s in steps_of(jobs) if "download-artifact" in s.get("uses", "")]
    asked = {one.get("name") or one["pattern"] for one in taken}
    assert asked == {"wheels", "image-*", "{wheels,bill}"}
    assert "make wheel wheel-arm" in (CI / "run").read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_steps_run_what_everybody_can_run(path):
    """Programs of ours, and targets of the Makefile; what they do is tested where they are."""
    for step in steps_of(workflow(path.name)["jobs"]):
        command = step.get("run", "")
        if command.startswith("make "):
            targets = [word for word in command.split()[1:] if "=" not in word]
            dry = subprocess.run(
                ["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True
            )
            assert dry.returncode == 0, dry.stderr
        elif command.startswith(".ci/"):
            assert os.access(ROOT / command.split()[0], os.X_OK), command
        else:
            assert not command or command.startswith(PLAIN), command


def tag_check(folder: Path, tag: str, changelog: str) -> subprocess.CompletedProcess[str]:
    for name in (".ci/check_tag.sh", "service/lanewise/__init__.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "CHANGELOG.md").write_text(changelog)
    command = [folder / ".ci" / "check_tag.sh", tag]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_tag_is_the_version_and_the_changelog_has_it(tmp_path):
    changelog = f"# Changelog\n\n## {VERSION} (2026-12-01)\n"
    assert tag_check(tmp_path, f"v{VERSION}", changelog).returncode == 0
    other = tag_check(tmp_path, "v99.0.0", changelog)
    assert (other.returncode, f"should be v{VERSION}" in other.stderr) == (1, True)
    unsaid = tag_check(tmp_path, f"v{VERSION}", "# Changelog\n\n## Unreleased\n")
    assert (unsaid.returncode, "CHANGELOG.md has no section" in unsaid.stderr) == (1, True)


def test_what_is_deployed_has_the_version_of_the_package():
    chart = yaml.safe_load((ROOT / "deploy/helm/lanewise/Chart.yaml").read_text())
    assert {str(chart["version"]), str(chart["appVersion"])} == {VERSION}
    for path in (ROOT / "deploy/kustomize").rglob("*.yaml"):
        named = re.findall(r'(?:version: "|newTag: |image: lanewise:)([^"},\s]+)', path.read_text())
        assert set(named) <= {VERSION}, path


class Answers(http.server.BaseHTTPRequestHandler):
    """A server in a container, as far as the check of an image talks to it."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"usage": {"completion_tokens": 8}}')

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """Puts a program called docker first on PATH: says what it is told to, remembers its calls."""
    calls = tmp_path / "calls"

    def install(user: str = "lanewise", port: int = 0, code: int = 0) -> Path:
        cases = f"""
            'image inspect'*) echo {user} ;;
            'run --detach'*) echo container ;;
            'run --rm --entrypoint cat'*) echo '{{"bomFormat": "CycloneDX"}}' ;;
            'port '*) echo 127.0.0.1:{port} ;;
            *State.Running*) echo true ;;
            *State.ExitCode*) echo {code} ;;
            'buildx imagetools inspect'*) echo {DIGEST} ;;"""
        stub = tmp_path / "bin" / "docker"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f'#!/bin/sh\necho "$*" >>{calls}\ncase "$*" in{cases}\nesac\n')
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
        return calls

    return install


@pytest.mark.parametrize(
    ("user", "code", "problem"),
    [("lanewise", 0, None), ("root", 0, "runs as root"), ("lanewise", 137, "exit status 137")],
)
def test_an_image_is_let_answer_before_it_is_saved(docker, tmp_path, user, code, problem):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        calls = docker(user, server.server_port, code)
        command = [CI / "check_image.sh", "lanewise", tmp_path / "saved"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.returncode == (1 if problem else 0), done.stderr
    assert problem is None or problem in done.stderr
    saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert saved == ([] if problem else ["image.tar.gz", "sbom.cdx.json"])
    started = [line for line in calls.read_text().splitlines() if line.startswith("run ")]
    hardened = ("--read-only", "--cap-drop ALL", "no-new-privileges")
    servers = [line for line in started if "--entrypoint" not in line]
    assert all(option in line for line in servers for option in hardened)
    assert len(servers) == (0 if user == "root" else 2)


def test_images_are_pushed_as_one_for_all_architectures(docker, tmp_path):
    calls = docker()
    folders = [tmp_path / f"image-{name}" for name in ("amd64", "arm64")]
    command = [CI / "publish_image.sh", "registry.example/Some/Lanewise", "v1.2.3", *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    name = "registry.example/some/lanewise"
    said = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert said == {"name": name, "digest": DIGEST, "amd64": DIGEST, "arm64": DIGEST}
    lines = calls.read_text().splitlines()
    pushed = [line.removeprefix("push ") for line in lines if line.startswith("push ")]
    assert pushed == [f"{name}:1.2.3-amd64", f"{name}:1.2.3-arm64"]
    [created] = [line for line in lines if "imagetools create" in line]
    tags = f"--tag {name}:1.2.3 --tag {name}:latest"
    assert created == f"buildx imagetools create {tags} {' '.join(pushed)}"
    outputs = re.findall(r"steps\.pushed\.outputs\.(\w+)", WORKFLOWS[-1].read_text())
    assert set(outputs) == said.keys()
