"""``lanewise quantize`` when the disk is full, something interrupts it, or memory is small."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise_quantizer.commands import partial_output, stream
from lanewise_quantizer.commands.partial_output import PartialOutput
from quantizing import quantize, write_model
from topics import thorough

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A llama with rows of 256 and 512 inputs, which every type can have."""
    return write_model(tmp_path_factory.mktemp("source") / "model", hidden=256, ffn=512)


def run_with(arguments: list[str], **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lanewise", "quantize", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_full_disk_is_seen_before_any_work(source, tmp_path):
    """A limit on the size of files is the full disk that a test can have without privileges."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    command = [str(source), "-o", str(tmp_path / "out"), "--format", "q4_0", "--calibrate", "none"]
    done = run_with(command, preexec_fn=limit)
    assert done.returncode == 1
    assert "model.safetensors" in done.stderr or "out.partial" in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert not list(tmp_path.iterdir())


def test_too_little_space_says_how_much(source, tmp_path, capsys, monkeypatch):
    usage = partial_output.shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(partial_output.shutil, "disk_usage", lambda path: usage)
    assert quantize(source, tmp_path / "out") == 1
    error = capsys.readouterr().err
    assert f"{tmp_path / 'out.partial'}: " in error
    assert "MiB are needed and 1.00 KiB free" in error
    assert not list(tmp_path.iterdir())


class InterruptedRunError(Exception):
    """Stands for any end of the process."""


@pytest.fixture
def interrupted_after(monkeypatch):
    """Has a run stop after some tensors, as a killed one would; returns what is done."""
    real = PartialOutput.mark_done

    def arrange(tensors: int) -> None:
        def mark_done(self, name, checksum):
            if len(self.done) == tensors:
                raise InterruptedRunError
            real(self, name, checksum)

        monkeypatch.setattr(PartialOutput, "mark_done", mark_done)

    return arrange


@pytest.mark.parametrize("to", ["folder", "file"])
def test_an_interrupted_run_goes_on_where_it_was(
    source, tmp_path, monkeypatch, interrupted_after, to
):
    extra = ["--gguf"] if to == "file" else []
    whole, output = tmp_path / "whole", tmp_path / "out"
    assert quantize(source, whole, "--format", "q4_0", *extra) == 0
    interrupted_after(5)
    with pytest.raises(InterruptedRunError):
        quantize(source, output, "--format", "q4_0", *extra)
    assert not output.exists()
    assert len((tmp_path / "out.partial" / "done.jsonl").read_text().splitlines()) == 5
    assert not (tmp_path / "out.partial" / "config.json").exists()
    monkeypatch.undo()
    made = []
    real = stream.Worker.make
    monkeypatch.setattr(
        stream.Worker, "make", lambda self, *rows: made.append(rows) or real(self, *rows)
    )
    assert quantize(source, output, "--format", "q4_0", *extra) == 0
    with open_checkpoint(source) as checkpoint:
        assert len({index for index, _, _ in made}) == len(checkpoint.tensors) - 5
    assert contents(output) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]


def contents(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {item.name: item.read_bytes() for item in path.iterdir()}


def test_tensors_that_were_damaged_are_made_again(source, tmp_path, interrupted_after, monkeypatch):
    whole, output = tmp_path / "whole", tmp_path / "out"
    quantize(source, whole, "--format", "q4_0")
    interrupted_after(9)
    with pytest.raises(InterruptedRunError):
        quantize(source, output, "--format", "q4_0")
    monkeypatch.undo()
    weights = tmp_path / "out.partial" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    middle = slice(len(data) // 20, len(data) - len(data) // 20)
    data[middle] = bytes(len(data[middle]))
    weights.write_bytes(data)
    with (tmp_path / "out.partial" / "done.jsonl").open("a") as file:
        file.write('{"name": "lm_h')  # killed while it wrote a line
    assert quantize(source, output, "--format", "q4_0") == 0
    assert contents(output) == contents(whole)


def test_half_written_with_other_options_is_refused(source, tmp_path, capsys, interrupted_after):
    interrupted_after(3)
    with pytest.raises(InterruptedRunError):
        quantize(source, tmp_path / "out", "--format", "q4_0")
    assert quantize(source, tmp_path / "out", "--format", "q8_0") == 1
    error = capsys.readouterr().err
    assert "out.partial: holds a model half written with other format and types;" in error
    assert "or delete the folder" in error


def test_two_runs_at_a_time_are_refused(source, tmp_path, capsys):
    plan = {"version": 0}
    with PartialOutput(tmp_path / "out", "model.safetensors", plan, 100):
        assert quantize(source, tmp_path / "out") == 1
    assert "out.partial: another process is writing this model" in capsys.readouterr().err


@pytest.mark.parametrize("threads", ["2", *thorough("1")])
def test_killed_at_any_moment_it_leaves_no_half_model(tmp_path, threads):
    """A model large enough for several processes, killed again and again until it is whole."""
    source = write_model(
        tmp_path / "source", hidden=1024, ffn=2048, head_dim=128, num_hidden_layers=4
    )
    whole, output = tmp_path / "whole", tmp_path / "out"
    options = ["--format", "q4_0", "--threads", threads]
    done = run_with([str(source), "-o", str(whole), *options])
    assert done.returncode == 0, done.stderr
    journal, kills = tmp_path / "out.partial" / "done.jsonl", 0
    for lines in (1, 9, 20):
        command = [sys.executable, "-m", "lanewise", "quantize", str(source), "-o", str(output)]
        process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE)
        while process.poll() is None and not output.exists():
            if journal.exists() and len(journal.read_text().splitlines()) >= lines:
                process.kill()
                kills += 1
                break
            time.sleep(0.005)
        process.wait()
        process.stderr.close()
        if output.exists():
            break
        assert not (tmp_path / "out.partial" / "config.json").exists()
    assert kills > 0
    done = run_with([str(source), "-o", str(output), *options])
    assert done.returncode == 0, done.stderr
    assert contents(output) == contents(whole)


@pytest.mark.thorough
def test_memory_stays_within_twice_the_largest_tensor(tmp_path):
    """The interpreter, its modules and the mapped pages counted in."""
    sizes = {"num_hidden_layers": 1, "head_dim": 128, "num_attention_heads": 4}
    source = write_model(tmp_path / "source", hidden=512, ffn=65536, **sizes)
    largest = 65536 * 512 * 4
    script = (
        "import re, sys; from lanewise import cli; status = cli.main(sys.argv[1:]);"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1]);"
        "sys.exit(status)"
    )
    command = ["quantize", str(source), "-o", str(tmp_path / "out"), "--threads", "1"]
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.splitlines()[-1]) << 10 < 2 * largest
