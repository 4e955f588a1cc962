"""Comments and docstrings name the thing that acts: a stranger must know what is meant."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("native/include", "native/src", "service/lanewise", "quantizer")
C_FILES = {".c", ".h", ".inc", ".S"}
# Here no sentence begins with a word that stands for the thing: it says the thing's name instead.
STRICT = ("native/include/", "native/src/")
VAGUE = re.compile(r"\b(?:whoever|nobody|those's)\b", re.IGNORECASE)
BEGINNING = re.compile(r"(?:^|[.:!?]\s+)(?:Who|Whoever|Those who|Nobody)\b(?! *\?)")
# A comment behind code begins in lower case. "Such as" gives examples.
STRICT_BEGINNING = re.compile(
    r"(?:(?:^|[.:!?]\s+)(?:Who|Whoever|Whose|Those|Such(?! as\b)|Others|Else|Likewise|Nobody)"
    r"|^(?:who|whose|those|such(?! as\b)|others|else|likewise))\b(?! *\?)"
)
HINT = re.compile(r"(?i:whoever|nobody|those's)|\bWho\b|\bThose\b")
# Literals come first, so that what looks like a comment inside one is none.
C_TOKEN = re.compile(
    r"""(?P<literal>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"""|(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)""",
    re.DOTALL,
)


def joined(comments):
    """Comments (line, last line, column, text, behind code), with adjacent whole lines as one."""
    found = []
    for first, last, column, text, behind_code in comments:
        before = found[-1] if found else None
        if before and first == before[1] + 1 and column == before[2] and not behind_code:
            found[-1] = (before[0], last, column, f"{before[3]} {text}")
        else:
            found.append((first, last, column, text))
    return [(line, " ".join(text.split())) for line, _, _, text in found]


def c_comments(source):
    found = []
    for match in C_TOKEN.finditer(source):
        if match["comment"] is None:
            continue
        first = source.count("\n", 0, match.start()) + 1
        before = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        text = re.sub(r"^(?://+|/\*+)|\*/$|\n\s*\*(?!/)", " ", match["comment"])
        last = first + match["comment"].count("\n")
        found.append((first, last, len(before), text, bool(before.strip())))
    return joined(found)


def python_comments(source):
    """Comments and docstrings."""
    found = [
        (line, line, column, token.string.lstrip("#:"), bool(token.line[:column].strip()))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
        for line, column in (token.start,)
    ]
    texts = joined(found)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                texts.append((node.body[0].lineno, " ".join(doc.split())))
    return texts


def faults(name, source):
    """What a file's comments and docstrings say that leaves open which thing acts."""
    strict = name.startswith(STRICT)
    if not strict and not HINT.search(source):
        return []
    comments = python_comments if name.endswith(".py") else c_comments
    return [
        f"{name}:{line}: {match[0].strip('.:!? ')!r} in {text[:100]!r}"
        for line, text in comments(source)
        for pattern in (VAGUE, STRICT_BEGINNING if strict else BEGINNING)
        for match in pattern.finditer(text)
    ]


def files(folder):
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in C_FILES | {".py"} and path.is_file():
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_name_the_thing_that_acts(folder):
    sources = list(files(folder))
    assert sources
    found = [fault for name, source in sources for fault in faults(name, source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [
        ("a.c", "int a;\nint b;  // for whoever waits\n", 2),
        ("a.h", "// It waits.\n// Nobody else does.\n", 1),
        ("a.h", "/* Read by\n * nobody. */\n", 1),
        ("a.c", 'char* s = "// \\" text";  // those\'s place\n', 1),
        ("a.inc", "// It waits. Those who\n// come later do not.\n", 1),
        ("a.py", '"""Who is next."""\n', 1),
        ("a.py", '"""A."""\n\ndef f():\n    """Free.\n\n    Whoever asks.\n    """\n', 4),
        ("a.py", '"""A."""\n\nx = 1  # nobody\'s\n', 3),
        ("a.py", '"""A."""\n\n# Those\n# who wait.\n', 3),
        ("native/src/a.c", "// It waits. Those of the\n// others do not.\n", 1),
        ("native/src/a.c", "int a;  // one\nint b;  // those of a\n", 2),
        ("native/src/a.S", "nop  // likewise\n", 1),
        ("native/src/a.inc", "// As it is. Else it is copied.\n", 1),
        ("native/src/a.h", "// Whose is what.\n", 1),
        ("native/include/a.h", "/* Such a row is zero. */\n", 1),
        ("native/include/a.h", "// Rows: Others have none.\n", 1),
        ("native/include/a.h", "enum { A };  // One.\n             // Likewise two.\n", 1),
    ],
)
def test_vague_words_are_found(name, source, line):
    found = faults(name, source)
    assert [one.startswith(f"{name}:{line}:") for one in found] == [True] * max(1, len(found))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        (
            "native/src/a.c",
            "// Rows are zero, else the sum is\n// others' or those of such a row.\n",
        ),
        ("native/src/a.h", "int a;  // as b, likewise\n        // such as this\n"),
        ("native/include/a.h", "// Names. Such as q4_0.\nint such;  // such as q4_0\n"),
        ("native/include/a.h", "// Thread 0 waits. Elsewhere no thread does.\n"),
        ("tests/native/a.c", "// Those of the caller.\nint a;  // likewise\n"),
    ],
)
def test_other_sentences_are_not(name, source):
    assert faults(name, source) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.c", 'const char* s = "nobody";  // a name\n'),
        ("a.c", 'const char* s = "// nobody";\nint nobody;\n'),
        ("a.py", '"""A."""\n\nTEXT = "nobody"\nnobody = "# Who"  # a client that waits\n'),
    ],
)
def test_code_and_texts_may_hold_them(name, source):
    assert faults(name, source) == []
