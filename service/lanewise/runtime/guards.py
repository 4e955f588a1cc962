"""Names the file when a mapped one shrinks: the last line before SIGBUS ends the process."""

import logging
import mmap
from weakref import WeakSet, finalize

from lanewise.loading.base.mapped_file import mappings
from lanewise.native.library import Native, NativeError, native

logger = logging.getLogger(__name__)

_guarded: WeakSet[mmap.mmap] = WeakSet()


def guard_mappings() -> None:
    """Have the library name the files that are mapped now, should reading one of them fail.

    That is a help to people and nothing depends on it: a refusal is only logged.
    """
    library = native()
    for mapped, mapping in mappings():
        if mapped in _guarded:
            continue
        address, n_bytes = _range_of(library, mapped)
        path = str(mapping.path.absolute()).encode()
        try:
            library.check(library.lib.lw_guard_mapping(address, n_bytes, path))
        except NativeError as error:
            logger.warning("%s: %s", mapping.path, error)
            return
        _guarded.add(mapped)
        # Called once, by whichever comes first: the file is closed, or its last view is gone.
        mapping.at_end.append(finalize(mapped, library.lib.lw_unguard_mapping, address))


def _range_of(library: Native, mapped: mmap.mmap) -> tuple[object, int]:
    with library.ffi.from_buffer("char[]", mapped) as view:
        return library.ffi.cast("const void*", view), len(view)
