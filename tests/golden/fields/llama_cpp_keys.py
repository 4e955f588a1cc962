"""Finds what llama.cpp reads of GGUF metadata: from its sources, by architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

KEY = re.compile(r"\bLLM_KV_\w+")
BODY = re.compile(
    r"^\S[^\n;]*?\b(?P<cls>\w+)::load_arch_hparams\([^;]*?\{$(?P<body>.*?)^\}", re.M | re.S
)
MADE = re.compile(r"case (?P<arch>LLM_ARCH_\w+):|return new (?P<cls>\w+)\(params\)")
BASE = re.compile(r"struct (llama_model_\w+)\s*:\s*public (llama_model_\w+)")


class LlamaCpp:
    """The sources of a release."""

    def __init__(self, source: Path) -> None:
        names = (source / "llama-arch.cpp").read_text()
        model = (source / "llama-model.cpp").read_text()
        self.keys = dict(re.findall(r'\{\s*(LLM_KV_\w+),\s*"%s\.([^"]+)"\s*\}', names))
        self.archs = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', names))
        self.bases = dict(BASE.findall((source / "models" / "models.h").read_text()))
        self.of_all = self.named(model)
        self.of_class = {
            found["cls"]: self.named(found["body"])
            for file in sorted((source / "models").glob("*.cpp"))
            for found in BODY.finditer(file.read_text())
        }
        self.classes = dict(self.made_of(model))

    def named(self, code: str) -> set[str]:
        """Return the keys that code names, without the architecture before them."""
        return {self.keys[name] for name in KEY.findall(code) if name in self.keys}

    def made_of(self, model: str) -> Iterator[tuple[str, str]]:
        """Return the class of each architecture, by the switch that makes them."""
        waiting: list[str] = []
        for found in MADE.finditer(model):
            if found["arch"]:
                waiting.append(self.archs.get(found["arch"], ""))
            else:
                yield from ((arch, found["cls"]) for arch in waiting)
                waiting = []

    def keys_of(self, arch: str) -> list[str]:
        """Return the keys that an architecture's loader reads beside those of all."""
        if arch not in self.classes:
            raise SystemExit(f"llama.cpp does not know {arch!r}")
        own: str | None = self.classes[arch]
        while own is not None and own not in self.of_class:
            own = self.bases.get(own)
        return sorted(self.of_class.get(own or "", set()) - self.of_all)
