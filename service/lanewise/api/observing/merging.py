"""The metrics of several servers as one text, for a Prometheus that knows one address."""

from collections.abc import Mapping


def merged(texts: Mapping[str, str], label: str = "instance") -> str:
    """Texts of Prometheus' format by where they are from, which samples get as ``label``.

    A sample that has the label keeps its own. The samples of a family stay together, after what the
    first text says of it.
    """
    comments: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for origin, text in texts.items():
        value = origin.replace("\\", r"\\").replace('"', r"\"")
        given, family, described = f'{label}="{value}"', "", set(comments)
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                if family not in described:
                    comments.setdefault(family, []).append(line)
            elif line and not line.startswith("#"):
                has_one = f'{{{label}="' in line or f',{label}="' in line
                samples.setdefault(family, []).append(line if has_one else _labelled(line, given))
    lines = [
        line
        for family in dict.fromkeys([*comments, *samples])
        for line in comments.get(family, []) + samples.get(family, [])
    ]
    return "".join(line + "\n" for line in lines)


def _labelled(sample: str, label: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f"{name}{{{label}{'' if rest.startswith('}') else ','}{rest}"
    name, _, value = sample.partition(" ")
    return f"{name}{{{label}}} {value}"
