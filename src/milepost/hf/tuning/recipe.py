"""What a fine-tuning is: the method, the length, the steps, and which weights are trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import milepost as mp
from milepost import Schedule
from milepost.hf.model.extension import changed_by, extended
from milepost.seams import demand

LONGCHAT, STORYWRITER = "longchat", "storywriter"
PRESETS = {
    LONGCHAT: "positions are squeezed into the trained range (position interpolation), as LongChat did",
    STORYWRITER: "ALiBi in the place of the rotation, as MPT-7B-StoryWriter was tuned",
}
RATES = {False: 2e-4, True: 2e-5}
"""The learning rate of low-rank weights, and of whole models."""
WARM = 0.05
"""The share of the steps in which the rate rises; then it falls on a line to nothing."""


@dataclass(frozen=True)
class Recipe:
    """Stretch a model by a method, and train it at a length.

    given: a preset, a row or an expression, as `extend` takes it. rank: of the low-rank weights; 0 trains all weights.
    pose: read trained-length cuts of longer texts at skipped positions (PoSE), not whole ones. rate: 0 chooses.
    checkpointing: compute activations twice and keep few.
    """

    given: str
    to: int
    steps: int = 300
    batch: int = 1
    rate: float = 0.0
    rank: int = 16
    pose: bool = False
    seed: int = 0
    checkpointing: bool = False
    save_every: int = 50

    def __post_init__(self) -> None:
        for name in ("to", "steps", "batch", "save_every"):
            demand.whole(self, name, getattr(self, name))
        demand.whole(self, "rank", self.rank, least=0)
        if self.rate < 0:
            raise ValueError(f"Recipe(rate={self.rate}): a learning rate is above 0; leave it out to have one chosen")

    @property
    def learning_rate(self) -> float:
        """The highest rate."""
        return self.rate or RATES[self.rank == 0]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return asdict(self)

    def other(self, plain: dict[str, Any]) -> str:
        """Say in what a stored recipe differs; empty where it does not."""
        names = (each.name for each in fields(self))
        return ", ".join(
            f"{n} {plain.get(n)!r}, now {getattr(self, n)!r}" for n in names if plain.get(n) != getattr(self, n)
        )


def stretched(model: Any, recipe: Recipe) -> Any:
    """The model under the method of a recipe, changed in place."""
    if changed_by(model) is not None:
        raise ValueError("tune: this model is extended already; give the one that it was made of")
    own = Schedule.of(model)
    if own.trained is None:
        raise ValueError("tune: the config does not say at which length the model was trained; add it")
    if recipe.to <= own.trained:
        raise ValueError(f"tune(to={recipe.to}): this model was trained at {own.trained:,} tokens; ask for more")
    slopes = any(isinstance(part, mp.Alibi) for scheme in own for part in scheme.parts)
    if recipe.given == LONGCHAT:
        factor = recipe.to / own.trained
        return extended(model, [mp.AlibiInterpolate(factor) if slopes else mp.Interpolate(factor)])
    if recipe.given == STORYWRITER:
        heads = model.config.get_text_config().num_attention_heads
        return model if slopes else extended(model, [mp.Scheme(mp.Alibi(heads), mp.causal)])
    return extended(model, [recipe.given], to=recipe.to)
