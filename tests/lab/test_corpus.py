"""What is read: the same bytes every time, split by file, and a clear word where there is nothing to read."""

from __future__ import annotations

import gzip
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch

from milepost.lab.text import corpus
from milepost.lab.text.corpus import Corpus


def bytes_of(n: int, seed: int = 0) -> bytes:
    """n bytes without a zero among them."""
    drawn = torch.randint(1, 256, (n,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return drawn.numpy().tobytes()


def texts(found: Corpus) -> tuple[bytes, bytes]:
    return found.train.numpy().tobytes(), found.test.numpy().tobytes()


# The standard library


@pytest.fixture(scope="module")
def python() -> Corpus:
    return corpus.of_python()


@pytest.mark.slow
def test_the_standard_library_gives_the_same_bytes_on_every_call(python: Corpus):
    again = corpus.of_python()
    assert again.digest == python.digest
    assert texts(again) == texts(python)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert python.source == f"the standard library of Python {version}"
    assert len(python.train) > 5_000_000
    # One file in twenty; files differ much in size.
    assert 0.01 < len(python.test) / len(python.train) < 0.2


def test_no_file_of_the_standard_library_is_trained_on_and_judged_on(python: Corpus):
    train, test = (set(part.split(b"\0")) for part in texts(python))
    # Files of a line or two may well say the same.
    assert not {text for text in train & test if len(text) > 1000}
    root = Path(sysconfig.get_paths()["stdlib"])
    everything = train | test
    for name in ("ast.py", "json/decoder.py", "asyncio/events.py", "dataclasses.py"):
        assert (root / name).read_bytes() in everything, name


# Folders and files


def folder_of(path: Path, count: int, seed: int = 0) -> dict[str, bytes]:
    """A folder of so many texts, some of them deeper down."""
    files = {f"{'deep/' if n % 7 == 0 else ''}{n}.txt": bytes_of(50 + n, 1000 * seed + n) for n in range(count)}
    (path / "deep").mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_bytes(text)
    return files


def test_a_folder_is_split_by_file(tmp_path: Path):
    files = folder_of(tmp_path, 120)
    train, test = (part.split(b"\0") for part in texts(corpus.of_path(tmp_path)))
    assert sorted(train + test) == sorted(files.values())
    # A share of 1 in 20 of 120 files: 6, and 1 … 18 with a probability of 0.99999.
    assert 1 <= len(test) <= 18


def test_which_files_are_judged_on_depends_on_their_names_alone(tmp_path: Path):
    kept = []
    for seed, count in enumerate((120, 120, 60)):
        place = tmp_path / str(seed)
        files = folder_of(place, count, seed)
        test = texts(corpus.of_path(place))[1].split(b"\0")
        kept.append({name for name, text in files.items() if text in test})
    assert kept[0] == kept[1]
    assert kept[2] == kept[0] & set(files)


@pytest.mark.slow
def test_the_order_in_which_a_disk_lists_files_changes_nothing(
    tmp_path: Path, python: Corpus, monkeypatch: pytest.MonkeyPatch
):
    folder_of(tmp_path, 60)
    before, listed = corpus.of_path(tmp_path), Path.rglob
    monkeypatch.setattr(Path, "rglob", lambda *given: sorted(listed(*given), reverse=True))
    assert corpus.of_path(tmp_path).digest == before.digest
    assert corpus.of_python().digest == python.digest


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_folder_of_few_files_has_a_part_to_train_on_and_a_part_to_judge_on(tmp_path: Path, count: int):
    for start in range(12):
        place = tmp_path / str(start)
        place.mkdir()
        for n in range(count):
            (place / f"{start}-{n}.txt").write_bytes(bytes_of(4000, n))
        corpus.of_path(place).needs(16, 64)


def test_what_is_no_text_is_left_out_of_a_folder(tmp_path: Path):
    files = folder_of(tmp_path, 60)
    before = corpus.of_path(tmp_path)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    (tmp_path / "empty.txt").write_bytes(b"")
    assert texts(corpus.of_path(tmp_path)) == texts(before)
    (tmp_path / "3.txt").unlink()
    with gzip.open(tmp_path / "3.txt.gz", "wb") as out:
        out.write(files["3.txt"])
    parts = texts(corpus.of_path(tmp_path))
    assert sum(files["3.txt"] in part for part in parts) == 1


def test_a_folder_without_text_is_refused(tmp_path: Path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    with pytest.raises(ValueError, match=f"--text {tmp_path}: no text was found in this folder"):
        corpus.of_path(tmp_path)


def test_the_end_of_a_single_text_is_judged_on(tmp_path: Path):
    text = bytes_of(1003)
    (tmp_path / "one.txt").write_bytes(text)
    found = corpus.of_path(tmp_path / "one.txt")
    assert texts(found) == (text[:953], text[953:])
    assert found.source == str(tmp_path / "one.txt")
    assert texts(corpus.of_bytes(b"", "nothing")) == (b"", b"")


def test_a_packed_text_is_unpacked(tmp_path: Path):
    text = bytes_of(1003)
    (tmp_path / "one.txt.gz").write_bytes(gzip.compress(text))
    assert texts(corpus.of_path(str(tmp_path / "one.txt.gz"))) == (text[:953], text[953:])


@pytest.mark.parametrize("harm", ["not packed", "cut off", "changed inside"])
def test_a_damaged_packed_text_is_named(tmp_path: Path, harm: str):
    packed = gzip.compress(bytes_of(1003))
    harmed = {"not packed": b"plain words", "cut off": packed[:200], "changed inside": packed[:10] + b"\xff" * 400}
    path = tmp_path / "one.gz"
    path.write_bytes(harmed[harm])
    with pytest.raises(OSError, match=f"--text {path}: cannot be read: "):
        corpus.of_path(path)


def test_a_missing_text_is_named(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=f"--text {tmp_path}/no.txt: no such file or folder"):
        corpus.of_path(tmp_path / "no.txt")


# Too short


def test_a_text_too_short_is_refused_with_how_much_is_needed():
    found = corpus.of_bytes(bytes_of(2000), "my.txt")
    found.needs(16, 99)
    judged = (
        "my.txt: 100 bytes to judge on, but 1,025 are needed to train at 16 and judge at 1024; give a longer text, "
        "or lower --set length=… or longest=…"
    )
    with pytest.raises(ValueError, match=judged):
        found.needs(16, 1024)
    with pytest.raises(ValueError, match=r"my.txt: 1,900 bytes to train on, but 4,096 are needed to train at 2048"):
        found.needs(2048, 99)


def test_only_the_first_bytes_are_trained_on():
    found = corpus.of_bytes(bytes_of(2000), "my.txt")
    train, test = texts(found)
    assert texts(found.first(300)) == (train[:300], test)
    assert found.first(None) is found
    assert found.first(300).digest != found.digest


def test_a_corpus_cut_elsewhere_is_another_corpus():
    whole = torch.frombuffer(bytearray(bytes_of(100)), dtype=torch.uint8)
    assert Corpus(whole[:90], whole[90:], "a").digest != Corpus(whole[:80], whole[80:], "a").digest
    assert Corpus(whole[:90], whole[90:], "a").digest == Corpus(whole[:90], whole[90:], "b").digest


# Batches


def test_a_batch_is_a_pure_function_of_seed_and_step():
    found = corpus.of_bytes(bytes_of(4000), "my.txt")
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = {(seed, step): found.batch(seed, step, 4, 16) for seed in range(3) for step in range(5)}
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    for (seed, step), batch in reversed(first.items()):
        assert torch.equal(found.batch(seed, step, 4, 16), batch)
        assert batch.shape == (4, 17)
        assert batch.dtype == torch.int64
    assert len({batch.numpy().tobytes() for batch in first.values()}) == len(first)


def test_a_batch_holds_passages_of_the_training_text_and_reaches_both_its_ends():
    found = corpus.of_bytes(bytes_of(60), "my.txt")
    train = texts(found)[0]
    passages = {bytes(row.tolist()) for step in range(20) for row in found.batch(0, step, 16, 40)}
    # 57 bytes have 17 passages of 41; 320 draws miss one with a probability below 1e-7.
    assert passages == {train[a : a + 41] for a in range(17)}


# Datasets


def test_a_dataset_without_its_library_gives_the_install_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"--dataset needs datasets, .*: pip install 'milepost\[datasets\]'"):
        corpus.of_dataset("wikitext")


def library(monkeypatch: pytest.MonkeyPatch, rows: dict) -> list[tuple]:
    """Stand in for datasets; answers what it was asked."""
    asked: list[tuple] = []
    module = ModuleType("datasets")
    module.load_dataset = lambda name, part, split: asked.append((name, part, split)) or rows  # pyright: ignore
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_a_dataset_is_its_column_of_text(monkeypatch: pytest.MonkeyPatch):
    asked = library(monkeypatch, {"text": ["für", "alle"] * 100})
    whole = "\0".join(["für", "alle"] * 100).encode()
    assert b"".join(texts(corpus.of_dataset("books"))) == whole
    assert b"".join(texts(corpus.of_dataset("books:small"))) == whole
    assert asked == [("books", None, "train"), ("books", "small", "train")]


def test_a_dataset_without_a_column_of_text_is_refused(monkeypatch: pytest.MonkeyPatch):
    library(monkeypatch, {"pixels": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"--dataset mnist: .*text"):
        corpus.of_dataset("mnist")
