"""Opening the library: the header as cffi definition, versions, missing files."""

import re
import shutil
from pathlib import Path

import cffi
import pytest

from lanewise.loading.base.checkpoint import Role
from lanewise.loading.base.formats import TensorType
from lanewise.native import library

HEADER = Path(__file__).parents[2] / "native" / "include" / "lanewise.h"
CDEF = library.definitions(HEADER)


def test_cffi_reads_the_header_between_its_markers():
    ffi = cffi.FFI()
    ffi.cdef(CDEF)
    assert ffi.sizeof("lw_sampled") == 4 * (4 + 2 * 20)


def test_header_has_the_abi_version_this_package_was_written_for():
    found = re.search(r"LW_ABI_VERSION = (\d+)", CDEF)
    assert int(found[1]) == library.ABI_VERSION


def test_roles_have_the_numbers_of_the_header():
    enum = re.search(r"typedef enum lw_role \{(.*?)\} lw_role", CDEF, re.DOTALL)[1]
    in_header = {name: int(n) for name, n in re.findall(r"LW_(\w+) = (\d+)", enum)}
    count = in_header.pop("ROLE_COUNT")
    assert {role.name: role.value for role in Role if role < count} == in_header


def test_types_have_the_numbers_of_the_header():
    enum = re.search(r"typedef enum lw_type \{(.*?)\} lw_type", CDEF, re.DOTALL)[1]
    for name, number in re.findall(r"LW_(\w+) = (\d+)", enum):
        if name not in ("I4", "I8_I4"):  # of caches alone
            assert TensorType[name] == int(number)


@pytest.mark.parametrize("text", ["", "// cdef-begin\n", "// cdef-end\n// cdef-begin\n"])
def test_header_without_its_markers_is_refused(tmp_path, text):
    (tmp_path / "lanewise.h").write_text(text)
    with pytest.raises(library.LibraryMissingError, match=r"lanewise\.h: needs one line"):
        library.definitions(tmp_path / "lanewise.h")


def test_header_without_one_of_its_parts_is_refused(tmp_path):
    shutil.copy(HEADER, tmp_path)
    with pytest.raises(library.LibraryMissingError, match=r"a part cannot be read.*types\.h"):
        library.definitions(tmp_path / "lanewise.h")


def test_every_file_of_the_interface_is_included_once():
    included = re.findall(r'^#include "(.+)"$', HEADER.read_text(), re.MULTILINE)
    files = [path.relative_to(HEADER.parent).as_posix() for path in HEADER.parent.rglob("*/*.h")]
    assert sorted(included) == sorted(files)


def test_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "liblanewise.so").write_bytes(b"not ELF")
    with pytest.raises(library.LibraryMissingError, match=r"liblanewise\.so: cannot be opened"):
        library.Native(HEADER, tmp_path / "liblanewise.so")


def test_override_that_does_not_exist_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("LANEWISE_LIBRARY", str(tmp_path / "gone.so"))
    with pytest.raises(library.LibraryMissingError, match=r"LANEWISE_LIBRARY: .*gone\.so"):
        library.library_path()


def test_header_of_another_version_is_refused(tmp_path, monkeypatch):
    header = tmp_path / "lanewise.h"
    shutil.copytree(HEADER.parent, tmp_path, dirs_exist_ok=True)
    types = tmp_path / "lanewise" / "types.h"
    current = f"LW_ABI_VERSION = {library.ABI_VERSION}"
    types.write_text(types.read_text().replace(current, "LW_ABI_VERSION = 99"))

    class OldLibrary:
        LW_ABI_VERSION = 99

        def lw_abi_version(self):
            return 1

    monkeypatch.setattr(cffi.FFI, "dlopen", lambda self, path: OldLibrary())
    with pytest.raises(library.LibraryMissingError, match=r"ABI version 1, .* says 99"):
        library.Native(header, tmp_path / "liblanewise.so")


def test_statuses_that_python_tells_apart_are_those_of_the_header():
    assert f"LW_ERR_NO_TOKEN = {library.NO_TOKEN} " in CDEF
