"""Llama's rotary embedding as transformers has had it over the years: made by a width or by a config."""

from typing import Any

import torch
from torch import Tensor

from milepost.dropin.tables import Tabled, count
from milepost.methods.partial import Partial
from milepost.methods.rope import Rope
from milepost.seams import demand
from milepost.seams.arguments import spell


class LlamaRotaryEmbedding(Tabled):
    """Cosines and sines of positions, for apply_rotary_pos_emb.

    Made by a config and called with positions, as in today's transformers, it gives the rows of those positions:

        cos, sin = LlamaRotaryEmbedding(config)(x, position_ids)          # [b t d]

    Made by the width of a head (head_dim, also called dim) and called with a number of tokens, as in older code, it
    gives a table of all positions up to there:

        cos, sin = LlamaRotaryEmbedding(128, 2048, 10000)(x, seq_len=t)   # [1 1 t d]

    The two ways of making and of calling it may be mixed. A config may be of any model that `Rope.of` reads; the table
    is as wide as the channels that rotate. Tables grow where a longer text needs them. Nothing is saved in the
    state_dict; an `inv_freq` in one that was saved by older code is ignored. Angles are formed in float64, and
    casting the module does not touch them. Where they depend on the length, that of the call counts, never that of a
    call before it.
    """

    cos_cached: Tensor
    sin_cached: Tensor

    def __init__(
        self,
        head_dim: Any = None,
        max_position_embeddings: Any = 2048,
        base: float = 10000,
        device: torch.device | str | None = None,
        *,
        dim: int | None = None,
        config: Any = None,
    ) -> None:
        super().__init__()
        width, self.config = _width_or_config(head_dim=head_dim, dim=dim, config=config)
        if self.config is None:
            demand.even(self, "head_dim", width, "channels are turned in pairs")
            demand.whole(self, "max_position_embeddings", max_position_embeddings)
            demand.finite(self, "base", base, above=1)
            self.rope, rows = Rope(width, theta=base), max_position_embeddings
        else:
            # What may follow a config is a device.
            if isinstance(max_position_embeddings, (str, torch.device)):
                device = max_position_embeddings
            self.rope, rows = _rotation(self.config), 0
        self.hold(rows, device)
        self.register_load_state_dict_pre_hook(_pass_over)

    @property
    def max_seq_len_cached(self) -> int:
        """The number of positions in the tables now; of a config, its longest length."""
        return self.cos_cached.shape[2] or getattr(self.config, "max_position_embeddings", 0)

    @property
    def inv_freq(self) -> Tensor:
        """The frequencies of the pairs in float32, [d/2]; where these depend on the length, those of a short text."""
        d, device = self.rope.head_dim, self.cos_cached.device
        f = self.rope.theta ** (-2 * torch.arange(d // 2, dtype=torch.float64, device=device) / d)
        stretch, one = self.rope.stretch, torch.ones(1, dtype=torch.float64, device=device)
        return (f if stretch is None else stretch.frequencies(f, one)).reshape(-1).float()

    @property
    def attention_scaling(self) -> float:
        """The factor on cosines and sines; 1 without a stretch that has one."""
        return float(self.rope.magnitude(torch.ones(1, dtype=torch.float64)))

    def tables(self, position: Tensor) -> dict[str, Tensor]:
        cos, sin = (each[None, None] for each in self._rows(position, max(1, position.numel())))
        return {"cos_cached": cos, "sin_cached": sin}

    def forward(
        self,
        x: Tensor,
        of: Tensor | int | None = None,
        seq_len: int | Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cosines and sines in the dtype of x: of the positions [b t d], or of 0 … seq_len − 1 [1 1 seq_len d].

        x gives the dtype and the device. The second argument is position_ids where it is a tensor [t] or [b t], as
        today, and seq_len where it is a number, as before; either may be named. With positions, seq_len is ignored;
        without both it is the t of x [b h t d]. With a cache it counts the cached tokens too.
        """
        if not x.is_floating_point():
            raise TypeError(f"LlamaRotaryEmbedding: x must be of a floating dtype, given {x.dtype}")
        if isinstance(of, Tensor) and of.dim():
            position_ids = of
        elif of is not None:
            seq_len = of
        if position_ids is not None:
            cos, sin = self._of_positions(position_ids.to(x.device))
            return cos.to(x.dtype), sin.to(x.dtype)
        if seq_len is None and x.dim() < 2:
            raise ValueError(f"LlamaRotaryEmbedding: x is [b h t d]; given {list(x.shape)}")
        end = x.shape[-2] if seq_len is None else count("LlamaRotaryEmbedding", "seq_len", seq_len)
        if self.rope.by_length:
            cos, sin = (each[None, None] for each in self._rows(torch.arange(end, device=x.device), end))
            return cos.to(x.dtype), sin.to(x.dtype)
        self.need(end, x.device)
        return self.cos_cached[:, :, :end].to(x.dtype), self.sin_cached[:, :, :end].to(x.dtype)

    def _of_positions(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        if position_ids.dtype == torch.bool or position_ids.is_complex() or not position_ids.dim():
            raise TypeError(
                f"LlamaRotaryEmbedding: position_ids are numbers [t] or [b t], given {position_ids.dtype} "
                f"{list(position_ids.shape)}"
            )
        # The longest text of the batch counts for all, as in transformers.
        length = (position_ids.max() + 1).reshape(1) if self.rope.by_length and position_ids.numel() else 1
        return self._rows(position_ids, length)

    def _rows(self, position: Tensor, length: Tensor | int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [… d] of positions [… ], both halves alike."""
        cos, sin = (torch.cat((each, each), -1) for each in self.rope.cos_sin(position, length))
        return cos, sin


def _rotation(config: Any) -> Rope:
    """Return the rotation of a config, if tables with one position a token express it."""
    turn = Rope.of(config)
    rope = turn.method if isinstance(turn, Partial) else turn
    if not isinstance(rope, Rope):
        raise ValueError(
            f"LlamaRotaryEmbedding: the config rotates by {spell(rope)}, which reads several positions a token; "
            f"Rope.of(config) gives it"
        )
    return rope


def _width_or_config(**named: Any) -> tuple[Any, Any]:
    """Return the width of a head or a config, whichever is given; a config may come first, in the place of a width."""
    given = {name: each for name, each in named.items() if each is not None}
    if len(given) != 1:
        raise TypeError(
            f"LlamaRotaryEmbedding: give the width of a head (head_dim, also called dim) or a config; given "
            f"{' and '.join(given) or 'none of them'}"
        )
    ((name, found),) = given.items()
    return (None, found) if name == "config" or not isinstance(found, (int, float)) else (found, None)


def _pass_over(module: Any, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Drop inv_freq, which older code saved: it follows from the constructor's arguments."""
    state_dict.pop(f"{prefix}inv_freq", None)
