"""A scheme: the parts that together say how attention knows where tokens stand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from milepost.backends.block_masks import make_block_mask, mask_mod
from milepost.backends.flex import ScoreMod, score_mod
from milepost.backends.scores import masked, no_values, prepare
from milepost.call.documents import over_keys
from milepost.call.options import Options
from milepost.call.resolve import resolve
from milepost.configs import read
from milepost.configs.reader import Reader
from milepost.configs.rope_types import trained_length
from milepost.configs.stored import changed, entries, parts_in, scheme_in, unread_in
from milepost.memory.surroundings import without_autocast
from milepost.numerics.precision import exact_device, float_type, returned
from milepost.seams import demand
from milepost.seams.arguments import from_plain, spell, to_plain
from milepost.seams.equation import equation
from milepost.seams.heads import taken
from milepost.seams.known import Known
from milepost.seams.parts import Parts
from milepost.seams.verbs import answers


class Scheme(Parts):
    """Parts put together: position encodings, scalings and what is visible.

        scheme = Scheme(Rope(128, stretch=Yarn(factor=8, trained=4096)), LogN(trained=4096), causal)

    Between seams the order of the parts does not matter; within one seam it is the order listed. Without a visible part
    every key is seen. `print(scheme)` shows the equation. Weights of learned parts are the scheme's own parameters.
    """

    trained: int | None = None
    """The length its model was trained at; `Scheme.of` sets it, saving keeps it, and `same_as` ignores it."""

    def __init__(self, *parts: object) -> None:
        super().__init__(*parts)
        # Made once, because layers ask in every call; in a tuple, because its weights are this scheme's own.
        inside = (part for part in parts if not answers(part, "embed"))
        self._inside = (Scheme(*inside),) if self.answering("embed") else ()

    @staticmethod
    def of(config: object, *, layer: int = 0) -> Scheme:
        """Read the scheme of one layer of a model from its configuration.

        config: a model or a config object of transformers, a folder with a config.json, that file, or its dict. Of a
        model that milepost extended, of its config and of its folder this is the scheme that the layer runs under now.
        `scheme.trained` is the length that the model was trained at: max_position_embeddings, or the original one where
        it is stretched.

        An encoder-decoder is read as its encoder, or, with is_decoder in the config, as its decoder. With
        is_causal: false, as embedding models have it, there is no causal part. In a model where some layers are linear,
        convolutions or Mamba (Qwen3-Next, Kimi Linear, LFM2), name a layer that attends; any other raises, and the
        error lists those that do.

        DeepSeek-V3.2 and GLM-5 choose the index_topk keys that a query sees by their content. They are read as they
        treat texts of up to index_topk tokens, where every key is chosen; no scheme describes them beyond that.

        PaliGemma is read as transformers runs it on a plain text, causally. It sees a prefix, the n tokens of image and
        prompt, both ways; n is not in the config, so add it:

            *parts, visible = Scheme.of(config, layer=layer).parts
            scheme = Scheme(*parts, visible | sinks(n) & chunks(n))
        """
        reader = read(config, "Scheme.of")
        layer = reader.layer(layer)
        own = with_trained(reader, reader.family.parts(reader, layer))
        stored = unread_in(reader.source)
        if stored is None:
            return own
        now, before = entries(stored, reader.decodes)
        if not before or not Scheme(*parts_in(before, layer)).same_as(own):
            raise changed("Scheme.of", own)
        scheme = Scheme(*parts_in(now, layer))
        scheme.trained = scheme_in(now, layer).get("trained", own.trained)
        return scheme

    def bias(
        self,
        index: Tensor,
        key_index: Tensor,
        *,
        documents: Tensor | None = None,
        dtype: torch.dtype | None = None,
        rows: int | None = None,
        heads: int | None = None,
    ) -> Tensor:
        """Return the scheme as one dense additive tensor [b|1 h|1 t s], −∞ where a key is hidden.

        index: [t] or [b t]; key_index: [s] or [b s]; documents, [s] or [b s], are the keys': queries are the last t.
        rows, heads: b and h, for a class of your own that reads `batch` or `head`; raises where they are not known, and
        where a part does more than add to scores and hide keys.
        """
        for verb in ("place", "turn", "relate", "scale", "sharpen", "bend_rows", "rest"):
            for part in self.answering(verb):
                raise ValueError(f"scheme.bias: {spell(part)} does more than add to a score: it answers {verb}")
        for part in self.answering("bend"):
            if not getattr(part, "additive", False):
                raise ValueError(
                    f"scheme.bias: {spell(part)} bends a score by more than a sum, so no bias can stand for it"
                )
        i, j = _batched(index), _batched(key_index)
        own, keys, length = _documents("bias", documents, i, j)
        rows, heads = _counted(self, "bias", rows, heads, (index, key_index, documents))
        for verb in ("bend", "see"):
            _demand_counted(self, "bias", verb, rows, heads, (i, j, length))
        batch = torch.arange(rows or 1, device=i.device).view(-1, 1, 1, 1)
        head = torch.arange(heads or 1, device=i.device).view(-1, 1, 1)
        learned = next((weight.dtype for weight in self.parameters()), torch.get_default_dtype())
        nothing = torch.zeros(1, 1, i.shape[1], j.shape[1], device=i.device, dtype=dtype or learned)
        i, j = i[:, None, :, None], j[:, None, None, :]
        added = self.bend(nothing, batch, head, i, j, length[:, None, :, None])
        seen = self.see(batch, head, i, j)
        if own is not None and keys is not None:
            together = (own[:, None, :, None] == keys[:, None, None, :]) & (own >= 0)[:, None, :, None]
            seen = together if seen is None else seen & together
        return added if seen is None else torch.where(seen, added, -torch.inf)

    def flex(
        self,
        index: Tensor,
        key_index: Tensor,
        *,
        documents: Tensor | None = None,
        device: torch.device | str | None = None,
        rows: int | None = None,
        heads: int | None = None,
    ) -> tuple[ScoreMod, BlockMask]:
        """Return the scheme's `score_mod` and `block_mask` for FlexAttention.

            flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, scale=scheme.scale(d))

        index, key_index, documents, rows and heads are those of `bias`. Queries and keys are given as they are turned.
        """
        for verb in ("place", "relate", "bend_rows", "rest"):
            for part in self.answering(verb):
                raise ValueError(f"scheme.flex: {spell(part)} answers {verb}, which no score_mod can do; use attend")
        device = index.device if device is None else torch.device(device)
        i, j = _batched(index).to(device), _batched(key_index).to(device)
        own, keys, length = _documents("flex", None if documents is None else documents.to(device), i, j)
        rows, heads = _counted(self, "flex", rows, heads, (index, key_index, documents))
        by_row, by_head = _demand_counted(self, "flex", "see", rows, heads, (i, j, length))
        by_row = by_row or any(each is not None and len(each) > 1 for each in (i, j, keys))
        by_head = by_head or any(getattr(part, "by_head", False) for part in self.answering("see"))
        mask = mask_mod(self, i, j, own, keys)
        return (
            score_mod(self, i, j, length, self.sharpen(i, length)),
            make_block_mask(mask, rows if by_row else None, heads if by_head else None, i.shape[1], j.shape[1], device),
        )

    def distances(
        self,
        index: Tensor,
        key_index: Tensor,
        *,
        position: Tensor | None = None,
        key_position: Tensor | None = None,
    ) -> Tensor:
        """Return the distance p − r at which the rotation sees each pair, [b|1 t s] in float64.

            Scheme(Rope(64), SelfExtend(group=8, neighbours=512)).distances(torch.arange(4096), torch.arange(4096))

        It is the distance of the positions, but where a part moves them: ReRoPE, Self-Extend, dual chunks, streaming. A
        stretch of RoPE changes frequencies, and no distance. NaN where no region holds a pair, which hides it; what
        `see` hides has a distance all the same.
        index: [t] or [b t]; key_index: [s] or [b s]; positions are the indices if left out.
        """
        i, j = _batched(index, "scheme.distances: index"), _batched(key_index, "scheme.distances: key_index")
        p = i if position is None else _batched(position, "scheme.distances: position")
        r = j if key_position is None else _batched(key_position, "scheme.distances: key_position")
        if self.unread_place is not None:
            raise ValueError(f"scheme.distances: {self.unread_place}")
        exact, device = exact_device(p.device), p.device
        i, j, p, r = (each.to(exact) for each in (i, j, p, r))
        pairs = p[:, :, None], r[:, None, :], i[:, :, None], j[:, None, :]
        found: Tensor | None = None
        for regime in self.place():
            moved, met = (regime.query(i), regime.key(j)) if regime.by_index else (regime.query(p), regime.key(r))
            one, region = moved[:, :, None].double() - met[:, None, :].double(), regime.holds(*pairs)
            none = one.new_full((), torch.nan) if found is None else found
            found = one if region is None else torch.where(region, one, none)
        assert found is not None
        return returned(found, device)

    def curve(self, q: Tensor, k: Tensor, distances: Tensor, length: int) -> Tensor:
        """Return the score of one query and one key at each distance, [h n]; −∞ where the key is hidden.

            scheme.curve(q, k, torch.arange(0, 131_072, 200), 131_072)

        q: [h d]; k: [g d], the same at every distance. The key stands `distances` [n] behind the query, which is the
        last token of a text of that length; where keys stand ahead of it (below 0), the farthest is the last.
        Computed in float64 where the device has it. CoPE and Pivot raise: they change a score by the other keys of
        its row.
        """
        part = self.needs_whole_rows
        if part is not None:
            raise ValueError(
                f"scheme.curve: {spell(part)} changes a score by the other keys of its row, so that one key has no "
                f"score; use mp.scores on a whole text"
            )
        demand.whole(self.curve, "length", length)
        if q.dim() != 2 or k.dim() != 2:
            raise ValueError(
                f"scheme.curve: q is [h d] and k [g d], one token each; given {list(q.shape)} and {list(k.shape)}"
            )
        distances = demand.exact("scheme.curve: distances", distances)
        if distances.dim() != 1:
            raise ValueError(f"scheme.curve: distances is [n]; given {list(distances.shape)}")
        far, ahead = (int(distances.max()), max(0, -int(distances.min()))) if distances.numel() else (0, 0)
        last = length - 1 - ahead
        if far > last:
            also = f" and one {ahead} ahead" if ahead else ""
            raise ValueError(
                f"scheme.curve: a key {far} behind a query{also} needs {far + ahead + 1} tokens; given length={length}"
            )
        wide = float_type(q.device)
        keys = k.to(wide)[None, :, None].expand(-1, -1, len(distances), -1)
        tokens: Options = {
            "index": torch.tensor([last], device=q.device),
            "key_index": last - distances.to(q.device),
            "length": length,
        }
        call = resolve(q.to(wide)[None, :, None], keys, no_values(self, keys), self, tokens)
        seen = self.distances(call.index, call.key_index).flatten()
        rising = seen[~seen.isnan()].round().long().sort().values
        with without_autocast(q.device):
            made = prepare(call, rising)
            return masked(made)[0, :, 0].to(torch.promote_types(q.dtype, torch.float32))

    @property
    def attention(self) -> Scheme:
        """The scheme without the parts that act on the token embeddings. Weights are shared."""
        return self._inside[0] if self._inside else self

    def take_heads(self, first: int, count: int) -> Scheme:
        """Return the scheme of the query heads first … first + count − 1, for a device that has these alone.

            attend(q[:, 4:8], k[:, 1:2], v[:, 1:2], scheme.take_heads(4, 4))

        Weights are shared, so that a gradient reaches those of these heads.
        """
        demand.whole(Scheme.take_heads, "first", first, least=0)
        demand.whole(Scheme.take_heads, "count", count)
        if self.heads is not None and first + count > self.heads:
            raise ValueError(
                f"scheme.take_heads(first={first}, count={count}): the scheme has {self.heads} heads, and these end at "
                f"{first + count}"
            )
        found = Scheme(*(taken(part, first, count) for part in self.parts))
        found.trained = self.trained
        return found

    def same_as(self, other: object) -> bool:
        """Return True if the other scheme is built the same way. Weights are not compared: they are in state_dict()."""
        return isinstance(other, Scheme) and self.to_dict()["scheme"] == other.to_dict()["scheme"]

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments of every part as JSON has them, and the trained length if it is known.

        Weights are in state_dict().
        """
        known = {} if self.trained is None else {"trained": self.trained}
        return {"scheme": [to_plain(part) for part in self.parts], **known}

    @staticmethod
    def from_dict(plain: dict[str, Any], *, methods: Iterable[type] = ()) -> Scheme:
        """Build a scheme from to_dict(), that of 0.1 included; name classes of your own in `methods`.

        Those of packages with the entry point `milepost.methods` are found by themselves.
        """
        if "scheme" not in plain:
            raise ValueError(f"Scheme.from_dict: expected {{'scheme': […]}}, given the keys {sorted(plain)}")
        scheme = Scheme(*from_plain(plain["scheme"], Known(methods)))
        scheme.trained = plain.get("trained")
        return scheme

    def __str__(self) -> str:
        return equation(self)


def with_trained(reader: Reader, parts: Sequence[object]) -> Scheme:
    """Return the scheme of parts that were read from a configuration, with the length that the model was trained at."""
    scheme = Scheme(*parts)
    scheme.trained = trained_length(reader, parts)
    return scheme


def _counted(
    scheme: Scheme, piece: str, rows: int | None, heads: int | None, tokens: Iterable[Tensor | None]
) -> tuple[int | None, int | None]:
    """Return how many rows and heads there are; None where neither the caller nor what is given tells."""
    told = max([0, *(len(each) for each in tokens if each is not None and each.dim() == 2)]) or None
    for name, asked, known in (("rows", rows, told), ("heads", heads, scheme.heads)):
        if asked is not None:
            demand.whole(getattr(scheme, piece), name, asked)
        # One row of indices serves any number of rows.
        if asked is not None and known not in (None, asked) and (name, known) != ("rows", 1):
            raise ValueError(
                f"scheme.{piece}({name}={asked}): what is given has {known} {name}; "
                f"give {name}={known}, or leave it out"
            )
    return rows or told, heads or scheme.heads


def _demand_counted(
    scheme: Scheme,
    piece: str,
    verb: Literal["bend", "see"],
    rows: int | None,
    heads: int | None,
    tokens: tuple[Tensor, Tensor, Tensor],
) -> tuple[bool, bool]:
    """Return whether a class of another's reads the row and the head; raise if it is not known how many there are."""
    found: list[bool] = []
    numbers: tuple[tuple[Literal["batch", "head"], str, int | None], ...]
    numbers = ("batch", "rows", rows), ("head", "heads", heads)
    for number, name, known in numbers:
        part = scheme.reader_of(number, verb, *tokens)
        found.append(part is not None)
        if part is not None and known is None:
            raise ValueError(
                f"scheme.{piece}: {spell(part)} reads `{number}` in {verb}, and nothing tells how many {name} there "
                f"are; give {name}="
            )
    return found[0], found[1]


def _documents(
    piece: str, documents: Tensor | None, index: Tensor, key_index: Tensor
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return the documents of the queries, the last ones, and of the keys; and the length of each query's document."""
    own = keys = None
    if documents is not None:
        t, s = index.shape[1], key_index.shape[1]
        keys = _batched(documents, "scheme.bias and scheme.flex: documents", fractions=False)
        if keys.shape[1] != s:
            raise ValueError(
                f"scheme.{piece}: documents has {keys.shape[1]} entries, but there are {s} keys; give one for each key"
            )
        if t > s:
            raise ValueError(
                f"scheme.{piece}: with documents the queries are the last of the keys, and {t} are more than {s} keys; "
                f"give as many keys as queries, or leave documents out"
            )
        own = keys[:, s - t :]
    return own, keys, over_keys(key_index, "amax", own, keys)[0] + 1


def _batched(values: Tensor, name: str = "scheme.bias and scheme.flex: index", *, fractions: bool = True) -> Tensor:
    values = demand.exact(name, values, fractions=fractions)
    return values[None] if values.dim() == 1 else values
