"""RoPE's reach: the scaling laws of its base (Liu et al., 2023, arXiv:2310.05209)."""

import math

from milepost.seams import demand


def critical_dimension(head_dim: int, trained: int, *, theta: float = 10000.0) -> int:
    """Return how many channels of a head completed a period within the trained length.

        2 · ⌈ d/2 · log_θ(trained/2π) ⌉

    Channels past it have met only part of their cycle, so longer texts show them angles they never saw. Llama 2, with
    128 channels and 4096 tokens, has 92.
    """
    demand.even(critical_dimension, "head_dim", head_dim, "channels are turned in pairs")
    demand.whole(critical_dimension, "trained", trained, least=7)
    demand.finite(critical_dimension, "theta", theta, above=1)
    return min(head_dim, 2 * math.ceil(head_dim / 2 * math.log(trained / (2 * math.pi), theta)))


def critical_base(trained: int, target: int, *, theta: float = 10000.0) -> float:
    """Return the base past which fine-tuning at `target` tokens reaches further than the target itself.

        θ ^ log_{trained/2π}(target/2π)

    It is the base under which the critical dimension makes just one turn in `target` tokens.
    """
    demand.whole(critical_base, "trained", trained, least=7)
    demand.whole(critical_base, "target", target, least=7)
    demand.finite(critical_base, "theta", theta, above=1)
    return theta ** (math.log(target / (2 * math.pi)) / math.log(trained / (2 * math.pi)))


def reach_of(base: float, head_dim: int, trained: int, *, tuned: int | None = None, theta: float = 10000.0) -> float:
    """Return how many tokens a model can process after fine-tuning with another base.

        2π · base^(d_extra/d)   where base exceeds the critical one,   tuned otherwise

    d_extra is the critical dimension of pre-training, with theta and `trained` tokens; `tuned` is the length of the
    fine-tuning, the trained one if left out. It is a bound from angles alone, not a promise of quality.
    """
    demand.finite(reach_of, "base", base, above=1)
    demand.even(reach_of, "head_dim", head_dim, "channels are turned in pairs")
    demand.whole(reach_of, "trained", trained, least=7)
    demand.finite(reach_of, "theta", theta, above=1)
    tuned = trained if tuned is None else tuned
    demand.whole(reach_of, "tuned", tuned, least=7)
    if base <= critical_base(trained, tuned, theta=theta):
        return float(tuned)
    return 2 * math.pi * base ** (critical_dimension(head_dim, trained, theta=theta) / head_dim)
