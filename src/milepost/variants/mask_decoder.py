"""DeBERTa's enhanced mask decoder: absolute positions enter last (He et al., 2020, arXiv:2006.03654, section 3.2)."""

from collections.abc import Callable

from torch import Tensor, nn

from milepost.methods.embeddings import Learned
from milepost.seams import demand


class MaskDecoder(nn.Module):
    """Run the last encoder layer again, with queries that know their absolute positions.

        decoder = MaskDecoder(512, 768)
        states = decoder(hidden, lambda query, hidden: last_layer(query, hidden))

    `hidden` [b t D] is what enters the last layer; the layer takes queries from its first argument and keys and values
    from its second. It is applied `times` times with the same weights, each time to the last result: in DeBERTa-base
    eleven layers, then the twelfth twice. Language modelling reads the result; fine-tuning uses the plain layers.
    """

    def __init__(self, length: int, model_dim: int, *, times: int = 2) -> None:
        super().__init__()
        demand.whole(self, "times", times)
        self.length, self.model_dim, self.times = length, model_dim, times
        self.positions = Learned(length, model_dim)

    def forward(self, hidden: Tensor, layer: Callable[[Tensor, Tensor], Tensor], index: Tensor | None = None) -> Tensor:
        """hidden: [b t D], index: [t] or [b t]; returns [b t D]."""
        query = self.positions.embed(hidden, index)
        for _ in range(self.times):
            query = layer(query, hidden)
        return query
