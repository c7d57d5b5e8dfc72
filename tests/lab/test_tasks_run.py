"""Training on tasks and judging past the trained length, with positions of one's own."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import milepost as mp
from milepost.lab.tasks import HIERARCHY, TASKS, Copy, score, train_on, trained_on
from milepost.lab.tasks.run import JUDGING, Losses, make, placed, side_by_side
from milepost.lab.tasks.task import DRAWN_ONCE
from milepost.lab.training.model import Shape
from milepost.lab.training.reader import Reader
from milepost.lab.training.recipe import Recipe

TINY = Shape(width=32, layers=2, heads=2, hidden=64)
QUICK = Recipe(batch=8, steps=3, warmup=1)
REVERSE = HIERARCHY["reverse-string"]


class Knows(Reader):
    """Reverses the first half of its input, but for the examples that begin with a 1; notes where tokens stand."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(3, 1)
        self.seen: list[Tensor | None] = []

    def forward(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
        self.seen.append(position)
        said = tokens.flip(1) * (tokens[:, :1] != 1) + (1 - tokens.flip(1)) * (tokens[:, :1] == 1)
        return nn.functional.one_hot(said.clamp(0, 2), 3).float()


def test_training_judging_and_what_is_drawn_once_come_from_seeds_of_their_own():
    """Of a seed torch reads 32 bits: what differs above them draws the same."""
    seeds = [start + n for start in (0, JUDGING, DRAWN_ONCE) for n in range(50)]
    first = {int(torch.randint(1 << 60, (), generator=torch.Generator().manual_seed(seed))) for seed in seeds}
    assert len(first) == 150


def test_a_score_is_one_where_every_answer_is_right_and_zero_where_none_is():
    found = score(Knows(), REVERSE, 7, 200, seed=0)
    assert found.shape == (200,)
    inputs, _ = REVERSE.batch(200, 7, torch.Generator().manual_seed((1 << 31) + 7))
    assert found.tolist() == (inputs[:, 0] != 1).float().tolist()


def test_a_score_is_the_same_whenever_its_seed_is():
    torch.manual_seed(0)
    first = score(Knows(), REVERSE, 7, 100, seed=3)
    torch.manual_seed(1)
    assert score(Knows(), REVERSE, 7, 100, seed=3).equal(first)
    assert not score(Knows(), REVERSE, 7, 100, seed=4).equal(first)


def test_whole_answers_can_be_counted_instead():
    class Half(Knows):
        def forward(self, tokens: Tensor, position: Tensor | None = None) -> Tensor:
            return nn.functional.one_hot(torch.zeros_like(tokens), 3).float()

    assert 0.4 < score(Half(), REVERSE, 8, 100, seed=0).mean() < 0.6
    assert score(Half(), REVERSE, 8, 100, seed=0, measure=REVERSE.exact).mean() < 0.1


def test_positions_are_drawn_for_every_64_examples_and_reach_the_model():
    model = Knows()
    score(model, REVERSE, 10, 150, seed=0, positions=mp.Randomized(2048).sample)
    assert [each.shape for each in model.seen] == [(20,)] * 3
    assert not model.seen[0].equal(model.seen[1])
    assert all(each.diff().min() > 0 and each.max() < 2048 for each in model.seen)
    again = Knows()
    score(again, REVERSE, 10, 150, seed=0, positions=mp.Randomized(2048).sample)
    assert all(a.equal(b) for a, b in zip(model.seen, again.seen, strict=True))


def test_positions_may_be_evenly_spaced_at_test():
    model = Knows()
    score(model, REVERSE, 8, 10, seed=0, positions=mp.Randomized(2048).evenly)
    assert model.seen[0].tolist() == [128.0 * n for n in range(16)]


def test_drawing_positions_leaves_the_generator_of_torch_alone():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    first, again = (placed(mp.Randomized(2048).sample, 9, seed=1) for _ in range(2))
    assert torch.rand(3).equal(wanted)
    assert first.equal(again)
    assert not first.equal(placed(mp.Randomized(2048).sample, 9, seed=2))


def test_a_task_decides_whether_the_model_looks_ahead():
    for name, ahead in (("reverse-string", True), ("copy", False)):
        task = TASKS[name]
        model = make(task, "rope", TINY, 6, 6, seed=0)
        assert model.shape.vocabulary == task.vocabulary
        inputs, _ = task.batch(1, 6, torch.Generator().manual_seed(0))
        other = inputs.clone()
        other[0, 5] = 1 - other[0, 5].clamp(0, 1)
        with torch.no_grad():
            changed = (model(inputs) - model(other))[0, 0].abs().max() > 0
        assert bool(changed) == ahead


def test_a_scheme_that_hides_something_still_does_in_an_encoder():
    model = make(REVERSE, "Rope(dim) + causal", TINY, 6, 6, seed=0)
    inputs, _ = REVERSE.batch(1, 6, torch.Generator().manual_seed(0))
    other = inputs.clone()
    other[0, 5] = 1 - other[0, 5]
    with torch.no_grad():
        assert model(inputs)[0, :5].equal(model(other)[0, :5])


def test_tables_are_as_long_as_the_longest_example_judged():
    model = make(REVERSE, "learned", TINY, 6, 30, seed=0)
    assert model.schedule[0].parts[0].length == 60


def weights(positions=None, seed: int = 0) -> Tensor:
    model = trained_on(REVERSE, "rope", TINY, QUICK, range(4, 9), seed, positions)
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def test_training_gives_the_same_weights_whenever_the_seed_is_the_same():
    torch.manual_seed(0)
    first = weights(mp.Randomized(2048).sample)
    torch.manual_seed(1)
    assert weights(mp.Randomized(2048).sample).equal(first)
    assert not weights(mp.Randomized(2048).sample, seed=1).equal(first)


def test_training_is_told_the_positions():
    plain = weights()
    assert (weights(torch.arange) - plain).abs().max() < 1e-6
    assert (weights(mp.Randomized(2048).sample) - plain).abs().max() > 1e-4


def test_a_trained_model_counts_its_tokens_again():
    model = trained_on(REVERSE, "rope", TINY, QUICK, range(4, 9), 0, mp.Randomized(2048).sample)
    inputs, _ = REVERSE.batch(2, 6, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (model(inputs) - model(inputs, position=torch.arange(12))).abs().max() < 1e-6
        assert (model(inputs) - model(inputs, position=100 * torch.arange(12))).abs().max() > 1e-6


def test_losses_are_told_as_they_come():
    losses: dict[int, float] = {}
    watch = lambda step, loss: losses.update({step: float(loss)})  # noqa: E731
    train_on(Copy(), "nope", TINY, QUICK, [3], 0, judged=[3], count=4, watch=watch)
    assert list(losses) == [0, 1, 2]
    assert all(2 < loss < 4 for loss in losses.values())


def test_a_small_model_learns_to_copy():
    threads = torch.get_num_threads()
    # So small a model is slower on many cores than on one.
    torch.set_num_threads(1)
    try:
        recipe = Recipe(batch=64, steps=100, rate=5e-3, warmup=10, decay=0.0)
        shape = Shape(width=32, layers=1, heads=2, hidden=64)
        found = train_on(Copy(4), "rope", shape, recipe, [5], 0, judged=[5], count=256)
    finally:
        torch.set_num_threads(threads)
    assert list(found) == [5]
    assert found[5].shape == (256,)
    assert found[5].mean() > 0.95


def test_what_cannot_be_trained_or_judged_is_refused_at_once():
    asked = TASKS["copy"], "rope", TINY, QUICK
    for lengths, judged, count, message in (
        ([], [4], 8, "at least one length"),
        ([0], [4], 8, "length must be at least 1"),
        ([4], [], 8, "at least one length to judge at"),
        ([4], [4], 0, "count must be at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            train_on(*asked, lengths, 0, judged=judged, count=count)


def test_a_run_among_others_tells_how_it_goes(capsys: pytest.CaptureFixture[str]):
    losses = Losses("copy, seed 3")
    for step in range(1999):
        losses(step, torch.tensor(1.0 if step < 900 else 0.25))
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(",", 1)[0] for line in lines] == ["copy, seed 3: step 1000, loss 0.250"]
    assert len(losses.losses) == 1999
    assert losses.last() == 0.25


def doubled(job: dict[str, int]) -> dict[str, int]:
    if job["n"] == 13:
        raise RuntimeError("bad luck")
    return {"twice": 2 * job["n"]}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_come_back_with_what_was_done_and_are_done_once(processes: int, tmp_path: Path):
    out = tmp_path / "deep" / "rows.json"
    jobs = [{"n": n, "of": (1, 2)} for n in (3, 4, 13)]
    with pytest.raises(RuntimeError, match="bad luck"):
        list(side_by_side(doubled, jobs, processes, out))
    kept = json.loads(out.read_text()) if out.exists() else []
    found = list(side_by_side(doubled, jobs[:2], processes, out))
    assert found[: len(kept)] == kept
    assert sorted((row["n"], row["twice"]) for row in found) == [(3, 6), (4, 8)]
    # Another job is another row, and none is done again.
    with pytest.raises(RuntimeError, match="bad luck"):
        list(side_by_side(doubled, jobs[2:], 1, out))
    (again,) = side_by_side(doubled, [{"n": 4}], 1, out)
    assert again["of"] == [1, 2]
    assert not list(out.parent.glob(".*"))


def slow_or_bad(job: dict[str, str]) -> dict[str, int]:
    if "mark" not in job:
        raise RuntimeError("bad luck")
    time.sleep(10)
    Path(job["mark"]).touch()
    return {}


@pytest.mark.slow
def test_what_nobody_waits_for_is_ended(tmp_path: Path):
    mark = tmp_path / "mark"
    with pytest.raises(RuntimeError, match="bad luck"):
        list(side_by_side(slow_or_bad, [{"mark": str(mark)}, {}], 2, tmp_path / "rows.json"))
    assert not mark.exists()


def test_lengths_that_vary_are_not_compiled_one_by_one():
    assert trained_on(REVERSE, "rope", TINY, QUICK, range(4, 9), 0).backends == ["sdpa", "sdpa"]


def test_a_damaged_file_of_rows_is_named(tmp_path: Path):
    out = tmp_path / "rows.json"
    out.write_text("[{")
    with pytest.raises(ValueError, match="is damaged"):
        list(side_by_side(doubled, [{"n": 1}], 1, out))
