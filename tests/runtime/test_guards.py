"""Mapped files are known to the library by name as long as they are mapped, and no longer."""

import gc
import re

import pytest

import tiny_models
from gguf_values import split_gguf
from lanewise.loading.base.checkpoint import ModelFileError
from lanewise.loading.base.mapped_file import MappedFile, mappings
from lanewise.loading.checkpoints.opening import open_checkpoint
from lanewise.native.library import native
from lanewise.runtime import Model, guards

pytestmark = [pytest.mark.native, pytest.mark.usefixtures("library")]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"x" * 10_000)
    file = MappedFile(path)
    yield file
    file.close()


def address_of(file: MappedFile):
    ((mapped, _),) = [one for one in mappings() if one[1].path == file.path]
    return guards._range_of(native(), mapped)[0]


def is_guarded(address) -> bool:
    """Whether the library knows it: no range may be guarded twice."""
    lib = native().lib
    if lib.lw_guard_mapping(address, 1, b"a test") != lib.LW_OK:
        return True
    assert lib.lw_unguard_mapping(address) == lib.LW_OK
    return False


def test_a_file_is_guarded_until_it_is_closed(file):
    address = address_of(file)
    assert not is_guarded(address)
    guards.guard_mappings()
    guards.guard_mappings()
    assert is_guarded(address)
    file.close()
    assert not is_guarded(address)


def test_a_closed_file_is_guarded_while_somebody_views_it(file):
    guards.guard_mappings()
    address, view = address_of(file), file.view[10:20]
    file.close()
    assert is_guarded(address)
    view.release()
    file.close()
    assert not is_guarded(address)


def test_a_forgotten_file_is_guarded_no_more(tmp_path):
    path = tmp_path / "forgotten"
    path.write_bytes(b"x" * 10_000)
    file = MappedFile(path)
    guards.guard_mappings()
    address = address_of(file)
    del file
    gc.collect()
    assert not is_guarded(address)


@pytest.mark.parametrize("kind", ["folder", "parts"])
def test_a_file_that_changes_while_it_is_loaded_is_refused(kind, tmp_path):
    """Also one of several: what is given names the first part only."""
    tiny = tiny_models.tiny_model("llama2")
    if kind == "folder":
        given = tiny_models.write_hf(tiny, tmp_path / "m")
        weights = given / "model.safetensors"
    else:
        given, weights = split_gguf(tiny_models.write_gguf(tiny, tmp_path / "m.gguf"), 2)

    def overwrite(done: int, total: int) -> None:
        if done == 0:
            with weights.open("r+b") as out:
                out.seek(-4, 2)
                out.write(b"zzzz")

    with open_checkpoint(given) as checkpoint:
        says = f"^{re.escape(str(weights))}: changed while it was loaded"
        with pytest.raises(ModelFileError, match=says):
            Model.load(checkpoint, progress=overwrite)
    with open_checkpoint(given) as checkpoint, Model.load(checkpoint) as model:
        assert model.info.packed_bytes > 0
