"""The picture of ``lanewise compare``: perplexity over bits per weight, and the Pareto front."""

from collections.abc import Sequence
from pathlib import Path

from lanewise.commands.compared import Compared
from lanewise.settings import SettingsError

KINDS = (".png", ".svg")


def check_picture(picture: str | None) -> None:
    """Raise SettingsError if a picture is asked for that cannot be drawn, before any work."""
    if picture is None:
        return
    folder = Path(picture).expanduser().absolute().parent
    if not folder.is_dir():
        raise SettingsError(f"--picture: {folder}: no such directory")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise SettingsError(
            "--picture: needs matplotlib, which is not installed;"
            " accepted after: pip install matplotlib"
        ) from None


def draw(rows: Sequence[Compared], picture: str) -> list[Path]:
    """Draw a PNG and an SVG file; returns their paths."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "lanewise"  # without it identifiers differ by run
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    front = sorted((row for row in rows if row.on_front), key=lambda row: row.bits_per_weight)
    axes.plot(
        [row.bits_per_weight for row in front],
        [row.perplexity for row in front],
        color="tab:blue",
        zorder=1,
        label="Pareto front",
    )
    bits = [row.bits_per_weight for row in rows]
    for row in rows:
        is_right = row.bits_per_weight > (min(bits) + max(bits)) / 2  # labels stay inside
        color = "tab:blue" if row.on_front else "tab:gray"
        axes.scatter(row.bits_per_weight, row.perplexity, color=color, zorder=2)
        place = (row.bits_per_weight, row.perplexity)
        axes.annotate(
            row.name,
            place,
            xytext=(-5 if is_right else 5, 5),
            textcoords="offset points",
            fontsize=8,
            horizontalalignment="right" if is_right else "left",
        )
    axes.axhline(
        rows[0].perplexity, color="tab:green", linewidth=0.8, linestyle="--", label="original"
    )
    axes.set_xlabel("bits per weight, whole file")
    axes.set_ylabel("perplexity")
    axes.set_title(f"Quantized forms of {rows[0].name}")
    axes.legend()
    axes.grid(alpha=0.3)
    stem = Path(picture).expanduser()
    stem = stem.with_suffix("") if stem.suffix in KINDS else stem
    paths = [stem.with_name(stem.name + kind) for kind in KINDS]
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return paths
