"""The work folder of programs that run without bubblewrap, and its removal whatever a program made of it."""

from __future__ import annotations

import contextlib
import os
import tempfile


class WorkFolder:
    """`path` is for a program, inside a folder that is not: another user can neither rename nor replace it.

    Both are held open and emptied through their descriptors. A program may move them or put links in their place (an
    ordinary user's can, on a kernel without Landlock), but we then touch nothing else.
    """

    def __init__(self) -> None:
        self.held: list[int] = []
        self.outer = tempfile.mkdtemp(prefix="sandbox-")
        self.path, self.stdin = os.path.join(self.outer, "work"), os.path.join(self.outer, "stdin")
        try:
            os.mkdir(self.path, 0o700)
            self.held += [_open_folder(self.path)]
            self.held += [_open_folder(self.outer)]
            os.fchmod(self.held[1], 0o711)  # another user may pass through
        except OSError:  # no descriptor left
            self.remove()
            raise

    def give(self, user: int) -> None:
        """Make a user the owner of the inner folder."""
        os.chown(self.held[0], user, user)

    def remove(self) -> None:
        for folder in self.held:
            with contextlib.suppress(OSError):  # a leftover folder is no reason to stop training
                _empty(folder)
                os.rmdir(os.readlink(f"/proc/self/fd/{folder}"))  # where it is now
            os.close(folder)
        for path in (self.path, self.outer):
            with contextlib.suppress(OSError):
                os.rmdir(path)  # where there is no /proc
        with contextlib.suppress(OSError):
            os.unlink(self.outer)  # what took its name


def _open_folder(name: str, parent: int | None = None) -> int:
    """Descriptor of a folder whose owner may do everything. OSError for anything else, links to folders included."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW
    try:
        folder = os.open(name, os.O_RDONLY | flags, dir_fd=parent)
    except PermissionError:
        handle = os.open(name, os.O_PATH | flags, dir_fd=parent)
        os.chmod(f"/proc/self/fd/{handle}", 0o700)  # this very folder; by its name it might be another one by now
        os.close(handle)
        folder = os.open(name, os.O_RDONLY | flags, dir_fd=parent)
    os.fchmod(folder, 0o700)
    return folder


def _empty(folder: int) -> None:
    """Delete what is in a folder. Folders in it are flattened, not descended into: they may be nested 100,000 deep."""
    os.fchmod(folder, 0o700)
    while names := os.listdir(folder):
        for name in names:
            if _unlink(name, folder):
                continue
            inner = _open_folder(name, folder)
            try:
                for entry in os.listdir(inner):
                    if not _unlink(entry, inner):
                        os.close(_open_folder(entry, inner))  # only a folder that is writable can be moved
                        os.rename(entry, os.urandom(16).hex(), src_dir_fd=inner, dst_dir_fd=folder)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)


def _unlink(name: str, folder: int) -> bool:
    """False for a folder."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):  # Linux and POSIX
        return False
    return True
