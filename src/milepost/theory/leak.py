"""The padding leak: zero padding tells a convolution where the border is (Islam et al., 2020, arXiv:2001.08248)."""

from typing import Literal

import torch
from torch import Tensor, nn

from milepost.seams import demand


def padding_leak(
    length: int = 21,
    *,
    depth: int = 3,
    kernel: int = 3,
    padding: Literal["zeros", "circular", "reflect", "replicate", "none"] = "zeros",
    channels: int = 8,
    seed: int = 0,
) -> Tensor:
    """Return the difference at each position of a constant input after random convolutions, float64 [positions].

    It is the distance of each output from the one in the middle. With zero padding it is zero except within
    (kernel − 1)/2 · depth of the borders: the stack knows where it is, as far as its receptive field lets it see the
    border. With circular, reflected or no padding (which shortens the output) every place looks alike.
    """
    for name, value in (("length", length), ("depth", depth), ("channels", channels)):
        demand.whole(padding_leak, name, value)
    demand.whole(padding_leak, "kernel", kernel)
    if kernel % 2 == 0:
        raise ValueError(f"padding_leak(kernel={kernel}): kernel must be odd, so that it has a middle")
    demand.one_of(padding_leak, "padding", padding, ("zeros", "circular", "reflect", "replicate", "none"))
    if length <= (kernel - 1) * depth:
        raise ValueError(
            f"padding_leak(length={length}): every place would see a border; length must be more than "
            f"{(kernel - 1) * depth}, (kernel − 1) · depth"
        )
    generator = torch.Generator().manual_seed(seed)
    x = torch.ones(1, 1, length, dtype=torch.float64)
    for layer in range(depth):
        side = kernel // 2 if padding != "none" else 0
        weight, bias = (
            torch.randn(shape, generator=generator, dtype=torch.float64) / kernel
            for shape in ((channels, 1 if layer == 0 else channels, kernel), (channels,))
        )
        mode = "constant" if padding in ("zeros", "none") else padding
        x = nn.functional.conv1d(nn.functional.pad(x, (side, side), mode=mode), weight, bias).tanh()
    return (x - x[..., x.shape[-1] // 2, None]).square().sum(1).sqrt()[0]
