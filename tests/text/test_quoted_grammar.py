"""Grammars of texts inside strings of JSON: the texts are the same, and no others."""

import json

import pytest

from lanewise.text.grammar import GrammarCompiler, GrammarError, GrammarSource
from lanewise.text.quoted_grammar import quoted_grammar
from toy_tokenizer import toy_tokenizer

PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF
end: "*** End" LF?
hunk: "*** Add: " filename LF add_line+
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""
CODE = r"""
// What a small language looks like.
start: statement+
statement: NAME "=" value ";"
value: INT | STRING | "a".."c"
NAME: LETTER (LETTER | "_")*
STRING: /"[^"]*"/
%import common.LETTER
%import common.INT
%import common.WS
%ignore WS
"""
# A grammar, texts of it, and texts that are none.
CASES = [
    (
        PATCH,
        ['*** Begin\n*** Add: a"\\b\n+x\t"y"\n+\n*** End', "*** Begin\n*** Add: ü\n+\n*** End\n"],
    ),
    (PATCH, [], ["*** Begin\n*** Add: a\nx\n*** End", "*** Begin\n*** End", "*** Begin"]),
    (CODE, ['x = "a\n\\" ;', "x=12;\n y_y =\tb;"], ["x = d;", 'x = "', "1 = 2;"]),
    (r'start: /a[\n"b-d]{2}(e|\\)?/', ['a\n"', "abd", "add\\", 'a"be'], ["a\n", "aee", "abb/"]),
    (r"start: /\x41\u{42}\S+\s/", ['AB""\n', "AB\x01é "], ["AB \n", "ABx", "aBx "]),
    (r"start: /./", ["a", '"', "\\", "\x00", "é", "😀"], ["\n", "", "ab"]),
    (r"start: /.(|x)/s", ["\n", "\nx", "ax"], ["\n\n"]),
    ('start: "a\\n\\"" A? "b"i\nA: "\\\\" | "\\x09"', ['a\n"b', 'a\n"\\B', 'a\n"\tb'], ['a\n""b']),
]
REFUSED = [
    r"start: /^a/",
    r"start: /\bx/",
    r"start: /[[a-z]&&[b]]/",
    "start: <think>",
    'start: %json {"type": "string"}',
    "start: @other",
    'start: "\\n"i',
    "start: A\nA: /a/\n%ignore /a\\n|b/",
]


@pytest.fixture(scope="module")
def accepts():
    tokenizer = toy_tokenizer()
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)

    def accepts(grammar, text):
        matcher = compiler.compile(GrammarSource("lark", grammar)).new_matcher()
        ids = tokenizer.encode_inside(text)
        if matcher.validate_tokens(ids) < len(ids):
            return False
        return matcher.consume_tokens(ids) and matcher.is_accepting()

    return accepts


@pytest.mark.parametrize("case", CASES)
def test_the_same_texts_and_no_others(accepts, case):
    grammar, good, bad = (*case, [])[:3]
    quoted = quoted_grammar(grammar)
    for text in [*good, *bad]:
        inside = json.dumps(text, ensure_ascii=False)[1:-1]
        expected = text in good
        assert accepts(grammar, text) == expected, text
        assert accepts(quoted, inside) == expected, text
        assert accepts(f'start: "<" %lark {{\n{quoted}\n}} ">"', f"<{inside}>") == expected


@pytest.mark.parametrize("grammar", REFUSED)
def test_what_has_no_such_form_is_refused(grammar):
    with pytest.raises(GrammarError, match=r"cannot be used|no form|escapes"):
        quoted_grammar(grammar)
