"""Run clang-tidy over the files of the C library that this machine builds, one process per CPU.

Levels share most of their kernels' sources: two of them are enough but at night.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LEFT_OUT = ("/kernels/avx2/", "/kernels/avx512vbmi/")
UNKNOWN_FLAGS = ("unknown-warning-option", "ignored-optimization-argument")


def main() -> int:
    """Print the findings of every file that has any; 1 if there was one."""
    root = Path(__file__).resolve().parent.parent
    databases = sorted(root.glob("build/py3-none-*/compile_commands.json"))
    if not databases:
        print("no build/py3-none-*/compile_commands.json: run `make setup` first", file=sys.stderr)
        return 1
    database = databases[-1]
    library = str(root / "native/src")  # test programs are in the database where they are built
    compiled = {entry["file"] for entry in json.loads(database.read_text())}
    sources = sorted(path for path in compiled if path.startswith(library))
    if not os.environ.get("LANEWISE_THOROUGH"):
        sources = [path for path in sources if not any(level in path for level in LEFT_OUT)]
    clang_tidy = Path(sys.executable).with_name("clang-tidy")

    def check(source: str) -> bool:
        # The build's compiler may be GCC: flags that clang does not know are not findings.
        command = [clang_tidy, "-p", database.parent, "--quiet", source]
        command += [f"--extra-arg=-Wno-{flag}" for flag in UNKNOWN_FLAGS]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout, done.stderr, sep="\n", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        passed = list(pool.map(check, sources))
    print(f"clang-tidy: {len(sources)} files, {passed.count(False)} with findings")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
