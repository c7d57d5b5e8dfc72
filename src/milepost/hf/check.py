"""Which convention differs between two models: pairs, sign, base, size, ramp, magnitude, dtype, slopes, buckets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from milepost.hf.conventions import convention_of, is_function
from milepost.hf.differences import Difference, differences


@dataclass(frozen=True)
class Checked:
    """What was found between A and B; false where nothing was."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    compared: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.differences)

    @property
    def conventions(self) -> tuple[str, ...]:
        """The names of the conventions that differ."""
        return tuple(each.convention for each in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return asdict(self)

    def __str__(self) -> str:
        head = [f"A  {self.a}", f"B  {self.b}"]
        looked = (
            f"compared: {', '.join(self.compared)}" if self.compared else "nothing that both have could be compared"
        )
        if not self.differences:
            return "\n".join([*head, "no difference found", looked])
        return "\n".join([*head, *(f"  {each}" for each in self.differences), looked])


def check(a: object, b: object, dim: int | None = None) -> Checked:
    """Find which convention differs between two models.

    a, b: a model or a config of transformers, a folder with a config.json, that file, its dict or a name of the hub; a
    method of milepost (Rope, Alibi, T5Bias) or a Scheme; a function rotary(x, position) with x [b h t d] and position
    [t]; or ALiBi's slopes as a tensor. dim: the channels of a head, where only functions are given.

    Rotations are not believed but measured: unit vectors are turned, of a model by its own code.
    """
    names = [_named(each) for each in (a, b)]
    # A function does not say how wide a head is; the other may.
    said = [None if is_function(each) else convention_of(each, name) for each, name in zip((a, b), names, strict=True)]
    if dim is None:
        widths = [each.dim for side in said if side is not None for each in side.turnings.values()]
        dim = widths[0] if widths else None
    first, second = (
        side or convention_of(given, name, dim) for side, given, name in zip(said, (a, b), names, strict=True)
    )
    compared: list[str] = []
    found = list(differences(first, second, compared))
    if not compared and not found:
        raise ValueError(
            f"check: {names[0]} and {names[1]} have nothing in common that can be compared: one turns, adds slopes or "
            f"has buckets where the other does not"
        )
    sides = [f"{each.name} ({each.read})" for each in (first, second)]
    return Checked(sides[0], sides[1], tuple(found), tuple(compared))


def _named(given: object) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Tensor):
        return f"slopes of {given.numel()} heads"
    called = getattr(given, "__name__", None)
    return str(called) if called else type(given).__name__
