"""Sinusoidal positions as a table, and as the module that adds it to embeddings."""

import torch
from torch import Tensor, nn

from milepost.dropin.tables import Tabled, count
from milepost.methods.embeddings import Sinusoidal
from milepost.seams import demand


def sinusoidal_embedding(n_channels: int, dim: int) -> Tensor:
    """Return the waves of positions 0 … n_channels − 1, [1 n_channels dim].

    The first argument is the number of positions, whatever its name. dim may be odd: the last sine then has no cosine.
    """
    demand.whole(sinusoidal_embedding, "n_channels", n_channels, least=0)
    demand.whole(sinusoidal_embedding, "dim", dim)
    return waves(torch.arange(n_channels), dim)


def waves(position: Tensor, dim: int) -> Tensor:
    """Sine and cosine of each wavelength by turns, [1 t dim] in float32."""
    # An odd width keeps its own wavelengths, dim/2 of them, and drops the last cosine.
    table = Sinusoidal(dim + dim % 2, denominator=dim / 2).table(position)
    return table[None, :, :dim].float()


class PositionalEncoding(Tabled):
    """Add the sinusoidal waves to token embeddings, then drop some.

    A text of any length takes its own rows of the table, which grows past max_len where it must. Nothing is saved in
    the state_dict.
    """

    positional_encodings: Tensor

    def __init__(self, d_model: int, dropout_prob: float, max_len: int = 5000) -> None:
        super().__init__()
        demand.whole(self, "d_model", d_model)
        demand.whole(self, "max_len", max_len)
        self.d_model = d_model
        self.dropout = nn.Dropout(dropout_prob)
        self.hold(max_len)

    @staticmethod
    def get_positional_encoding(d_model: int, max_len: int) -> Tensor:
        """Return the table [1 max_len d_model]."""
        return sinusoidal_embedding(max_len, d_model)

    def tables(self, position: Tensor) -> dict[str, Tensor]:
        return {"positional_encodings": waves(position, self.d_model)}

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """x: [b t d_model]; returns the same shape and dtype. With a cache, start is how many tokens came before."""
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"PositionalEncoding: x is [b, t, {self.d_model}]; given {list(x.shape)}")
        start = count("PositionalEncoding", "start", start)
        end = start + x.shape[1]
        self.need(end, x.device)
        return self.dropout(x + self.positional_encodings[:, start:end].to(x.dtype))
