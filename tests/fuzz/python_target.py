"""Runs a Python target under the fuzzer: ``python -m tests.fuzz.python_target NAME [option …]``."""

import os
import sys
from importlib.machinery import PathFinder
from random import Random

import atheris

from lanewise.native.library import library_path
from tests.fuzz.names import ROOT, module_of

INSTRUMENTED = ["lanewise", "jinja2"]


def load_from_sources() -> None:
    """Let files be found by path first: what an editable install's finder loads has no coverage.

    The library lies in the install's other folder, which only that finder knows: it is asked first,
    and the modules that were imported for the question are imported once more, with coverage.
    """
    os.environ["LANEWISE_LIBRARY"] = str(library_path())
    for name in [name for name in sys.modules if name.partition(".")[0] == "lanewise"]:
        del sys.modules[name]
    sys.path[:0] = [str(ROOT / "service"), str(ROOT / "quantizer")]
    sys.meta_path.sort(key=lambda finder: finder is not PathFinder)


def main(name: str, *options: str) -> None:
    """Never returns: the fuzzer ends the process."""
    load_from_sources()
    with atheris.instrument_imports(include=INSTRUMENTED):
        target = module_of(name)
        target.one_input(b"")  # some modules are imported when they are needed
    mutate = getattr(target, "mutate", None)  # what knows the form of its inputs

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if mutate is not None and random.random() < 0.5:
            changed: bytes = mutate(data, random)
            if len(changed) <= most:
                return changed
        return atheris.Mutate(data, most)

    atheris.Setup([sys.argv[0], *options], target.one_input, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
