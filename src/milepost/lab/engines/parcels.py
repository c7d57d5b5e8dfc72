"""How a checkpoint travels between a worker and the driver, who need not have a disk in common.

It goes through Ray's object store, or through a folder or a bucket that both can reach (fsspec). Whoever receives it
writes it whole, or not at all.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.lab.training.whole import whole


class ByRay:
    """Through Ray's object store: nothing is shared, and nothing has to be set up."""

    def send(self, path: Path) -> Any:
        """Send a file; returns what the other side receives it by."""
        import ray

        return ray.put(path.read_bytes())

    def receive(self, parcel: Any, path: Path) -> None:
        """Write what was sent to a file."""
        with whole(path) as half:
            half.write_bytes(waited(parcel))


@dataclass(frozen=True)
class ByUrl:
    """Through a folder that every machine has, or a bucket: anything that fsspec has an address for.

    Each file has a name of its own and is deleted when it was received, so two sweeps may use the same folder.
    """

    url: str

    def send(self, path: Path) -> str:
        parcel = f"{self.url}/{path.stem}-{uuid.uuid4().hex}{path.suffix}"
        disk, place = _at(parcel)
        try:
            disk.put_file(str(path), place)
        except Exception as error:
            raise ValueError(f"{parcel} cannot be written ({_said(error)}); {SHARED}") from error
        return parcel

    def receive(self, parcel: str, path: Path) -> None:
        disk, place = _at(parcel)
        # Some remember what was there when they looked last.
        disk.invalidate_cache()
        with whole(path) as half:
            try:
                disk.get_file(place, str(half))
            except FileNotFoundError as error:
                raise ValueError(f"{parcel} was sent, and is not here; {SHARED}") from error
        with contextlib.suppress(OSError):
            disk.rm_file(place)


Way = ByRay | ByUrl
SHARED = (
    "--checkpoints must name a place that this machine and every node can read and write; without it, checkpoints "
    "travel through Ray itself"
)


@contextlib.contextmanager
def way(url: str | None) -> Generator[Way]:
    """The way that checkpoints travel while a sweep runs: by a URL, in a folder of its own there, or else by Ray."""
    if url is None:
        yield ByRay()
        return
    # A relative path means something else on every machine.
    url = f"{url if '://' in url else Path(url).resolve()}".rstrip("/")
    own = f"{url}/milepost-{uuid.uuid4().hex}"
    try:
        disk, place = _at(own)
        disk.makedirs(place, exist_ok=True)
        disk.pipe_file(f"{place}/begun", b"")
    except Exception as error:
        raise ValueError(f"--checkpoints {url}: it cannot be written ({_said(error)}); {SHARED}") from error
    try:
        yield ByUrl(own)
    finally:
        # Of workers that died, parcels are left.
        with contextlib.suppress(OSError):
            disk.rm(place, recursive=True)


def waited(reference: Any) -> Any:
    """What a reference of Ray stands for. `ray.get` would give this worker's CPU to another task while it waits."""
    return reference.future().result()


def _at(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    from fsspec import core

    found: tuple[Any, str] = core.url_to_fs(url)  # pyright: ignore[reportUnknownVariableType]
    return found


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
