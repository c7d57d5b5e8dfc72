"""Files that are there wholly or not at all, whoever is killed while they are written."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import shutil
import time
from collections.abc import Generator
from pathlib import Path

# Seconds after which half a file of another machine is taken for left behind.
STALE = 24 * 3600.0
# The numbers by which systems say that a disk takes no more; not every system has quotas.
FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@contextlib.contextmanager
def whole(path: Path) -> Generator[Path]:
    """Return the path to write to; what was written there is at `path` afterwards, unless it failed."""
    from safetensors import SafetensorError

    # A folder, since safetensors writes under a name of its own first.
    beside = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
    half = beside / path.name
    for left in path.parent.glob(f".{path.name}.*"):
        if left == beside or _left_behind(left, path.name):
            shutil.rmtree(left, ignore_errors=True)
    try:
        beside.mkdir()
        yield half
        # safetensors lets nobody else read it; whoever may read the folder may read this.
        half.chmod(beside.stat().st_mode & 0o666)
        with half.open("rb") as written:
            os.fsync(written.fileno())
        half.replace(path)
    except (SafetensorError, OSError) as error:
        if _number(error) in FULL:
            raise OSError(f"no disk space left for {path}; free some, then rerun the command to resume") from error
        raise OSError(f"{path} cannot be written ({error}); mend that, then rerun the command to resume") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _left_behind(folder: Path, name: str) -> bool:
    """Return whether half a file is of a process that was killed; of one on another machine only the time tells."""
    machine, _, process = folder.name.removeprefix(f".{name}.").rpartition(".")
    try:
        # Windows has no signal that only asks.
        if machine in ("", platform.node()) and os.name == "posix":
            os.kill(int(process), 0)
            return False
        return time.time() - folder.stat().st_mtime > STALE
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        # It is another user's, or gone already, or nothing of ours.
        return False


def _number(error: Exception) -> int | None:
    """The system's number for what went wrong; safetensors, written in Rust, has it at the end of its message."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)$", str(error))
    return None if found is None else int(found[1])
