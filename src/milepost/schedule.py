"""A schedule: which scheme each layer uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from milepost.scheme import Scheme


class Schedule(nn.Module):
    """One scheme for each layer. The same object twice shares its weights.

    local = Scheme(Rope(64), causal & window(512))
    schedule = Schedule([local, local, local, Scheme(Nope(), causal)] * 8)
    out = attend(q, k, v, schedule[layer])
    """

    def __init__(self, schemes: Sequence[Scheme]) -> None:
        super().__init__()
        if not schemes:
            raise ValueError("Schedule([]): a schedule needs at least one scheme, one for each layer")
        for layer, scheme in enumerate(schemes):
            if not isinstance(scheme, Scheme):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"Schedule: layer {layer} is a {type(scheme).__name__}; wrap its parts: Scheme(…)")
        distinct = list({id(scheme): scheme for scheme in schemes}.values())
        self.schemes = nn.ModuleList(distinct)
        self.order = tuple(next(n for n, each in enumerate(distinct) if each is scheme) for scheme in schemes)

    def __getitem__(self, layer: int) -> Scheme:
        scheme = self.schemes[self.order[layer]]
        assert isinstance(scheme, Scheme)
        return scheme

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Scheme]:
        return (self[layer] for layer in range(len(self)))

    def same_as(self, other: object) -> bool:
        """Whether the other schedule is built the same way, shared layers included."""
        return isinstance(other, Schedule) and self.to_dict() == other.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """The distinct schemes and the order of the layers; weights live in state_dict()."""
        schemes = [scheme.to_dict() for scheme in self.schemes if isinstance(scheme, Scheme)]
        return {"schedule": list(self.order), "schemes": schemes}

    @staticmethod
    def from_dict(plain: dict[str, Any], methods: Iterable[type] = ()) -> Schedule:
        """Build a schedule from to_dict(); name classes of your own in `methods`."""
        methods = tuple(methods)
        schemes = [Scheme.from_dict(each, methods) for each in plain["schemes"]]
        return Schedule([schemes[number] for number in plain["schedule"]])

    def __repr__(self) -> str:
        return f"Schedule({len(self)} layers, {len(self.schemes)} distinct schemes, order {list(self.order)})"
