"""Self-Extend: far tokens share positions in groups (Jin et al., 2024, arXiv:2401.01325)."""

from dataclasses import dataclass

from torch import Tensor

from milepost.seams import demand
from milepost.seams.verbs import Bound, Regime


@dataclass(frozen=True)
class SelfExtend:
    """Keep near distances and count far ones in groups.

        distance  ←  p − r  where |p − r| < neighbours
        distance  ←  ⌊p/group⌋ − ⌊r/group⌋ ± (neighbours − neighbours/group)  beyond

    Needs no training; reaches group · (trained − neighbours) + neighbours tokens. The group must divide neighbours:
    otherwise the authors' two code paths disagree about the shift. Keys ahead are placed the same way, mirrored.
    """

    group: int
    neighbours: int
    relative = False

    def __post_init__(self) -> None:
        demand.whole(self, "group", self.group)
        demand.whole(self, "neighbours", self.neighbours)
        if self.neighbours % self.group:
            raise ValueError(
                f"SelfExtend(group={self.group}, neighbours={self.neighbours}): group must divide neighbours; "
                f"try neighbours={self.neighbours // self.group * self.group or self.group}"
            )

    def place(self) -> tuple[Regime, ...]:
        w, g = self.neighbours, self.group
        shift = w - w // g

        def grouped(position: Tensor) -> Tensor:
            return position // g

        behind, ahead = Bound(low=w), Bound(low=w, mirrored=True)
        return (
            Regime(bounds=(Bound(high=w), Bound(high=w, mirrored=True))),
            Regime(query=lambda p: grouped(p) + shift, key=grouped, bounds=(behind,)),
            Regime(query=lambda p: grouped(p) - shift, key=grouped, bounds=(ahead,)),
        )
