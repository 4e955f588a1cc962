"""What every file of the repository must keep to."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import topics

ROOT = Path(__file__).resolve().parent.parent
KB = 1000
FOLDERS = {".ci", ".github", "deploy", "loadtests", "native", "quantizer", "service", "tests"}
CONFIGURATION = {".clang-format", ".clang-tidy", ".gitignore", ".pre-commit-config.yaml"}
GUIDES = {"ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"}
DOCUMENTS = GUIDES | {"CHANGELOG.md", "LICENSE"}
TOP_LEVEL = FOLDERS | CONFIGURATION | DOCUMENTS | {"Makefile", "pyproject.toml"}
VENDORED = "service/lanewise/api/endpoints/page/vendor/"  # files of others, unchanged
DATA = ("tests/data/", "tests/golden/", "loadtests/results/")
LOCK = "tests/clients/agents/package-lock.json"  # of eight agents
FIELDS = "service/lanewise/loading/programs/reference_fields.json"  # of all families, generated
LARGE_FILES = ("service/lanewise/demo/", FIELDS, *DATA, VENDORED, LOCK)
MAX_LINES = 450
CODE = (".py", ".c", ".h", ".inc", ".sh", ".S", ".js", ".css")
# A path that exists on one machine only, or a package index that only some can reach.
FOREIGN = re.compile(
    r"""(?<![\w.$}/-])/(?:home/(?!lanewise\b)|root/|Users/|work/|mnt/)[\w.-]+|(?:pypi\.org|pythonhosted|\.local\b/)"""
)


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    """Files under version control."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        topics.skip("machine", "not a git checkout: what belongs to the repository is unknown")
    command = ["git", "-C", str(ROOT), "ls-files", "-z"]
    names = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_top_level_holds_what_the_design_lists(tracked):
    assert {path.relative_to(ROOT).parts[0] for path in tracked} <= TOP_LEVEL


def test_no_file_is_too_large(tracked):
    for path in tracked:
        limit = 12_000 * KB if relative(path).startswith(LARGE_FILES) else 60 * KB
        if path.suffix in CODE:
            limit = 1300 * KB if relative(path).startswith(VENDORED) else 40 * KB
        size = path.stat().st_size
        assert size <= limit, f"{relative(path)}: {size} bytes, the limit is {limit}"


def test_no_file_of_code_is_too_long(tracked):
    for path in tracked:
        if path.suffix in CODE and not relative(path).startswith(VENDORED):
            lines = path.read_text(encoding="utf-8").count("\n")
            assert lines <= MAX_LINES, f"{relative(path)}: {lines} lines, the limit is {MAX_LINES}"


def test_the_bundled_model_stays_small(tracked):
    total = sum(p.stat().st_size for p in tracked if relative(p).startswith(LARGE_FILES[0]))
    assert total <= 12_500 * KB


def texts(tracked: list[Path]) -> list[tuple[str, str]]:
    """Names and contents of the text files, this one excepted: it spells out what is forbidden."""
    found = []
    for path in tracked:
        if path == Path(__file__).resolve() or relative(path).startswith(LARGE_FILES):
            continue
        try:
            found.append((relative(path), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


def test_no_text_names_one_machine(tracked):
    for name, text in texts(tracked):
        for number, line in enumerate(text.splitlines(), 1):
            match = FOREIGN.search(line)
            assert not match, f"{name}:{number}: {match[0] if match else ''}"


def test_no_text_has_people_install_a_name_that_is_not_ours(tracked):
    """On the public index anybody can register it: the documents name files of ours."""
    for name, text in texts(tracked):
        if not name.startswith("tests/"):
            match = re.search(
                r"(?:pip|uv|pipx)\b[^\n]* install [^\n`]*(?<![/\w-])lanewise(?![\w/.-])", text
            )
            assert not match, f"{name}: {match[0] if match else ''}"


def test_text_files_end_with_one_newline_and_have_no_trailing_blanks(tracked):
    for name, text in texts(tracked):
        is_data = "/golden/" in name or "/regressions/" in name
        if not text or is_data or name.endswith((".json", ".txt", ".jinja")):
            continue
        assert text.endswith("\n"), f"{name}: no newline at the end"
        assert not text.endswith("\n\n"), f"{name}: blank lines at the end"
        for number, line in enumerate(text.splitlines(), 1):
            assert line == line.rstrip(), f"{name}:{number}: trailing blanks"


def test_every_python_module_says_what_it_is(tracked):
    for path in tracked:
        if path.suffix == ".py" and path.read_text(encoding="utf-8").strip():
            doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            assert doc, f"{relative(path)}: no docstring"
            assert doc.splitlines()[0].endswith((".", ":", ",", "?")) or "\n" in doc, relative(path)


def test_every_header_opens_with_a_comment(tracked):
    for path in tracked:
        if path.suffix == ".h" and relative(path).startswith("native/"):
            first = path.read_text(encoding="utf-8").lstrip()
            assert first.startswith("//"), f"{relative(path)}: does not say what it is"


def test_scripts_are_executable_and_fail_early(tracked):
    for path in tracked:
        if path.suffix == ".sh" or relative(path) == ".ci/run":
            assert path.stat().st_mode & 0o111, f"{relative(path)}: not executable"
            assert "set -euo pipefail" in path.read_text(), (
                f"{relative(path)}: may go on after an error"
            )


def test_makefile_has_the_targets_the_documents_name():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for document in sorted(GUIDES):
        named = set(re.findall(r"(?:`|\$ )make ([a-z][a-z-]*)", (ROOT / document).read_text()))
        assert named <= targets, f"{document}: {named - targets}"


def test_paths_in_the_documents_exist():
    for document in sorted(GUIDES):
        for name in re.findall(
            r"`((?:service|native|quantizer|deploy|tests|loadtests)/[\w./-]*)`",
            (ROOT / document).read_text(),
        ):
            assert (ROOT / name).exists(), f"{document}: {name} does not exist"


def test_the_base_install_needs_no_deep_learning_framework():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", need)[0].lower() for need in project["dependencies"]}
    assert not names & {"torch", "transformers", "tensorflow", "jax"}
