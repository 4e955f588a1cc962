"""The first build on a new machine: what it lacks is said, and so is how far it is."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from serving import wait_for

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("bash", "cat", "env", "find", "git", "make", "mktemp", "nproc", "rm", "sh", "touch")
HEADER = "fatal error: stdio.h: No such file or directory"


def load_install():
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci/install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def make(tmp_path):
    """``make`` with a new environment and a PATH without a compiler but ``tmp_path/bin/cc``.

    The environment's Python does nothing but say so.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in TOOLS:
        (programs / name).symlink_to(shutil.which(name))
    python = write_program(tmp_path / "venv/bin/python", 'echo "python: $*"')

    def run(target="serve"):
        command = ["make", "--directory", ROOT, target, f"VENV={python.parent.parent}"]
        command += ["--what-if=native/CMakeLists.txt"]  # nothing here is built already
        environment = {"PATH": str(programs)}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def write_program(path, script):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_without_a_compiler_make_says_what_to_install(make):
    done = make()
    assert done.returncode != 0
    assert "there is no C compiler" in done.stderr
    assert "sudo apt-get install gcc libc6-dev" in done.stderr
    assert "python:" not in done.stdout  # nothing was downloaded or built before


def test_without_headers_make_says_what_to_install(make, tmp_path):
    write_program(tmp_path / "bin/cc", f'echo "{HEADER}" >&2; exit 1')
    done = make()
    assert done.returncode != 0
    assert HEADER in done.stderr
    assert "sudo apt-get install gcc libc6-dev" in done.stderr
    assert "python:" not in done.stdout


@pytest.mark.parametrize(
    ("target", "packages"),
    [
        ("dashboard", "prometheus"),
        ("image", "docker.io"),
        ("build/fuzz/.built", "clang-19 libclang-rt-19-dev"),
    ],
)
def test_a_target_without_its_program_says_what_to_install(make, tmp_path, target, packages):
    write_program(tmp_path / "bin/cc", "exit 0")
    done = make(target)
    assert done.returncode != 0
    assert f"sudo apt-get install {packages}\n" in done.stderr


def test_the_address_of_the_dashboards_is_whole():
    command = ["make", "--dry-run", "--directory", ROOT, "dashboard"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "http://127.0.0.1:9095/user/" in done.stdout


def test_a_compiler_with_options_in_cc_is_taken(tmp_path):
    """The options reach the compiler, and who has one hears nothing."""
    script = '[ "$1" = --option ] && [ -f "$4" ] || exit 1'
    compiler = write_program(tmp_path / "compiler", script)
    environment = {**os.environ, "CC": f"{compiler} --option"}
    done = subprocess.run(
        [ROOT / ".ci/check_compiler.sh"], env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_compiling_says_how_far_it_is(tmp_path):
    go_on = tmp_path / "go on"
    code = (
        "import pathlib, time\n"
        "print('[7/9] Building C object a.c.o', flush=True)\n"
        f"while not pathlib.Path({str(go_on)!r}).exists(): time.sleep(0.01)\n"
    )
    lines = []

    def say(line):
        lines.append(line)
        if line.endswith("compiling, 7 of 9 files"):
            go_on.touch()

    assert load_install().run([[sys.executable, "-c", code]], 0.02, say) == 0
    assert go_on.exists()
    assert lines[-1].startswith("installed after")
    assert not any("Building" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Collecting numpy>=1.26\n", "downloading packages, now numpy"),
        ("Installing collected packages: numpy, cffi\n", "unpacking the packages"),
    ],
)
def test_downloading_says_what_it_is_at(line, said):
    """However much pip says of files that it does not take."""
    output = [line, *["  Link requires a different Python\n"] * 100]
    assert load_install().progress(output) == said


def test_all_output_of_what_fails_is_shown():
    """And none of what is done beside it."""
    code = "print('[1/9] Building'); print('error: x'); raise SystemExit(3)"
    commands = [[sys.executable, "-c", one] for one in ("print('fine')", code)]
    lines = []
    assert load_install().run(commands, 60, lines.append) == 3
    assert lines == ["[1/9] Building\nerror: x\n"]


def test_an_extra_is_what_pyproject_says_of_it(capsys):
    """``make reference`` and ``make test-ray`` install what this prints."""
    assert load_install().main(["--list", "compare", "fuzz"]) == 0
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = extras["optional-dependencies"]
    assert capsys.readouterr().out.split() == [*wanted["compare"], *wanted["fuzz"]]


def interrupt(command, began):
    """The status and output of a command that Ctrl-C ends once ``began``, a file, is there."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=began.parent,
        start_new_session=True,
        # A shell that began the tests in the background has the signal ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for(began.exists, "the command's beginning")
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def test_ctrl_c_while_compiling_says_that_nothing_is_lost(tmp_path):
    (tmp_path / "python/pip").mkdir(parents=True)
    (tmp_path / "python/pip/__init__.py").touch()
    (tmp_path / "python/pip/__main__.py").write_text(
        "import pathlib, time\nprint('Collecting', flush=True)\n"
        f"pathlib.Path({str(tmp_path / 'began')!r}).touch()\ntime.sleep(60)\n"
    )
    command = ["env", f"PYTHONPATH={tmp_path / 'python'}", sys.executable, ROOT / ".ci/install.py"]
    status, output = interrupt(command, tmp_path / "began")
    assert status == 130
    assert output.splitlines()[1:] == [
        "stopped; what is compiled is kept, and the same command goes on from there"
    ]


def test_ctrl_c_leaves_no_half_environment(tmp_path):
    """Else the next ``make`` takes what has no pip for a whole one."""
    began = tmp_path / "began"
    code = (
        "import pathlib, time; pathlib.Path('venv').mkdir(); "
        f"pathlib.Path({str(began)!r}).touch(); time.sleep(60)"
    )
    script = f'[ "$1" != -m ] || exec "{sys.executable}" -c "{code}"'
    python = write_program(tmp_path / "python", script)
    status, _ = interrupt([ROOT / ".ci/create_venv.sh", python, "venv"], began)
    assert status != 0
    assert not (tmp_path / "venv").exists()


def test_what_builds_has_upper_bounds():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert all("<" in need for need in project["build-system"]["requires"])
    [tools] = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if "BUILD_TOOLS :=" in line
    ]
    assert tools.count("<") == len(tools.partition(":=")[2].split())


@pytest.mark.parametrize(
    "model", ["my models/it's one.gguf", "/models/a.gguf", "org/name:a b.gguf"]
)
def test_a_model_is_one_argument_whatever_its_name(tmp_path, model):
    arguments = ["make", "-n", "--no-print-directory", "-C", str(ROOT), "serve", f"MODEL={model}"]
    environment = os.environ | {"PWD": str(tmp_path)}
    made = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    words = made.stdout.strip().splitlines()[-1].partition(" serve ")[2]
    split = ["bash", "-c", f'printf "%s\\n" {words}']
    assert subprocess.check_output(split, text=True, cwd=ROOT) == f"{model}\n"
    if not model.startswith("my"):
        return
    # One of the folder where make was called is found there, also with -C.
    (tmp_path / model).parent.mkdir()
    (tmp_path / model).touch()
    assert subprocess.check_output(split, text=True, cwd=ROOT) == f"{tmp_path}/{model}\n"
