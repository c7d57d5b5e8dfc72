"""What is read: bytes, split into a part to train on, one to judge on and, where asked, one to choose settings by."""

from __future__ import annotations

import gzip
import hashlib
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from milepost.lab.text.again import with_passages_again
from milepost.lab.text.baselines import by_frequency, by_pairs, shared_with
from milepost.refusal import need

# One file in twenty is kept for judging, and one for choosing settings by; of a single text, its end is.
KEPT = 20
# Between files, so that a model can see where one ends.
BETWEEN = b"\x00"


@dataclass(frozen=True)
class Facts:
    """What is known of a text without its bytes."""

    source: str
    digest: str
    chosen_by: str = ""
    """The digest of the part by which settings are chosen."""
    train_bytes: int = 0
    test_bytes: int = 0
    guess: float | None = None
    """Bits of a byte to who knows only how often each comes."""
    pairs: float | None = None
    """Bits of a byte to who knows only the one before it."""
    shared: float | None = None
    """The share of the judged text that stands in the training text too, by stretches of 32 bytes."""


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to judge on, as uint8."""

    train: Tensor
    test: Tensor
    source: str
    """Where the bytes came from, in words."""
    validation: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    """Bytes by which settings are chosen; neither trained on nor judged. Nothing where nothing is to be chosen."""

    @cached_property
    def digest(self) -> str:
        """Return what tells one corpus from another: a hash of all its bytes."""
        hashed = hashlib.sha256(f"{len(self.train)}:".encode())
        hashed.update(self.train.numpy().tobytes())
        hashed.update(self.test.numpy().tobytes())
        return hashed.hexdigest()[:16]

    @cached_property
    def facts(self) -> Facts:
        """Return what a report says of the text."""
        pairs, guess = by_pairs(self.train, self.test), by_frequency(self.test)
        sizes, shared = (len(self.train), len(self.test)), shared_with(self.train, self.test)
        return Facts(self.source, self.digest, self.chosen_by, *sizes, guess, pairs, shared)

    @cached_property
    def chosen_by(self) -> str:
        """Return a hash of the bytes by which settings are chosen."""
        return hashlib.sha256(self.validation.numpy().tobytes()).hexdigest()[:16]

    def batch(self, seed: int, step: int, size: int, length: int) -> Tensor:
        """The training batch of one step, int64 [size, length + 1]: a pure function, so that any step can be redone."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        starts = torch.randint(0, len(self.train) - length, (size,), generator=generator)
        places = starts[:, None].to(self.train.device) + torch.arange(length + 1, device=self.train.device)
        return self.train[places].long()

    def batches(self, seed: int, size: int, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
        """Return the inputs of a step and the bytes that follow each of them, [size, length] both."""

        def of_step(step: int) -> tuple[Tensor, Tensor]:
            found = self.batch(seed, step, size, length)
            return found[:, :-1], found[:, 1:]

        return of_step

    def on(self, device: torch.device | str) -> Corpus:
        """Return the same, with what is trained on moved to a device: batches are cut out there."""
        return replace(self, train=self.train.to(device))

    def first(self, train: int | None) -> Corpus:
        """Return the same, trained on the first `train` bytes only."""
        return self if train is None else replace(self, train=self.train[:train])

    def needs(self, length: int, longest: int, chosen: int = 0) -> None:
        """Refuse a text too short to train on, to judge on or, at length `chosen`, to choose settings by."""
        parts = [("train on", self.train, 2 * length), ("judge on", self.test, longest + 1)]
        parts += [("choose settings by", self.validation, chosen + 1)] if chosen else []
        for name, part, least in parts:
            if len(part) < least:
                raise ValueError(
                    f"{self.source}: {len(part):,} bytes to {name}, but {least:,} are needed to train at {length} and "
                    f"judge at {longest}; give a longer text, or lower --set length=… or longest=…"
                )


@dataclass(frozen=True)
class Remembered(Corpus):
    """A text that is not at hand, of which only facts are known: enough for a report, and for nothing else."""

    known: Facts = field(default_factory=lambda: Facts("", ""))

    @staticmethod
    def of(known: Facts) -> Remembered:
        """Return a text by its facts."""
        nothing = torch.empty(0, dtype=torch.uint8)
        return Remembered(nothing, nothing, known.source, known=known)

    @cached_property
    def facts(self) -> Facts:
        """Return what was known of it."""
        return self.known

    @cached_property
    def digest(self) -> str:
        return self.known.digest

    @cached_property
    def chosen_by(self) -> str:
        return self.known.chosen_by

    def needs(self, length: int, longest: int, chosen: int = 0) -> None:
        """It was long enough when it was read."""


OWN = "milepost's own sources and documents, with passages that come again"


def of_own() -> Corpus:
    """The default: milepost's own text of one day, the same bytes on every machine, with passages that come again.

    Whole files are judged on, others are there to choose settings by, and no stretch of 32 bytes in them stands in the
    files that are trained on. Passages come again within a part only, and are drawn from a seed of its own; short ones,
    said often, may be said in two parts.
    """
    made = [with_passages_again(BETWEEN.join(part), seed) for seed, part in enumerate(parts_of(enumerate(own_files())))]
    train, test, validation = map(_tensor, made)
    return Corpus(train, test, OWN, validation)


def own_files() -> list[bytes]:
    """Return the files of which the default text is made."""
    return gzip.decompress((files("milepost.lab.text") / "own.txt.gz").read_bytes()).split(BETWEEN)


def of_python(third: bool = False) -> Corpus:
    """Return the source text of the running Python's standard library: tens of megabytes on every machine."""
    root = Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
    paths = (path for path in sorted(root.rglob("*.py")) if not skipped & set(path.relative_to(root).parts))
    return _of_files(root, paths, f"the standard library of Python {sysconfig.get_python_version()}", third)


def of_path(path: str | Path, made: Sequence[Path] = (), third: bool = False) -> Corpus:
    """A file, a .gz, or every file of a folder that is text, but for what was `made` from it and lies there too."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"--text {path}: no such file or folder")
    if path.is_dir():
        own = {each.resolve() for each in made}
        if path.resolve() in own:
            raise ValueError(f"--text {path}: a run would write among its texts; give --out a folder of its own")
        found = (each for each in sorted(path.rglob("*")) if each.is_file() and not own & _and_above(each, path))
        corpus = _of_files(path, found, str(path), third)
        if not len(corpus.train) and not len(corpus.test):
            raise ValueError(f"--text {path}: no text was found in this folder")
        return corpus
    return of_bytes(_read(path), str(path), third)


def of_dataset(name: str, third: bool = False) -> Corpus:
    """Return a dataset by its name on the Hugging Face hub: its train split's column of text."""
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
    return of_bytes(BETWEEN.join(text.encode() for text in texts), name, third)  # pyright: ignore


def of_bytes(text: bytes, source: str, third: bool = False) -> Corpus:
    """One text: its last twentieth is judged on; with a `third` part, settings are chosen by the one before it."""
    whole = _tensor(text)
    twentieth = len(whole) // KEPT
    cut = len(whole) - twentieth
    if third:
        return Corpus(whole[: cut - twentieth], whole[cut:], source, whole[cut - twentieth : cut])
    return Corpus(whole[:cut], whole[cut:], source)


def _of_files(root: Path, paths: Iterator[Path], source: str, third: bool) -> Corpus:
    """Return whole files to train and to judge on, parted by a hash of their names, alike on every machine."""

    def numbered() -> Iterator[tuple[int, bytes]]:
        for path in paths:
            text = _read(path)
            if text and BETWEEN not in text:
                name = path.relative_to(root).as_posix()
                yield int(hashlib.sha256(name.encode()).hexdigest(), 16), text

    parts = parts_of(numbered(), third)
    if not all(parts[: 3 if third else 2]):
        # Too few files for a twentieth of them: the end of the last one is judged on.
        texts = parts[0] + parts[2] + parts[1] if third else parts[0] or parts[1]
        return of_bytes(BETWEEN.join(texts), source, third)
    train, test, validation = (_tensor(BETWEEN.join(part)) for part in parts)
    return Corpus(train, test, source, validation)


def parts_of(numbered: Iterable[tuple[int, bytes]], third: bool = True) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return the texts that are trained on, judged on and, with a `third` part, by which settings are chosen."""
    parts: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    for number, text in numbered:
        parts[{0: 1, 1: 2 if third else 0}.get(number % KEPT, 0)].append(text)
    return parts


def _and_above(file: Path, root: Path) -> set[Path]:
    """Return a file and the folders it lies in, below the root."""
    below = file.relative_to(root)
    return {root.resolve() / each for each in (below, *below.parents[:-1])}


def _tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def _read(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise OSError(f"--text {path}: cannot be read: {error}") from error
