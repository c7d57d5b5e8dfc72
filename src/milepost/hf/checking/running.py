"""Run a model of transformers on made-up weights and record what each attention layer does with positions.

Two models are comparable where they are given equal weights. So both are run on the same made-up weights (views of one
short random vector, which take no memory), each attention layer is given the same input, and what it computes is
recorded: its output, its queries, its masked scores. A config is run as the model that transformers builds from it.
"""

from __future__ import annotations

import inspect
import math
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from milepost.configs.reader import LENGTH, look_up
from milepost.hf.checking.rotation import POSITIONS

TOKENS = 96
"""How many tokens the run without position_ids has, unless a table of positions is shorter."""
ATTENTION = re.compile(r"(self_|cross_|encoder_)?(attn|attention)", re.IGNORECASE)
INPUTS = ("hidden_states", "key_value_states", "encoder_hidden_states")
SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax)
PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)


@dataclass
class Recorded:
    """What one attention layer did. Tensors are on the CPU, and None where the code does not show them.

    path and weights: where it is in its model, and the names and shapes of its parameters. output [b t D]; query and
    key [n t d], batch and heads together, as they enter their product; scores [b h t s] of the first texts, after
    scale, bias, cap and mask; buckets [t s], the rows of a table that were looked up for each pair, by this layer or by
    an earlier one of its stack.
    """

    path: str
    weights: Mapping[str, tuple[int, ...]]
    output: Tensor | None = None
    query: Tensor | None = None
    key: Tensor | None = None
    scores: Tensor | None = None
    buckets: Tensor | None = None

    def apart(self, other: Recorded) -> float:
        """Return how far two outputs are apart, as a share of their size."""
        one, two = self.output, other.output
        if one is None or two is None or one.shape != two.shape:
            return 0.0 if one is two else math.inf
        gap = (one - two).abs().masked_fill(one.isnan() & two.isnan(), 0.0)
        return float(gap.max().nan_to_num(math.inf)) / (float(one.nan_to_num().abs().max()) or 1.0)


@dataclass
class Table:
    """A table of positions: the parameter's name, its rows, and which of them the tokens read, [t]."""

    name: str
    rows: int
    read: Tensor

    @property
    def start(self) -> int:
        """The row of the first token."""
        return int(self.read[0])


@dataclass
class Recording:
    """One run: its layers by label ("layer 3", "encoder layer 0"), its tables, and what enters the first layer."""

    positions: tuple[int, ...]
    layers: dict[str, Recorded] = field(default_factory=dict[str, Recorded])
    tables: dict[str, Table] = field(default_factory=dict[str, Table])
    input: Tensor | None = None


class _Recorder(TorchFunctionMode):
    """See every softmax, attention and embedding of a forward pass, and leave out what lies between the layers."""

    def __init__(self, recording: Recording, names: Mapping[int, str], alike: bool, both: bool, shown: bool) -> None:
        super().__init__()
        self.recording, self.names, self.alike, self.both, self.shown = recording, names, alike, both, shown
        self.inside: list[Recorded] = []
        self.product: tuple[Tensor, Tensor] | None = None
        self.buckets: dict[str, Tensor] = {}

    def enter(self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give a layer the input that all layers are given."""
        layer = Recorded(path, {name: tuple(each.shape) for name, each in module.named_parameters()})
        self.inside.append(layer)
        label = label_of(path, self.both)
        layer.buckets = self.buckets.get(label.partition("layer")[0])
        known = self.recording.layers.get(label)
        self.recording.layers[label if known is None or known.path == path else f"{label} ({path})"] = layer
        x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        if self.recording.input is None:
            self.recording.input = x.detach().double().cpu()
        seed = torch.Generator().manual_seed(0)
        made = torch.randn(x.shape[0], 1 if self.alike else x.shape[1], x.shape[2], generator=seed)
        made = made.to(x).expand_as(x)
        # What an encoder returns is made up as well.
        given = [name for name in INPUTS if isinstance(kwargs.get(name), Tensor) and kwargs[name].shape == x.shape]
        kwargs = kwargs | dict.fromkeys(given, made)
        return args if "hidden_states" in kwargs else (made, *args[1:]), kwargs

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Keep what a layer returns."""
        first = cast("Tensor", output[0] if isinstance(output, tuple) else output)
        self.inside.pop().output = first.detach().double().cpu()

    @property
    def layer(self) -> Recorded | None:
        return self.inside[-1] if self.inside else None

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.embedding:
            self._embedding(*args, **kwargs)
        if self.layer is None:
            if func is F.linear:
                # Feed-forward layers and the head do not change what attention layers are given.
                return args[0].new_zeros(*args[0].shape[:-1], args[1].shape[0])
        elif self.shown and func in PRODUCTS and args[0].dim() >= 3:
            self.product = args[0], args[1].mT
        elif self.shown and func in SOFTMAX:
            self._keep(self.layer, args[0] if args else kwargs["input"], *(self.product or ()))
        elif self.shown and func is F.scaled_dot_product_attention:
            self._keep(self.layer, scores_of(*args, **kwargs), *args[:2])
        return func(*args, **kwargs)

    def _embedding(self, index: Tensor, weight: Tensor, *others: Any, **options: Any) -> None:
        """Note which rows are looked up; all tokens are the same, so what varies is a position."""
        if index.numel() < 2 or index.min() == index.max():
            return
        name = self.names.get(id(weight), "")
        if self.layer is not None and index.dim() >= 2 and index.shape[-1] == index.shape[-2] > 1:
            self.layer.buckets = index.reshape(-1, *index.shape[-2:])[0].cpu()
            self.buckets[label_of(self.layer.path, self.both).partition("layer")[0]] = self.layer.buckets
        else:
            self.recording.tables[name] = Table(name, weight.shape[0], index.flatten()[: index.shape[-1]].cpu())

    def _keep(self, layer: Recorded, scores: Tensor, *product: Tensor) -> None:
        """Keep masked scores [… t s], and the queries and keys that they were made of."""
        if product:
            layer.query, layer.key = (x.flatten(0, -3).double().cpu() for x in product)
        if scores.dim() == 4:
            layer.scores = scores[:4].float().cpu()


def scores_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Form the masked scores [b h t s] of a call of PyTorch's own attention."""
    key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, device=scores.device).triu(1)
    if attn_mask is None:
        return scores
    return scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask


def record(model: nn.Module, positions: tuple[int, ...], given_ids: bool, batch: int, shown: bool) -> Recording:
    """Run the model on made-up weights; nothing of it is changed.

    given_ids: pass the positions as position_ids, and let all tokens be alike. shown: its attention is transformers'
    own, so that scores can be read off it.
    """
    config, tokens = cast("Any", model).config, len(positions)
    device = next((each.device for each in model.parameters() if each.device.type != "meta"), torch.device("cpu"))
    ids = torch.full((batch, tokens), _plain_token(config), device=device)
    given: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    if given_ids:
        given["position_ids"] = torch.tensor(positions, device=device).expand(batch, -1)
    both = bool(getattr(config, "is_encoder_decoder", False))
    if both:
        given["decoder_input_ids"] = ids
    taken = inspect.signature(model.forward).parameters
    modules = _attention_modules(model)
    weights = {name: made_up(_inside(name, modules), each.shape, device) for name, each in model.named_parameters()}
    recording = Recording(positions)
    recorder = _Recorder(recording, {id(each): name for name, each in weights.items()}, given_ids, both, shown)
    with torch.no_grad(), left_as_it_was(model), recorder:
        model.eval()
        for path, module in modules.items():
            module.register_forward_pre_hook(partial(recorder.enter, path), with_kwargs=True)
            module.register_forward_hook(recorder.leave)
        for each in _experts(model, modules):
            each.__dict__["forward"] = _nothing
        torch.func.functional_call(model, weights, kwargs={name: given[name] for name in given if name in taken})
    return recording


def made_up(name: str, shape: torch.Size, device: torch.device) -> Tensor:
    """Make weights that depend on a name and a shape alone: a view of a few random numbers, weight[i, j] = r[i + j]."""
    seed = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    r = torch.randn(sum(shape) + 1, generator=seed)
    if len(shape) < 2:
        r = 0.1 * r if name.endswith("bias") else 1 + 0.1 * r
    else:
        r = r / shape[-1] ** 0.5
    return r.to(device).as_strided(tuple(shape), (1,) * len(shape))


def _inside(name: str, modules: Mapping[str, nn.Module]) -> str:
    """Return a parameter's name inside its attention layer, or the end of it: layers and models share weights."""
    inside = (name.removeprefix(f"{path}.") for path in modules if name.startswith(f"{path}."))
    return next(inside, ".".join(name.split(".")[-2:]))


def modules_in(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """List all modules, with their paths."""
    return list(cast("Iterable[tuple[str, nn.Module]]", model.named_modules()))


def _attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Find the innermost modules that attend, by their paths."""
    found = {
        path: module
        for path, module in modules_in(model)
        if path and ("Attention" in type(module).__name__ or ATTENTION.fullmatch(path.rsplit(".", 1)[-1]))
    }
    outer = {path for path in found for each in found if each.startswith(f"{path}.")}
    return {path: found[path] for path in found if path not in outer and [*found[path].parameters()]}


def _experts(model: nn.Module, modules: Mapping[str, nn.Module]) -> Generator[nn.Module]:
    """Find the modules outside of attention whose weights have three axes: experts and convolutions are left out."""
    for path, module in modules_in(model):
        inside = any(path == each or path.startswith(f"{each}.") for each in modules)
        if not inside and any(each.dim() > 2 for each in module.parameters(recurse=False)):
            yield module


def _nothing(x: Tensor, *args: Any, **options: Any) -> Tensor:
    return torch.zeros_like(x)


def label_of(path: str, both: bool) -> str:
    """Name a layer: its number, its stack where there are two, and whether it looks at the encoder."""
    parts = path.split(".")
    number = next((part for part in parts if part.isdigit()), "0")
    stack = next((f"{part} " for part in parts if both and part in ("encoder", "decoder")), "")
    crossed = re.search("cross|encdec|encoder_attn", parts[-1], re.IGNORECASE)
    return f"{stack}layer {number}{' cross-attention' if crossed else ''}"


def _plain_token(config: Any) -> int:
    """Return a token that means nothing special."""
    named = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "decoder_start")]
    # A model may end its texts by several tokens.
    several = [token for each in named if isinstance(each, (list, tuple)) for token in cast("list[int]", each)]
    special = {*several, *(each for each in named if isinstance(each, int))}
    return next(each for each in range(5, 99) if each not in special)


@contextmanager
def left_as_it_was(model: nn.Module) -> Generator[None]:
    """Undo what a run changes: modes, hooks, buffers and attributes (a dynamic rotation keeps its last length)."""
    dicts = [each.__dict__ for each in model.modules()]
    # What a module has in dicts, its hooks and buffers among them, is put back as well, and so are their numbers.
    dicts += [cast("dict[str, Any]", each) for one in dicts for each in one.values() if isinstance(each, dict)]
    kept = [(each, dict(each)) for each in dicts]
    buffers = [(each, each.clone()) for each in model.buffers()]
    try:
        yield
    finally:
        for each, before in kept:
            each.clear()
            each.update(before)
        for buffer, before in buffers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)


def skeleton(config: Any, kind: type | None = None) -> nn.Module:
    """Build the model of a config as transformers does, with no memory for its weights."""
    import transformers

    auto: Any = transformers.AutoModel
    with _Weightless():
        return auto.from_config(config) if kind is None else kind(config)


class _Weightless(TorchFunctionMode):
    """Make uninitialised tensors, which weights begin as, on the meta device; buffers are computed as ever."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        return func(*args, **(kwargs | {"device": "meta"} if func is torch.empty else kwargs))


class Runs:
    """The runs of one model: without position_ids, and at far positions where it takes any."""

    def __init__(self, model: nn.Module, tokens: int, shown: bool = True, batch: int = 1) -> None:
        self.model, self.tokens, self.shown = model, tokens, shown
        self.near = record(model, tuple(range(tokens)), False, min(batch, 4), shown)
        self.far: Recording | None = None
        if "position_ids" not in inspect.signature(model.forward).parameters or self.near.tables:
            return
        longest = look_up(cast("Any", model).config, *LENGTH) or 0
        for positions in (POSITIONS, tuple(p for p in POSITIONS if p < longest)):
            if self.far is None and len(positions) > 4:
                # Models whose cosines are a table of their own have no positions past its end.
                with suppress(IndexError, RuntimeError, ValueError):
                    self.far = record(model, positions, True, batch, shown)

    @cached_property
    def closely(self) -> Runs:
        """The same runs with as many rows as it takes to solve for a rotation."""
        keys = [each.key for each in self.near.layers.values() if each.key is not None]
        batch = max((2 * each.shape[-1] // each.shape[0] for each in keys), default=0) + 4
        return Runs(self.model, self.tokens, self.shown, batch)

    def comparable(self, other: Runs, label: str) -> bool:
        """True if both have this layer, with weights of the same names and shapes."""
        one, two = self.near.layers.get(label), other.near.layers.get(label)
        return one is not None and two is not None and one.weights == two.weights

    def differs(self, other: Runs, label: str) -> bool:
        """True if a layer of both returns something else in either run."""
        if self.near.layers[label].apart(other.near.layers[label]) > 1e-4:
            return True
        if self.far is None or other.far is None or self.far.positions != other.far.positions:
            return False
        # Angles in float32 are off by 10⁻³ there.
        return self.far.layers[label].apart(other.far.layers[label]) > 1e-2
