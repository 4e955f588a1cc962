"""How byte-level BPE text is cut before merging: the names that GGUF files have for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lanewise.loading.vocabulary.tekken import PATTERN as TEKKEN


@dataclass(frozen=True)
class PreTokenizer:
    """How byte-level BPE text is cut before merging: by each pattern in turn."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is that token, whatever the merges say
    nfc: bool = False
    add_bos: bool = False  # when the file does not say


CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + WORDS.replace("DIGITS", "{1,3}")
QWEN2 = CONTRACTIONS + WORDS.replace("DIGITS", "")
MINICPM5 = CONTRACTIONS + WORDS.replace("DIGITS", "+")
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED_CODER = QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")
BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
EXAONE_MOE = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)


def _by_case(digits: str, *, contractions: str = "", without: str = "", slash: str = "/") -> str:
    """Words end where lower case becomes upper case, as OpenAI's newer vocabularies cut them."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{without}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{before}{upper}*{lower}+{contractions}|{before}{upper}+{lower}*{contractions}"
        rf"|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n{slash}]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


GPT4O = _by_case("{1,3}", contractions=CONTRACTIONS + "?")
# Words of scripts without cases stand apart, and Han and kana.
YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
    "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    _by_case("", contractions=CONTRACTIONS + "?"),
)
HAN = r"[\p{Han}]+"
KIMI_K2 = (
    HAN
    + "|"
    + _by_case("{1,3}", contractions=CONTRACTIONS + "?", without=r"&&[^\p{Han}]", slash="")
)
IDEOGRAPHS = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters that have a case, of the Unicode of its time.
CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# \s+$, which begins anew at each space of a line that goes on; this begins where they begin.
SPACES_AT_END = r"(?<!\s)\s+$"
DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    SPACES_AT_END,
    IDEOGRAPHS,
    r"\p{N}+",
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
# Digits in threes, counted from their end; as Tiny Aya has it, and as AFMoE has it.
THREES = r"\d{1,3}(?=(?:\d{3})*\b)"
NUMBERS_IN_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
BETWEEN_THREES = r"(?=(\d{3})+(?!\d))"
# Scripts that put no spaces between words.
UNSPACED = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff"
    "\uac00-\ud7af\u1100-\u11ff]+"
)
SPARK = (
    *DEEPSEEK_V3[:2],
    DEEPSEEK_V3[2].replace(r"[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+", r"[\p{P}\p{S}]+|[\r\n]"),
    r"\p{N}",
)
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# Blanks fall into powers of two.
JAIS2 = LLAMA3.replace(
    r"\s+(?!\S)|\s+",
    "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}",
)
CHAMELEON = (
    "<sentinel:[0-9]+>",
    "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
    r"([\t\n]|    |  )",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    GPT2,
)
# What cuts nothing but lines: the vocabulary is SentencePiece's, with merges of its own.
PIECES = ("gemma4", "granite-embed-multi-311m", "sarvam-moe")
DEFAULT = "default"
# Each way of cutting with its names in tokenizer.ggml.pre.
_NAMES: tuple[tuple[PreTokenizer, str], ...] = (
    (
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
        DEFAULT,
    ),
    (
        PreTokenizer((LLAMA3,), ignore_merges=True, add_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (PreTokenizer((LLAMA3,)), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer((LLAMA3,), ignore_merges=True), "glm4 glm5"),
    (PreTokenizer((TEKKEN,), ignore_merges=True, add_bos=True), "tekken"),
    (PreTokenizer((THREES, GPT4O)), "tiny_aya cohere2moe"),
    (PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]")), "falcon"),
    (PreTokenizer((GPT4O,)), "gpt-4o llama4 kanana2 minimax-m2 talkie"),
    (PreTokenizer((KIMI_K2,)), "kimi-k2"),
    (PreTokenizer((QWEN2,), nfc=True), "qwen2 kormo f2llmv2"),
    (PreTokenizer((QWEN2,)), "deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2"),
    (PreTokenizer((r"[^\n]+|\n+", QWEN2)), "laguna"),
    (PreTokenizer((QWEN35,), nfc=True), "qwen35"),
    (PreTokenizer((r"\p{N}{1,3}", MINICPM5), ignore_merges=True), "minicpm5"),
    (PreTokenizer((SEED_CODER,)), "seed-coder"),
    (PreTokenizer((BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    (PreTokenizer((EXAONE_MOE,)), "exaone-moe"),
    (
        PreTokenizer((GPT2,)),
        "gpt-2 phi-2 mpt olmo jais exaone4 modern-bert granite-docling trillion gigachat mellum"
        " a.x-4.0 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
    ),
    (
        PreTokenizer((r"\p{N}", GPT2)),
        "starcoder refact smollm codeshell exaone minerva-7b mellum2",
    ),
    (PreTokenizer((r"\p{N}", GPT2), nfc=True), "command-r"),
    (PreTokenizer(DEEPSEEK_LLM), "deepseek-llm"),
    (
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", IDEOGRAPHS, r"\p{N}")),
        "deepseek-coder",
    ),
    (PreTokenizer(DEEPSEEK_V3), "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (PreTokenizer(SPARK), "spark2_5"),
    (PreTokenizer(YOUTU, ignore_merges=True), "youtu"),
    (PreTokenizer((GPT4O,), ignore_merges=True), "granite-embed-multi-97m"),
    (PreTokenizer((r"\p{N}+", BETWEEN_THREES)), "superbpe"),
    (PreTokenizer((NUMBERS_IN_THREES, UNSPACED, DEEPSEEK_V3[2])), "afmoe"),
    (PreTokenizer((BLOOM,)), "bloom poro-chat gpt3-finnish"),
    (PreTokenizer((BLOOM, r"\p{N}")), "viking"),
    (PreTokenizer((JAIS2,)), "jais-2"),
    (PreTokenizer(CHAMELEON, add_bos=True), "chameleon"),
    (PreTokenizer((QWEN2.removeprefix(CONTRACTIONS + "|"),)), "ufakzeka"),
)
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    name: pre for pre, names in _NAMES for name in names.split()
}
# Those of OpenAI's vocabulary of 2022, which files of others have.
CL100K = tuple(
    contractions
    + r"|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
    for contractions in (CONTRACTIONS, r"'(?i:[sdmt]|ll|ve|re)")
)
# Regular expressions that take time in proportion to a text, whatever the text (measured).
LINEAR = frozenset(
    {pattern for pre in PRE_TOKENIZERS.values() for pattern in pre.patterns}
    | {*CL100K, " {2,}", r"[^\n]+|\n+", r"[0-9][0-9][0-9]", r"\s"}
) - {THREES, NUMBERS_IN_THREES, BETWEEN_THREES}
