"""Dynamic NTK: the base grows with the length of the text (emozilla, 2023; transformers' "dynamic")."""

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from milepost.methods.ntk import raised
from milepost.seams import demand


@dataclass(frozen=True)
class DynamicNtk:
    """Stretch as Ntk does, by a factor that follows the length L.

        θ_n  ←  θ_n · a^(−2n/(d − 2)),   a = max(1, factor · L/trained − (factor − 1)),   L the length of the text

    `factor` is transformers' factor, not the ratio of lengths: at 1 the stretch is L/trained. The frequencies of every
    token depend on L, so keys are rotated again at each step; `attend` does that, because it is given raw keys.
    """

    trained: int
    _: KW_ONLY
    factor: float = 1.0
    relative = True
    by_length = True

    def __post_init__(self) -> None:
        demand.whole(self, "trained", self.trained)
        demand.finite(self, "factor", self.factor, least=1)

    def frequencies(self, f: Tensor, length: Tensor) -> Tensor:
        return f * raised((self.factor * length / self.trained - (self.factor - 1)).clamp(min=1), f)

    def magnitude(self, length: Tensor) -> float:
        return 1.0
