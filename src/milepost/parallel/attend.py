"""`parallel.attend`: attention over a text whose tokens lie on all ranks of a mesh."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from milepost.call.inputs import check_scheme, check_tensors, refuse_kinds
from milepost.memory.surroundings import digest
from milepost.parallel import heads, ring
from milepost.parallel.agreement import agree
from milepost.parallel.gather import by_gather
from milepost.parallel.heads import by_heads, some_heads
from milepost.parallel.layout import Layout
from milepost.parallel.ring import by_ring
from milepost.parallel.shards import axis_of, check_fit, check_share
from milepost.parallel.text import OPTIONS, Text
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.arguments import did_you_mean

Way = Literal["gather", "ring", "heads"]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    *,
    mesh: DeviceMesh,
    layout: Layout,
    how: Way = "gather",
    key_heads: int | None = None,
    x: Tensor | None = None,
    backend: str | None = None,
    check: bool = True,
    **options: Any,
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks, as `attend` over the whole text would have it.

    q: [b h t d], k: [b g t d], v: [b g t dv], this rank's tokens by the layout: see `shard`. Returns [b h t dv].

    how         "gather": each rank fetches the keys that its queries see; right for every method.
                "ring": keys go round, and no rank holds more than two shares; for keys that do not fit.
                "heads": each rank attends over the whole text with some of the heads.
    key_heads   by "gather", how many key heads are fetched at once. Those are then fetched, and attended to, once
                more for gradients, so that no rank keeps more of the text's keys. All at once, and kept, if left out.
    x           the layer inputs of this rank's tokens [b t D], for methods that gate on them.
    check       compare what the ranks ask before anything is sent; it waits for the device.
    index, position, documents, length
                as in `attend`, of the whole text and the same on every rank: [t] or [b t].

    Gradients of q, k and v are whole. A weight of the scheme gets what this rank's loss asks for, as every other weight
    of the model does; the sum over ranks is the gradient: DDP and FSDP add it up, or `sum_gradients`.
    """
    group = axis_of(mesh)
    text, refused, asked = None, None, dict[str, object]()
    try:
        check_fit(group, layout)
        _check(q, k, v, x, scheme, how, key_heads)
        for each, dim in ((q, 2), (k, 2), (v, 2), (x, 1)):
            if each is not None:
                check_share("parallel.attend", each, layout, group, dim)
        text = Text(scheme, layout, group, _known(options), backend)
        if how == "ring":
            ring.refuse(scheme, text)
        if how == "heads":
            heads.refuse(q.shape[1], k.shape[1], layout.ranks, group.rank(), scheme)
        asked = _said(q, k, v, x, scheme, layout, how, key_heads, backend, options) if check else asked
    except (TypeError, ValueError, NotImplementedError) as error:
        refused = error
    if check:
        agree(asked, refused, group, torch.device(mesh.device_type))
    if refused is not None or text is None:
        raise refused or AssertionError
    if how == "ring":
        return by_ring(q, k, v, text)
    if how == "heads":
        return by_heads(q, k, v, text)
    return by_gather(q, k, v, x, text, key_heads)


def _check(q: Tensor, k: Tensor, v: Tensor, x: Tensor | None, scheme: Scheme, how: str, key_heads: int | None) -> None:
    """Refuse what no rank can do."""
    refuse_kinds(q, k, v)
    check_tensors(q, k, v, scheme, 0.0)
    check_scheme(scheme)
    if x is not None and (x.dim() != 3 or len(x) != len(q)):
        raise ValueError(f"parallel.attend: x holds layer inputs, [{len(q)} t width], given {[*x.shape]}")
    if how not in get_args(Way):
        raise ValueError(f"parallel.attend(how={how!r}): how is one of {', '.join(get_args(Way))}")
    if key_heads is not None:
        if how != "gather":
            raise ValueError(
                f'parallel.attend(how={how!r}, key_heads={key_heads}): key heads are fetched by "gather" alone'
            )
        demand.whole(attend, "key_heads", key_heads)
        try:
            some_heads(scheme, 0, q.shape[1] // k.shape[1] * min(key_heads, k.shape[1]))
        except ValueError as error:
            raise ValueError(f"parallel.attend(key_heads={key_heads}): {error}; leave key_heads out") from None


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, of which none may be another's."""
    for name, value in options.items():
        if name == "dropout":
            if value:
                raise ValueError(
                    f"parallel.attend(dropout={value}): dropout is not supported, since the ranks would drop other "
                    f"weights than one process does; leave it out, or drop what comes out"
                )
        elif name.startswith("key_"):
            raise TypeError(f"parallel.attend: queries and keys are the same tokens; give {name[4:]}, not {name}")
        elif name not in OPTIONS:
            raise TypeError(f"parallel.attend: no option is called {name!r}{did_you_mean(name, OPTIONS)}")
    return options


def _said(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor | None, scheme: Scheme, layout: Layout, how: str, key_heads: int | None,
    backend: str | None, options: dict[str, Any],
) -> dict[str, object]:  # fmt: skip
    """Return what has to be the same on all ranks, by name."""
    tensors = [(name, each) for name, each in (("q", q), ("k", k), ("v", v), ("x", x)) if each is not None]
    shapes = {
        name: (*each.shape[:2], *each.shape[3:]) if name != "x" else (len(each), each.shape[2])
        for name, each in tensors
    }
    learns = {name: each.requires_grad for name, each in tensors}
    weights = scheme.weights()
    return {
        "the scheme": scheme,
        "the layout": layout,
        "how": (how, key_heads, backend),
        "a shape": shapes,
        "a dtype": {name: each.dtype for name, each in tensors},
        "what needs a gradient": (torch.is_grad_enabled(), learns),
        "whether a weight needs a gradient": [each.requires_grad for each in weights],
        "a weight of the scheme": [digest(each) for each in weights],
        **{name: options.get(name) for name in OPTIONS},
    }
