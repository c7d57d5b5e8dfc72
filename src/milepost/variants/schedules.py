"""Published schedules: which layers see everything, which see a window, and who has positions."""

from milepost.methods.nope import Nope
from milepost.methods.regions import Rerope
from milepost.methods.rope import Rope
from milepost.methods.softmax import Llama4Scale, LogN
from milepost.schedule import Schedule
from milepost.scheme import Scheme
from milepost.seams import demand
from milepost.seams.visible import causal, chunks, window


def hwfa(layers: int, head_dim: int, trained: int, *, keys: int | None = None, theta: float = 10000.0) -> Schedule:
    """Windows with RoPE, and one last layer that sees everything, without positions (Su, 2023, kexue.fm/archives/9603).

    All layers but the last see `keys` keys, the largest number for which the windows together cover at most three
    quarters of the trained length: (keys − 1)(layers − 1) + 1 ≤ ¾ · trained. The last layer has no positions and is
    sharpened by ln n / ln trained, in training too. head_dim is the width of a head.
    """
    demand.whole(hwfa, "layers", layers, least=2)
    demand.whole(hwfa, "trained", trained, least=2)
    most = max(1, (3 * trained // 4 - 1) // (layers - 1) + 1)
    keys = most if keys is None else keys
    demand.whole(hwfa, "keys", keys)
    if keys > most:
        raise ValueError(
            f"hwfa(keys={keys}): {layers - 1} windows of {keys} keys cover {(keys - 1) * (layers - 1) + 1} tokens, "
            f"more than three quarters of the {trained} trained; give at most {most}"
        )
    near = Scheme(Rope(head_dim, theta=theta), causal & window(keys))
    far = Scheme(Nope(), LogN(trained, clip=False), causal)
    return Schedule([near] * (layers - 1) + [far])


def hwfa2(
    layers: int,
    head_dim: int,
    trained: int,
    keys: int,
    *,
    full: int = 1,
    rerope_window: int | None = None,
    theta: float = 10000.0,
) -> Schedule:
    """Windows with RoPE, and one or two full layers that use ReRoPE past training (Su, 2023, kexue.fm/archives/9731).

    One full layer is in the middle, two at a third and two thirds of the depth. Train with rerope_window=None,
    where full layers have plain RoPE; test with rerope_window=w, where no distance exceeds w there. Full layers are
    sharpened by ln n / ln trained in both. `keys` is free: two to four times trained/layers did best.
    """
    demand.whole(hwfa2, "layers", layers, least=2)
    demand.whole(hwfa2, "keys", keys)
    demand.one_of(hwfa2, "full", full, (1, 2))
    rope = Rope(head_dim, theta=theta)
    near = Scheme(rope, causal & window(keys))
    places = () if rerope_window is None else (Rerope(rerope_window),)
    far = Scheme(rope, *places, LogN(trained, clip=False), causal)
    wide = {layers // 2} if full == 1 else {layers // 3, 2 * layers // 3}
    return Schedule([far if layer in wide else near for layer in range(layers)])


def llama4(
    layers: int, head_dim: int, *, chunk: int = 8192, every: int = 4, theta: float = 500000.0, weight: float = 0.1
) -> Schedule:
    """Llama 4's layers: RoPE within chunks, and every fourth sees everything without positions (Meta, 2025).

    A layer with positions sees keys of its own chunk, at their absolute positions; a layer without is sharpened with
    every chunk behind the query. Pairs of channels are neighbours. The model's norm of q and k is its layer's own.
    """
    demand.whole(llama4, "layers", layers)
    demand.whole(llama4, "every", every)
    near = Scheme(Rope(head_dim, theta=theta, pairs="neighbours"), causal & chunks(chunk))
    far = Scheme(Nope(), Llama4Scale(chunk, weight=weight), causal)
    return Schedule([far if (layer + 1) % every == 0 else near for layer in range(layers)])
