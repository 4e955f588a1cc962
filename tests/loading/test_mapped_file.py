"""What is known of mapped files: which there are, whether they changed, and when they end."""

import os
from pathlib import Path

import pytest

from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.mapped_file import MappedFile, Mapping, mappings


def mapping_of(file: MappedFile) -> Mapping:
    (found,) = [mapping for _, mapping in mappings() if mapping.path == file.path]
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 10_000)
    os.utime(path, (1, 1))
    file = MappedFile(path)
    yield file
    file.close()


def overwrite(path):
    with path.open("r+b") as out:
        out.write(b"y")


def replace(path):
    new = path.with_suffix(".new")
    new.write_bytes(b"another file")
    new.rename(path)


@pytest.mark.parametrize(
    ("change", "is_changed"),
    [
        (lambda path: None, False),
        (overwrite, True),
        (lambda path: os.truncate(path, 9_999), True),
        (lambda path: os.truncate(path, 10_001), True),
        (replace, False),
        (lambda path: path.unlink(), False),
        (lambda path: path.chmod(0o400), False),
    ],
)
def test_only_what_is_done_to_the_mapped_file_itself_is_a_change(file, change, is_changed):
    change(file.path)
    assert mapping_of(file).is_changed() is is_changed


def test_a_closed_file_is_mapped_while_somebody_views_it(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"x" * 100)
    file, ended = MappedFile(path), []
    mapping_of(file).at_end.append(lambda: ended.append(path))
    view = file.view[10:20]
    file.close()
    assert mapping_of(file).path == path
    assert not ended
    view.release()
    file.close()
    assert ended == [path]
    assert path not in [mapping.path for _, mapping in mappings()]


def test_a_pipe_is_no_model_and_nobody_waits_for_its_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match=r"pipe\.gguf: not a file"):
        MappedFile(tmp_path / "pipe.gguf")


def test_a_device_is_no_model():
    with pytest.raises(ModelFileError, match=r"/dev/zero: not a file"):
        MappedFile(Path("/dev/zero"))
