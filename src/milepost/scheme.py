"""A scheme: the parts that together say how attention knows where tokens stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from torch import Tensor

from milepost.seams.arguments import from_plain, to_plain
from milepost.seams.equation import equation
from milepost.seams.known import Known
from milepost.seams.parts import Parts
from milepost.seams.verbs import answers


class Scheme(Parts):
    """Parts put together: position encodings, scalings and what is visible.

        scheme = Scheme(Rope(128, stretch=Yarn(factor=8, trained=4096)), LogN(trained=4096), causal)

    Between seams the order of the parts does not matter; within one seam it is the order listed. Without a visible part
    every key is seen. `print(scheme)` shows the equation. Weights of learned parts are the scheme's own parameters.
    """

    of: ClassVar[Callable[..., Scheme]]
    """The scheme of one layer of a model, read from its configuration; `milepost.configs` puts it here."""
    trained: int | None = None
    """The length its model was trained at; `Scheme.of` sets it, saving keeps it, and `same_as` passes over it."""
    bias: Callable[..., Tensor]
    """One dense additive tensor, masks included; `milepost.pieces` puts it here."""
    flex: Callable[..., tuple[Any, Any]]
    """`score_mod` and `block_mask` for FlexAttention; `milepost.pieces` puts it here."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        # Made once, because layers ask in every call; in a tuple, because its weights are this scheme's own.
        inside = (part for part in parts if not answers(part, "embed"))
        self._inside = (Scheme(*inside),) if self._embeds else ()

    @property
    def attention(self) -> Scheme:
        """What attention does: the scheme without the parts that act on the token embeddings. Weights are shared."""
        return self._inside[0] if self._inside else self

    def same_as(self, other: object) -> bool:
        """Whether the other scheme is built the same way. Weights are not compared; they live in state_dict()."""
        return isinstance(other, Scheme) and self.to_dict()["scheme"] == other.to_dict()["scheme"]

    def to_dict(self) -> dict[str, Any]:
        """The constructor's arguments of every part, as what JSON can hold, and the trained length where it is known.

        Weights live in state_dict().
        """
        known = {} if self.trained is None else {"trained": self.trained}
        return {"scheme": [to_plain(part) for part in self.parts], **known}

    @staticmethod
    def from_dict(plain: dict[str, Any], methods: Iterable[type] = ()) -> Scheme:
        """Build a scheme from to_dict(); name classes of your own in `methods`.

        Those of packages with the entry point `milepost.methods` are found by themselves.
        """
        if "scheme" not in plain:
            raise ValueError(f"Scheme.from_dict: expected {{'scheme': […]}}, given the keys {sorted(plain)}")
        scheme = Scheme(*from_plain(plain["scheme"], Known(methods)))
        scheme.trained = plain.get("trained")
        return scheme

    def __str__(self) -> str:
        return equation(self)
