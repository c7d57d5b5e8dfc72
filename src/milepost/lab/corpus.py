"""What is read: bytes, split into a part to train on and a part to judge on."""

from __future__ import annotations

import gzip
import hashlib
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from milepost.refusal import need

# One file in twenty is kept for judging; of a single text, its end is.
KEPT = 20
# Between files, so that a model can see where one ends.
BETWEEN = b"\x00"


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to judge on, as uint8."""

    train: Tensor
    test: Tensor
    source: str
    """Where the bytes came from, in words."""

    @property
    def digest(self) -> str:
        """What tells one corpus from another: a hash of all its bytes."""
        hashed = hashlib.sha256(f"{len(self.train)}:".encode())
        hashed.update(self.train.numpy().tobytes())
        hashed.update(self.test.numpy().tobytes())
        return hashed.hexdigest()[:16]

    def batch(self, seed: int, step: int, size: int, length: int) -> Tensor:
        """The training batch of one step, int64 [size, length + 1]: a pure function, so that any step can be redone."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(0, len(self.train) - length, (size,), generator=generator)
        places = starts[:, None].to(self.train.device) + torch.arange(length + 1, device=self.train.device)
        return self.train[places].long()

    def batches(self, seed: int, size: int, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        """The inputs of a step and the bytes that follow each of them, [size, length] both."""

        def of_step(step: int) -> tuple[Tensor, Tensor]:
            found = self.batch(seed, step, size, length)
            return found[:, :-1], found[:, 1:]

        return of_step

    def on(self, device: torch.device | str) -> Corpus:
        """The same, with what is trained on held on a device: batches are cut out there."""
        return replace(self, train=self.train.to(device))

    def first(self, train: int | None) -> Corpus:
        """The same, trained on the first `train` bytes only."""
        return self if train is None else replace(self, train=self.train[:train])

    def needs(self, length: int, longest: int) -> None:
        """Refuse a text too short to train or to judge on."""
        for name, part, least in (("train on", self.train, 2 * length), ("judge on", self.test, longest + 1)):
            if len(part) < least:
                raise ValueError(
                    f"{self.source}: {len(part):,} bytes to {name}, but {least:,} are needed to train at {length} and "
                    f"judge at {longest}; give a longer text, or lower --length or --longest"
                )


def of_python() -> Corpus:
    """The source text of the running Python's standard library: tens of megabytes on every machine."""
    root = Path(sysconfig.get_paths()["stdlib"])
    version = sysconfig.get_python_version()
    return _of_files(root, _sources(root), f"the standard library of Python {version}")


def of_path(path: str | Path, made: Sequence[Path] = ()) -> Corpus:
    """A file, a .gz, or every file of a folder that is text, but for what was `made` from it and lies there too."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"--text {path}: no such file or folder")
    if path.is_dir():
        own = {each.resolve() for each in made}
        if path.resolve() in own:
            raise ValueError(f"--text {path}: a run would write among its texts; give --out a folder of its own")
        found = (each for each in sorted(path.rglob("*")) if each.is_file() and not own & _and_above(each, path))
        corpus = _of_files(path, found, str(path))
        if not len(corpus.train) and not len(corpus.test):
            raise ValueError(f"--text {path}: no text was found in this folder")
        return corpus
    return of_bytes(_read(path), str(path))


def of_dataset(name: str) -> Corpus:
    """A dataset by its name on the Hugging Face hub: its train split's column of text."""
    need("--dataset", "datasets")
    from datasets import load_dataset  # pyright: ignore

    name, _, part = name.partition(":")
    rows = load_dataset(name, part or None, split="train")  # pyright: ignore
    try:
        texts: list[str] = rows["text"]  # pyright: ignore
    except KeyError:
        raise ValueError(
            f"--dataset {name}: it has no column called text; save its text to a file and give --text"
        ) from None
    return of_bytes(BETWEEN.join(text.encode() for text in texts), name)  # pyright: ignore


def of_bytes(text: bytes, source: str) -> Corpus:
    """One text: its last twentieth is judged on."""
    whole = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
    cut = len(whole) - len(whole) // KEPT
    return Corpus(whole[:cut], whole[cut:], source)


def _of_files(root: Path, paths: Iterator[Path], source: str) -> Corpus:
    """Many texts: whole files are judged on, chosen by a hash of their names, the same ones on every machine."""
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in paths:
        text = _read(path)
        if BETWEEN in text or not text:
            continue
        name = path.relative_to(root).as_posix()
        kept = int(hashlib.sha256(name.encode()).hexdigest(), 16) % KEPT == 0
        parts[kept].append(text)
    if not all(parts):
        # Too few files for a twentieth of them: the end of the last one is judged on.
        return of_bytes(BETWEEN.join(parts[0] or parts[1]), source)
    train, test = (_tensor(BETWEEN.join(part)) for part in parts)
    return Corpus(train, test, source)


def _and_above(file: Path, root: Path) -> set[Path]:
    """A file and the folders it lies in, below the root."""
    below = file.relative_to(root)
    return {root.resolve() / each for each in (below, *below.parents[:-1])}


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def _sources(root: Path) -> Iterator[Path]:
    skipped = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
    return (path for path in sorted(root.rglob("*.py")) if not skipped & set(path.relative_to(root).parts))


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise OSError(f"--text {path}: cannot be read: {error}") from error
