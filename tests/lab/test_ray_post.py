"""Between a worker and the driver of a Ray sweep, without a cluster: letters, answers and checkpoints."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from rich.console import Console

from milepost.lab.cells import work as at_work
from milepost.lab.cells.events import Described, Died, Saved, Stepped
from milepost.lab.command.progress import Watched
from milepost.lab.engines import ray_driver
from milepost.lab.engines.parcels import ByUrl, way
from milepost.lab.engines.post import Letter, Post
from milepost.lab.engines.ray_driver import Begun, Driver, work_cell
from milepost.lab.training.train import read_checkpoint
from tests.lab.test_sweep import SWEEP

(CELL,) = replace(SWEEP, schemes=("nope",), free=False).cells()
SOME, MORE = Described(1, "x"), Described(2, "x")


class PostHere:
    """The collector as a worker sees it; answers as it was given to do."""

    def __init__(self, answer: Callable[[Letter], Any] = lambda letter: None) -> None:
        self.letters: list[Letter] = []
        self.answer = answer
        self.put = SimpleNamespace(remote=self._put)

    def _put(self, letter: Letter) -> Any:
        self.letters.append(letter)
        answered: Future[Any] = Future()
        answered.set_result(self.answer(letter))
        return SimpleNamespace(future=lambda: answered)


# The collector


def play(story: Callable[[Post], Any]) -> Any:
    """Run a coroutine that uses a collector."""

    async def begin() -> Any:
        return await asyncio.wait_for(story(Post()), 5)

    return asyncio.run(begin())


def test_whoever_sends_a_letter_waits_until_it_is_answered():
    async def story(post: Post) -> None:
        sent = asyncio.create_task(post.put(Letter((7, 0, 1), SOME)))
        assert await post.take({}) == [Letter((7, 0, 1), SOME)]
        await asyncio.sleep(0)
        assert not sent.done(), "it was taken, and is not kept yet"
        again = asyncio.create_task(post.take({(7, 0, 1): "kept"}))
        assert await sent == "kept"
        await asyncio.sleep(0)
        assert not again.done(), "what was answered is taken no more"
        again.cancel()

    play(story)


def test_a_letter_stays_until_it_is_answered_however_often_it_is_taken():
    """What was taken may not have arrived: Ray then calls the same again."""

    async def story(post: Post) -> None:
        sent = [asyncio.create_task(post.put(Letter((n, 0, 0), SOME))) for n in (1, 2)]
        await asyncio.sleep(0)
        assert await post.take({}) == await post.take({})
        assert [letter.mark for letter in await post.take({}, known=[(1, 0, 0)])] == [(2, 0, 0)]
        await post.answer({(1, 0, 0): None, (2, 0, 0): None, (3, 0, 0): "for one that is gone"})
        await asyncio.gather(*sent)

    play(story)


def test_a_letter_that_is_sent_twice_is_there_once_and_both_are_answered():
    async def story(post: Post) -> None:
        sent = [asyncio.create_task(post.put(Letter((1, 0, 0), SOME))) for _ in range(2)]
        await asyncio.sleep(0)
        assert len(await post.take({})) == 1
        await post.answer({(1, 0, 0): "both"})
        assert await asyncio.gather(*sent) == ["both", "both"]

    play(story)


def test_a_driver_that_waits_for_letters_is_let_go_at_the_end():
    async def story(post: Post) -> None:
        waiting = asyncio.create_task(post.take({}))
        await asyncio.sleep(0)
        await post.close()
        assert await waiting == []

    play(story)


# The driver


class Lost(Exception):
    """What Ray raises where a worker died, in these tests."""


class Sent:
    """A way for checkpoints on which nothing travels; the address of a parcel is its file."""

    def send(self, path: Path) -> str:
        return path.name

    def receive(self, parcel: Any, path: Path) -> None:
        if parcel is Lost:
            raise Lost
        path.write_text(parcel)


def driver(out: Path, count: int = 1, ended: type[Exception] | None = None) -> Driver:
    """A driver with so many cells at work, whose tasks end like that."""

    def get(task: Any) -> None:
        if ended is not None:
            raise ended("it is gone. Look there for more.\nAnd there.")

    names = "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError", "OutOfMemoryError", "ObjectLostError"
    errors = SimpleNamespace(RayError=Exception, **dict.fromkeys(names, Lost))
    task = SimpleNamespace(options=lambda **given: SimpleNamespace(remote=lambda *given: object()))
    ray = SimpleNamespace(exceptions=errors, get=get, remote=lambda function: task)
    found = Driver(ray, out, Sent(), "cpu", lambda cell: {}, retries=2)
    found.post, found.text = SimpleNamespace(answer=SimpleNamespace(remote=lambda answers: None)), None
    found.begun = [Begun(number, CELL, set()) for number in range(count)]
    return found


def test_what_comes_again_is_answered_and_kept_once(tmp_path: Path):
    found = driver(tmp_path)
    letters = [Letter((0, 0, 1), SOME), Letter((0, 0, 2), MORE), Letter((0, 0, 2), MORE), Letter((0, 0, 1), SOME)]
    assert [event for letter in letters for _, event in found._read(letter)] == [SOME, MORE]
    assert found._answers() == {(0, 0, 1): None, (0, 0, 2): None}
    assert found._answers() == {}


def test_a_letter_of_a_worker_that_died_is_not_kept(tmp_path: Path):
    found = driver(tmp_path, ended=Lost)
    assert [event for _, event in found._ended(found.begun[0], None)] == [Died("it is gone")]
    assert list(found._read(Letter((0, 0, 1), Saved(20), "old"))) == []
    assert list(found._read(Letter((0, 1, 1), SOME))) == [(CELL, SOME)]
    assert list(tmp_path.glob("*.safetensors")) == [], "an old checkpoint would have come after a newer one"


def test_a_checkpoint_that_went_with_its_worker_is_none(tmp_path: Path):
    found = driver(tmp_path)
    assert list(found._read(Letter((0, 0, 1), Saved(10), "ten"))) == [(CELL, Saved(10))]
    assert list(found._read(Letter((0, 0, 2), Saved(20), Lost))) == []
    assert (tmp_path / f"{CELL.key}.safetensors").read_text() == "ten"


def test_a_worker_may_die_so_often_in_a_row_and_a_checkpoint_begins_a_new_row(tmp_path: Path):
    found = driver(tmp_path, ended=Lost)
    for attempt in range(2):
        assert list(found._ended(found.begun[0], None)), attempt
    assert list(found._read(Letter((0, 2, 1), Saved(10), "ten")))
    for attempt in range(2):
        assert list(found._ended(found.begun[0], None)), attempt
    assert not found.failed
    assert list(found._ended(found.begun[0], None)) == []
    ((cell, error),) = found.failed
    assert cell is CELL
    assert str(error) == "its worker died 3 times, with no checkpoint in between (it is gone)"
    assert len(found.running) == 4, "begun again after the last"


def test_the_log_says_that_a_worker_died_and_where_another_goes_on():
    said = io.StringIO()
    watched = Watched([CELL], Console(file=said, width=200))
    watched(CELL, Died("Its node is gone"))
    watched(CELL, Stepped(10, [], 0.0, 0, False))
    assert said.getvalue().splitlines() == [
        "nope: Its node is gone; another worker resumes from its last checkpoint",
        "train nope: resumes at step 10 of 14",
    ]


def test_only_a_few_checkpoints_are_on_their_way_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_driver, "LENT", 2)
    (tmp_path / f"{CELL.key}.safetensors").write_text("ten")
    found, asked = driver(tmp_path, count=4), [(number, 0, 0) for number in range(4)]
    for mark in asked:
        assert list(found._read(Letter(mark, None))) == []
    assert list(found._answers()) == asked[:2]
    assert found.asking == asked[2:]
    # The first has it and goes on; the second is done for.
    assert list(found._read(Letter((0, 0, 1), SOME)))
    assert list(found._answers()) == [(0, 0, 1), asked[2]]
    given: list[Any] = []
    found.post.answer.remote = given.append
    assert list(found._ended(found.begun[1], None)) == []
    assert [list(each) for each in given] == [[asked[3]]], "nobody would ever have answered it"


# The worker


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_work, "SAVE", 0.0)


@pytest.mark.usefixtures("often")
def test_a_checkpoint_goes_to_the_driver_and_back_to_another_worker(tmp_path: Path):
    disk, path = fsspec.filesystem("memory"), tmp_path / f"{CELL.key}.safetensors"

    def driver_here(letter: Letter) -> Any:
        if letter.event is None and path.exists():
            return ByUrl("memory://run").send(path)
        if isinstance(letter.event, Saved):
            ByUrl("memory://run").receive(letter.parcel, path)
            if letter.event.step == 10:
                raise KeyboardInterrupt
        return None

    threads = torch.get_num_threads()
    with pytest.raises(KeyboardInterrupt):
        work_cell(3, 0, CELL, set(), SWEEP.corpus, tmp_path, "cpu", ByUrl("memory://run"), PostHere(driver_here))
    assert read_checkpoint(path)[1]["step"] == "10"
    post = PostHere(driver_here)
    work_cell(3, 1, CELL, set(), SWEEP.corpus, tmp_path, "cpu", ByUrl("memory://run"), post)
    torch.set_num_threads(threads)
    assert [letter.event.step for letter in post.letters if isinstance(letter.event, Stepped)] == [10, 14]
    assert [letter.mark for letter in post.letters] == [(3, 1, n) for n in range(len(post.letters))]
    assert read_checkpoint(path)[1]["step"] == "14"
    assert disk.ls("/run") == [], "what was received is deleted"


def test_each_sweep_has_a_folder_of_its_own_and_clears_it_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    with way("shared") as first, way("shared/") as second:
        assert isinstance(first, ByUrl)
        assert isinstance(second, ByUrl)
        assert first.url != second.url
        # A relative path would mean something else on a worker.
        assert first.url.startswith(f"{tmp_path}/shared/milepost-")
        assert first.send(tmp_path / "file") != first.send(tmp_path / "file")
        assert len(list(Path(first.url).iterdir())) == 3
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nowhere://bucket", r"--checkpoints nowhere://bucket: it cannot be written \(.*nowhere.*\); "),
        ("{}/file/in", r"--checkpoints .*/file/in: it cannot be written \(.*Not a directory.*\); "),
    ],
    ids=["a protocol that nobody knows", "a file"],
)
def test_a_place_that_cannot_be_written_is_refused_at_once(url: str, why: str, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=f"{why}--checkpoints must name a place that"), way(url.format(tmp_path)):
        pass


def test_a_folder_that_is_not_shared_is_named(tmp_path: Path):
    """On the worker it is another disk, or on the driver: what one wrote the other does not find."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"gone/file-\w+ cannot be written \(.*\); --checkpoints must name a place"):
        ByUrl(f"{tmp_path}/gone").send(tmp_path / "file")
    with pytest.raises(ValueError, match=r"gone/file was sent, and is not here; --checkpoints must name a place that"):
        ByUrl(f"{tmp_path}/gone").receive(f"{tmp_path}/gone/file", tmp_path / "copy")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
