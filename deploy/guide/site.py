"""The guide as a site of static files: ``make docs``. Needs the extra ``docs``, and no network.

Sphinx checks every link and anchor, and a broken one fails the build.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from lanewise import __version__
from lanewise.guide import pages

INDEX = "# Lanewise\n\nServes large language models over the OpenAI API from ordinary CPUs.\n\n"
CONFIG: dict[str, object] = {
    "project": "Lanewise",
    "release": __version__,
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 3,
    # JSON over several lines in a shell command, which Pygments cannot colour.
    "suppress_warnings": ["misc.highlighting_failure"],
    "html_theme": "furo",
    "html_title": "Lanewise",
    "html_copy_source": False,
    "html_show_copyright": False,
}


def write_sources(folder: Path) -> None:
    """The pages as readers elsewhere see them, a list of all, and Sphinx's settings."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    here = set(pages.names())
    parts = [INDEX]
    for part, names in pages.PARTS.items():
        listed = "\n".join(name for name in names if name in here)
        parts.append(f"```{{toctree}}\n:caption: {part}\n:maxdepth: 1\n\n{listed}\n```\n\n")
    (folder / "index.md").write_text("".join(parts), encoding="utf-8")
    (folder / pages.DECISIONS).mkdir()
    for name in (*here, *pages.decisions()):
        (folder / f"{name}.md").write_text(pages.markdown_of(name), encoding="utf-8")
    below = "\n".join(Path(name).name for name in pages.decisions())
    with (folder / pages.DECISIONS / "index.md").open("a", encoding="utf-8") as index:
        index.write(f"\n```{{toctree}}\n:hidden:\n\n{below}\n```\n")
    settings = "".join(f"{name} = {value!r}\n" for name, value in CONFIG.items())
    (folder / "conf.py").write_text(settings, encoding="utf-8")


def main(output: Path) -> int:
    """Build the site; the exit status is that of Sphinx, which fails on any warning."""
    sources = output.with_name(output.name + "-sources")
    write_sources(sources)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-E"]
    status = subprocess.run([*command, str(sources), str(output)], check=False).returncode
    if status == 0:
        print(f"{output}/index.html")
    return status


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]).resolve()))
