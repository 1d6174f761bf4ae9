"""The work folder without bubblewrap: whatever a program makes of it, it goes away and nothing else is touched."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hostile import FOLDERS, Leftovers

from tasks import sandbox
from tasks.sandbox import run_program
from tasks.sandbox_folder import WorkFolder


@pytest.fixture
def victim(tmp_path):
    """A folder that must not change in any way."""
    folder = tmp_path / "victim"
    (folder / "inner").mkdir(parents=True)
    secret = folder / "inner" / "secret"
    secret.write_text("key")
    secret.chmod(0o400)
    (folder / "inner").chmod(0o500)

    def state():
        paths = [folder, *sorted(folder.rglob("*"))]
        return [(path, path.stat().st_mode, path.stat().st_uid, path.stat().st_mtime_ns) for path in paths], (
            secret.read_text()
        )

    before = state()
    yield folder
    assert state() == before
    (folder / "inner").chmod(0o700)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_programs_leave(victim, name):
    sandbox.set_mode("rlimit")
    try:
        with Leftovers():
            run_program(FOLDERS[name].replace("VICTIM", str(victim)), timeout=5)
    finally:
        sandbox.set_mode("auto")


def moved_away(folder, victim):
    os.rename(folder.path, victim.parent / "moved")
    os.symlink(victim, folder.path)


def both_moved_away(folder, victim):
    moved_away(folder, victim)
    os.rename(folder.outer, victim.parent / "outer")
    os.symlink(victim, folder.outer)


def links_inside(folder, victim):
    os.symlink(victim, folder.path + "/link")
    os.mkdir(folder.path + "/a")
    os.symlink(victim / "inner", folder.path + "/a/link")
    os.link(victim / "inner" / "secret", folder.path + "/a/hard")
    os.chmod(folder.path + "/a", 0)
    os.chmod(folder.path, 0)


def replaced_by_a_file(folder, victim):
    os.rmdir(folder.path)
    os.rmdir(folder.outer)
    Path(folder.outer).write_text("x")


def already_gone(folder, victim):
    os.rmdir(folder.path)
    os.rmdir(folder.outer)


def deeper_than_recursion_goes(folder, victim):
    start = os.getcwd()
    os.chdir(folder.path)
    try:
        for _ in range(1100):
            os.mkdir("d")
            os.chdir("d")
        os.symlink(victim, "link")
    finally:
        os.chdir(start)


@pytest.mark.parametrize(
    "attack", [moved_away, both_moved_away, links_inside, replaced_by_a_file, already_gone, deeper_than_recursion_goes]
)
def test_removal_touches_nothing_else(victim, attack):
    """Without Landlock an ordinary user's program can do all of this."""
    descriptors, before = len(os.listdir("/proc/self/fd")), set(os.listdir(victim.parent))
    folder = WorkFolder()
    Path(folder.path, "file").write_text("x") if attack not in (replaced_by_a_file, already_gone) else None
    attack(folder, victim)
    folder.remove()
    assert not os.path.lexists(folder.outer)
    assert set(os.listdir(victim.parent)) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_another_user_can_pass_through_to_its_folder_and_to_nothing_beside_it():
    folder = WorkFolder()
    try:
        assert stat.S_IMODE(os.stat(folder.outer).st_mode) == 0o711
        assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    finally:
        folder.remove()


def test_no_descriptor_left_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    opened = os.open
    for count in (0, 1):
        left = [count]

        def failing(*arguments, left=left, **keywords):
            left[0] -= 1
            if left[0] < 0:
                raise OSError(24, "Too many open files")
            return opened(*arguments, **keywords)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", failing)
            with pytest.raises(OSError, match="Too many"):
                WorkFolder()
        assert os.listdir(tmp_path) == []
