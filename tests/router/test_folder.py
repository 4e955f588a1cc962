"""The folder of a router's sockets."""

import os
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from lanewise.router.folder import MAX_ABOVE, PREFIX, socket_folder
from lanewise.settings import SettingsError
from toy_router import toy_router


@pytest.fixture
def above(monkeypatch):
    """A folder whose name is short enough."""
    with tempfile.TemporaryDirectory(prefix="lw") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_a_folder_in_use_stays_and_goes_with_its_router(above):
    with socket_folder() as first:
        (first / "1.sock").touch()
        assert first.stat().st_mode & 0o777 == 0o700
        with socket_folder() as second:
            assert sorted(above.iterdir()) == sorted([first, second])
        assert list(above.iterdir()) == [first]
    assert not list(above.iterdir())


def test_what_is_not_a_router_s_stays(above):
    elsewhere = above / "elsewhere"
    elsewhere.mkdir()
    (above / f"{PREFIX}link").symlink_to(elsewhere)
    (above / f"{PREFIX}file").touch()
    (above / f"{PREFIX}left").mkdir()
    with socket_folder():
        assert not (above / f"{PREFIX}left").exists()
    names = {path.name for path in above.iterdir()}
    assert names == {"elsewhere", f"{PREFIX}link", f"{PREFIX}file"}


def test_a_folder_whose_name_leaves_no_room_for_sockets_is_refused(monkeypatch):
    for length, fits in ((MAX_ABOVE, True), (MAX_ABOVE + 1, False)):
        monkeypatch.setattr(tempfile, "tempdir", os.path.join("/tmp", "x" * (length - 5)))
        Path(tempfile.tempdir).mkdir(exist_ok=True)
        try:
            if fits:
                with socket_folder() as folder, socket.socket(socket.AF_UNIX) as unix:
                    unix.bind(str(folder / "1234567.sock"))
            else:
                with pytest.raises(SettingsError, match=f"TMPDIR: .* at most {MAX_ABOVE}"):
                    socket_folder().__enter__()
        finally:
            Path(tempfile.tempdir).rmdir()


def test_a_killed_router_s_folder_is_removed_by_the_next(tmp_path):
    catalogue = {"models": [{"name": "a", "model": "a.gguf", "memory": 1}], "memory": 2}
    with toy_router(tmp_path, catalogue) as router:
        router.client.post("/models/load", json={"model": "a"})
        [child] = router.children()
        [left] = router.folder.iterdir()
        assert {file.suffix for file in left.iterdir()} == {".sock", ".yaml"}
        router.stop(signal.SIGKILL)
        assert left.exists()
        os.kill(child, signal.SIGKILL)  # a toy does not end with its router
    with toy_router(tmp_path, catalogue) as router:
        [folder] = router.folder.iterdir()
        assert folder != left
