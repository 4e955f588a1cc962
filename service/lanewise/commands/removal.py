"""``lanewise rm``: deletes a model that was downloaded."""

import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path

from lanewise.commands.downloads import downloads
from lanewise.host import format_size
from lanewise.settings import RemoveSettings, SettingsError, flag_of


def run(settings: RemoveSettings, sources: Mapping[str, str]) -> None:
    """Delete it from its cache, and say what that frees. Files of the user are never touched."""
    # Nothing is deleted because a variable or file names it for the server.
    if settings.model is None or sources.get("model") != flag_of("model"):
        raise SettingsError("MODEL: not given; accepted: a name that `lanewise list` prints")
    known = {one.name: one for one in downloads()}
    found = known.get(settings.model)
    if found is None:
        close = difflib.get_close_matches(settings.model, known, n=1)
        names = f"did you mean {close[0]}?" if close else "accepted: what `lanewise list` prints"
        raise SettingsError(f"MODEL: {settings.model!r} was not downloaded; {names}")
    path = Path(found.path)
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    print(f"{found.name}: deleted, {format_size(found.n_bytes)} are free")
