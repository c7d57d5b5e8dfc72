"""The parts of a scheme, gathered by verb: what a call and every backend read."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from milepost.memory.fixed import OURS, is_fixed, is_ours, state_of
from milepost.seams.arguments import spell
from milepost.seams.band import Band, common
from milepost.seams.facets import FACETS, has_facet
from milepost.seams.misspelt import demand_verbs
from milepost.seams.verbs import VERBS, OfRows, Regime, Relation, Side, SlopeStretch, Stretch, answers, verbs_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Parts(nn.Module):
    """What a scheme is made of, one tuple a verb. Users make a `Scheme`, which can be printed and saved besides."""

    def __init__(self, *parts: object) -> None:
        super().__init__()
        self.parts = parts
        for part in parts:
            _check_part(part)
        for name, module in _modules_of(parts):
            self.add_module(name, module)
        # One tuple a verb, so that a call never asks a part what it is.
        self._answering: dict[str, tuple[Any, ...]] = {
            **{each: tuple(part for part in parts if answers(part, each)) for each in (*VERBS, "centred")},
            **{facet: tuple(part for part in parts if has_facet(part, facet)) for facet in FACETS},
        }
        # In the order listed, but for what belongs to the content, which comes before any rotation.
        self._turns = tuple(sorted(self._answering["turn"], key=lambda part: not getattr(part, "turns_first", False)))
        self._band = self._common_band() if all(map(is_fixed, self._answering["see"])) else ...
        _check_together(self)
        self.foreign = {
            verb: tuple(part for part in self._answering[verb] if not _is_own(part)) for verb in ("bend", "see")
        }
        """The parts of classes that are not milepost's: these may read the batch, and the head unannounced."""
        self.unread_place = _unread_place(self)
        """Why `attend` refuses a part that moves tokens, or None; it may join others before that."""

    # Calls read what was gathered of the parts above, so that another part put here would do nothing

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse_other(name, value)
        super().__setattr__(name, value)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        self._refuse_other(name, module)
        super().add_module(name, module)

    def __delattr__(self, name: str) -> None:
        self._refuse_other(name, None)
        super().__delattr__(name)

    def _refuse_other(self, name: str, value: object) -> None:
        held = self.__dict__
        part = held.get("parts") if name == "parts" else held.get("_modules", {}).get(name)
        if part is not None and part is not value:
            raise AttributeError(
                f"scheme.{name}: the parts of a scheme stay what they are; build another with those you want: "
                f"Scheme(*parts)"
            )

    # What the parts say of themselves

    @property
    def relative(self) -> bool:
        """Whether shifting all positions changes nothing."""
        return all(getattr(part, "relative", False) for part in self.parts)

    @property
    def is_causal(self) -> bool:
        """Whether no key ahead of the query is ever seen."""
        return any(getattr(part, "is_causal", False) for part in self._answering["see"])

    @property
    def by_length(self) -> bool:
        """Whether what a token gets depends on how many tokens there are."""
        return any(getattr(part, "by_length", False) for part in self.parts)

    @property
    def turns_keys_once(self) -> bool:
        """Whether a key may be turned when it comes and kept so: its angle follows from its position alone.

        Not so where the angle depends on the length, on the regime, on the middle of the keys or on what may change,
        such as weights, and not where something reads the raw key: tables by distance, and gates on keys.
        """
        if self._answering["place"] or self._answering["relate"] or not self._turns:
            return False
        if any(getattr(part, "gates", None) == "keys" for part in self._answering["bend_rows"]):
            return False
        moving = any(getattr(part, facet, False) for part in self._turns for facet in ("by_length", "centred"))
        return all(map(is_fixed, self._turns)) and not moving

    @property
    def reads_span(self) -> bool:
        """Whether a part has a table for every distance there is; one with a reach is constant past it."""
        return any(getattr(part, "reach", None) is None for part in self._answering["relate"])

    @property
    def axes(self) -> int | None:
        """How many coordinates a position has, where a part reads more than one."""
        counts = (getattr(part, "axes", None) for part in self._turns)
        return next((axes for axes in counts if axes is not None), None)

    @property
    def heads(self) -> int | None:
        """How many query heads the parts were made for, where any of them cares."""
        return next((heads for _, heads in _heads_of(self.parts)), None)

    @property
    def needs_whole_rows(self) -> object | None:
        """The part whose effect on a score depends on the other keys of its row, or None."""
        contrasted = self._answering["place"] if any(regime.contrast is not None for regime in self.place()) else ()
        return next(iter((*self._answering["bend_rows"], *contrasted)), None)

    def answering(self, asked: str) -> tuple[object, ...]:
        """The parts that answer a verb or a facet, or of which something else such as `by_length` is true, in order."""
        found = self._answering.get(asked)
        return tuple(part for part in self.parts if answers(part, asked)) if found is None else found

    def weights(self) -> tuple[Tensor, ...]:
        """What the parts learn; many schemes learn nothing, and say so at once."""
        if not self._modules:
            return ()
        if torch.compiler.is_compiling():
            return tuple(self.parameters())
        found: dict[int, Tensor] = {}
        _collect(self, found, set())
        return tuple(found.values())

    def state(self) -> Hashable | None:
        """Return what decides how the parts run, but for the numbers in their tensors; None if it cannot be known."""
        # Read when it is wanted first: a scheme may be made in a graph that is traced.
        fixed = self.__dict__.get("_fixed")
        if fixed is None:
            fixed = self.__dict__["_fixed"] = all(is_ours(part) for part in self.parts)
        if fixed:
            # The scheme is the same object, so its parts are.
            return True
        states = tuple([state_of(part) for part in self.parts])
        return None if None in states else states

    def reader_of(
        self, number: Literal["batch", "head"], verb: Literal["bend", "see"], i: Tensor, j: Tensor, length: Tensor
    ) -> object | None:
        """Return a part of another's class that reads the number of the row of the batch, or of the head, or None.

        Asked of one pair of the indices [b|1 t] and [b|1 s]; in a graph that is traced, whoever may is taken to.
        """
        if not self.foreign[verb] or torch.compiler.is_compiling():
            return next(iter(self.foreign[verb]), None)
        i, j, length = (each[:1, None, :1, None] for each in (i, j, length))
        one = torch.zeros_like(i, dtype=torch.int64)
        unread = torch.zeros_like(one).as_subclass(_Unread)
        batch, head = (unread, one[0]) if number == "batch" else (one, unread)
        return next((part for part in self.foreign[verb] if _reads(part, verb, batch, head, i, j, length)), None)

    # The seams, all parts together

    def embed(self, x: Tensor, index: Tensor | None = None) -> Tensor:
        """Give token embeddings x [b t D] their positions; index is [t] or [b t], 0 … t − 1 if None."""
        for part in self._answering["embed"]:
            x = part.embed(x, index)
        return x

    def place(self) -> tuple[Regime, ...]:
        """The regimes in which tokens stand; one that covers everything if no part places them."""
        return self._answering["place"][0].place() if self._answering["place"] else (Regime(),)

    def turn(self, x: Tensor, position: Tensor, side: Side = "query", length: Tensor | int | None = None) -> Tensor:
        """Turn queries, keys or values x [b h t d], each part after the other."""
        for part in self._turns:
            x = part.turn(x, position, side, length)
        return x

    def relate(self, span: int, only: Tensor | None = None) -> tuple[Relation, ...]:
        """The tables that parts look up by distance; only: the distances [n] that are looked up, where others are not.

        A part whose table has a row for every distance then makes those rows alone.
        """
        few = () if only is None else self._answering["relate_at"]
        return tuple(part.relate_at(only) if part in few else part.relate(span) for part in self._answering["relate"])

    def scale(self, dim: int) -> float:
        """The softmax scale for queries of width dim."""
        return self._answering["scale"][0].scale(dim) if self._answering["scale"] else dim**-0.5

    def sharpen(
        self, index: Tensor, length: Tensor, rows: int | None = None, heads: int | None = None
    ) -> Tensor | None:
        """Return the factor on the scale of each query, [b|1 h|1 t|1], or None; rows and heads: how many there are."""
        factor: Tensor | None = None
        sizes = (rows, heads, index.shape[1])
        for part in self._answering["sharpen"]:
            one = _by_row_and_head(part, part.sharpen(index, length), sizes)
            factor = one if factor is None else factor * one
        return factor

    def bend(
        self, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor, length: Tensor | None = None
    ) -> Tensor:
        """Bend one score, or a tile of them; a part that goes by the length is given it."""
        for part in self._answering["bend"]:
            score = _bent(part, score, batch, head, p, r, length)
        return score

    def see(self, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor | None:
        """Whether query i sees key j; None where no part hides anything."""
        seen: Tensor | None = None
        for part in self._answering["see"]:
            one = part.see(batch, head, i, j)
            seen = one if seen is None else seen & one
        return seen

    def band(self) -> Band | None:
        """What is visible in its normal form, or None where it has none."""
        return self._common_band() if self._band is ... else self._band

    def _common_band(self) -> Band | None:
        return common(part.normal() if hasattr(part, "normal") else None for part in self._answering["see"])

    def bend_rows(
        self, scores: Tensor, q: Tensor, k: Tensor, v: Tensor, x: Tensor | None, **tokens: Unpack[OfRows]
    ) -> Tensor:
        """Bend whole rows of masked scores [b h t s]; a part that gates on keys or values is given those as its x.

        tokens: the indices and positions of the rows and keys.
        """
        for part in self._answering["bend_rows"]:
            own = {"keys": k, "values": v}.get(getattr(part, "gates", ""), x)
            scores = part.bend_rows(scores, q, own, **tokens)
        return scores

    def rest(self) -> Tensor | None:
        """The logit of attending to nothing, [h], or None."""
        logits = [part.rest() for part in self._answering["rest"]]
        # What is not learned is made on the CPU.
        device = next((logit.device for logit in logits if logit.device.type != "cpu"), None)
        total: Tensor | None = None
        for logit in logits:
            total = logit.to(device) if total is None else torch.logaddexp(total, logit.to(device))
        return total

    def __repr__(self) -> str:
        return f"Scheme({', '.join(map(repr, self.parts))})"


def _collect(module: nn.Module, found: dict[int, Tensor], seen: set[int]) -> None:
    """What a module learns, in the order of `parameters()`, which takes as long as several kernels do to launch."""
    seen.add(id(module))
    for weight in module._parameters.values():  # pyright: ignore[reportPrivateUsage]
        if weight is not None:
            found[id(weight)] = weight
    for child in module._modules.values():  # pyright: ignore[reportPrivateUsage]
        if child is not None and id(child) not in seen:
            _collect(child, found, seen)


def _modules_of(parts: Sequence[object]) -> Iterator[tuple[str, nn.Module]]:
    """Every part that learns, and every learner that a part holds, named by where it stands."""
    for number, part in enumerate(parts):
        if isinstance(part, nn.Module):
            yield str(number), part
        elif dataclasses.is_dataclass(part):
            for field in dataclasses.fields(part):
                inner = getattr(part, field.name)
                if isinstance(inner, nn.Module):
                    yield f"{number}_{field.name}", inner


def _heads_of(parts: Sequence[object]) -> Iterator[tuple[object, int]]:
    return ((part, part.heads) for part in parts if isinstance(getattr(part, "heads", None), int))  # pyright: ignore


def _is_own(part: object) -> bool:
    """Whether a part, and each that sees or bends within it, is of a class of milepost's."""
    fields = dataclasses.fields(part) if dataclasses.is_dataclass(part) else ()
    held = (getattr(part, field.name) for field in fields)
    own = type(part).__module__.startswith(OURS)
    return own and all(_is_own(each) for each in held if answers(each, "see") or answers(each, "bend"))


class _Unread(Tensor):
    """A number that nobody reads without raising."""

    @classmethod
    def __torch_function__(cls, func: object, types: object, args: object = (), kwargs: object = None) -> Any:
        raise LookupError


def _reads(part: Any, verb: str, batch: Tensor, head: Tensor, i: Tensor, j: Tensor, length: Tensor) -> bool:
    """Whether a part reads a number that is not to be read, or fails at what it is given."""
    try:
        with torch.no_grad():
            if verb == "see":
                part.see(batch, head, i, j)
            else:
                _bent(part, torch.zeros_like(length, dtype=torch.float32), batch, head, i, j, length)
    except Exception:
        return True
    return False


def _bent(part: Any, score: Tensor, batch: Tensor, head: Tensor, p: Tensor, r: Tensor, length: Tensor | None) -> Tensor:
    """Bend by one part, which is given the length if it goes by it."""
    extra = {"length": length} if getattr(part, "by_length", False) else {}
    return part.bend(score, batch, head, p, r, **extra)


def _by_row_and_head(part: object, factor: Tensor, sizes: tuple[int | None, int | None, int]) -> Tensor:
    """Bring what `sharpen` returned to [b|1 h|1 t|1]; a size that is None is not known."""
    wide = factor if factor.dim() >= 2 else factor.reshape(1, -1)
    wide = wide[:, None] if wide.dim() == 2 else wide
    fits = wide.dim() == 3 and all(n is None or own == 1 or own == n for own, n in zip(wide.shape, sizes, strict=True))
    if not fits:
        b, h, t = (name if size is None else size for name, size in zip("bht", sizes, strict=True))
        raise ValueError(
            f"{spell(part)}: sharpen returned a factor of shape {list(factor.shape)}; give [{t}], [{b}|1, {t}|1] or "
            f"[{b}|1, {h}|1, {t}|1]"
        )
    return wide


def _check_part(part: object) -> None:
    if isinstance(part, type):
        raise TypeError(f"Scheme({part.__name__}): this is a class; make one: {part.__name__}(…)")
    if isinstance(part, Parts):
        raise TypeError(
            "Scheme(Scheme(…)): a scheme is not a part of another; give its parts: Scheme(*scheme.parts, …)"
        )
    for stretch, holder in ((Stretch, "a rotation: Rope(dim"), (SlopeStretch, "ALiBi: Alibi(heads")):
        if isinstance(part, stretch) and not verbs_of(part):
            raise TypeError(
                f"Scheme({spell(part)}): {type(part).__name__} is not a part of a scheme, it stretches {holder}, "
                f"stretch={spell(part)})"
            )
    if hasattr(part, "sample"):
        raise TypeError(
            f"Scheme({spell(part)}): {type(part).__name__} is not a part of a scheme, it draws positions: "
            f"attend(q, k, v, scheme, position=at, key_position=at) with at = {spell(part)}.sample(length)"
        )
    demand_verbs(part)
    if not verbs_of(part) and not hasattr(part, "relative"):
        raise TypeError(
            f"Scheme({part!r}): a part is a method or what is visible, such as Rope(64) or causal; "
            f"{type(part).__name__} answers none of the verbs"
        )


def _check_together(scheme: Parts) -> None:
    """Refuse parts that cannot stand together."""
    rotary = [part for part in scheme.parts if getattr(part, "rotary", False)]
    if len(rotary) > 1:
        names = " and ".join(map(spell, rotary))
        raise ValueError(f"Scheme: {names} both turn pairs of channels, so each pair would be turned twice; keep one")
    for verb, parts in (("place tokens", scheme.answering("place")), ("set the scale", scheme.answering("scale"))):
        if len(parts) > 1:
            raise ValueError(f"Scheme: {' and '.join(map(spell, parts))} both {verb}; keep one")
    counts = list(_heads_of(scheme.parts))
    for part, heads in counts[1:]:
        if heads != counts[0][1]:
            raise ValueError(f"Scheme: {spell(counts[0][0])} and {spell(part)} are made for different numbers of heads")
    for part in scheme.parts:
        if getattr(part, "needs_causal", False) and not scheme.is_causal:
            raise ValueError(
                f"Scheme: {spell(part)} is defined for keys behind the query only; add a visible part that hides the "
                f"others, such as causal"
            )
    for part in scheme.answering("turn") + scheme.answering("bend") + scheme.answering("relate"):
        if scheme.answering("place") and not getattr(part, "relative", False):
            raise ValueError(
                f"Scheme: {spell(scheme.answering('place')[0])} moves tokens so that only their distances mean "
                f"anything, and {spell(part)} reads more than distances; keep one"
            )
    whole = torch.zeros(1, 1, dtype=torch.int64)
    for part in scheme.answering("relate") if scheme.answering("place") else ():
        if any(move(whole).is_floating_point() for regime in scheme.place() for move in (regime.query, regime.key)):
            raise ValueError(
                f"Scheme: {spell(scheme.answering('place')[0])} moves tokens to fractions of a step, and {spell(part)} "
                f"has a row for each whole distance, and none between; keep one, or use Rerope"
            )


def _unread_place(scheme: Parts) -> str | None:
    """Return why a part that moves tokens would do nothing: no part reads positions, and it does nothing else."""
    # A norm turns nothing by position, and a cap bends by the score alone.
    turns = (part for part in scheme.answering("turn") if not getattr(part, "turns_first", False))
    bends = (part for part in scheme.answering("bend") if not answers(part, "cap"))
    for part in scheme.answering("place") if not (*turns, *bends, *scheme.answering("relate")) else ():
        if not answers(part, "see") and all(each.contrast is each.shift is None for each in scheme.place()):
            return (
                f"{spell(part)} moves tokens, and no part of the scheme reads their positions, so that it would do "
                f"nothing; add a rotation or a bias by distance, such as Rope(dim) or Alibi(heads), or leave it out"
            )
    return None
