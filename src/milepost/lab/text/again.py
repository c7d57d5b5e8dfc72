"""Passages that come again: what teaches a small model to look back, where a plain text has too few of them.

A model of a hundred thousand weights that reads a million bytes of plain text learns to spell, and not to look for what
it has read: passages that come again within its trained length are rare there. Here many do, and some come again from
much farther back than a model ever sees in training, so that there is something to gain from a long memory.
"""

from __future__ import annotations

import random

FRESH = 20, 60
"""Bytes of a stretch of the text as it is, least and most."""
PASSAGE = 6, 24
"""Bytes of a passage that comes again; short ones are as likely as long ones in logarithms."""
SAID = 36, 108
"""About how many bytes all copies of a passage have together."""
BETWEEN = 12
"""At most so many bytes of text stand between two copies, where any do."""
BACK = 64, 4096
"""How far back a passage lies that comes again once more, much later."""
LETTERS = 26


def with_passages_again(text: bytes, seed: int) -> bytes:
    """Return the text, interrupted by passages that come again: the same bytes on every machine, for one seed.

    A quarter of the turns is a stretch of the text as it is; in another fifth some bytes from far back come once more,
    by the logarithm of the distance as often from near as from far. In all others a passage is said several times, some
    text between some of the copies: every second one is of the text, the others are letters drawn one by one, which
    nothing but looking back can foretell.
    """
    # `random()` alone is promised to be the same in every version of Python.
    draw = random.Random(seed).random
    made, read = bytearray(), 0

    def number(least: int, most: int) -> int:
        return least + int(draw() * (most - least + 1))

    def by_logarithm(least: int, most: int) -> int:
        return int(least * (most / least) ** draw())

    def next_of_text(size: int) -> bytes:
        nonlocal read
        read += size
        return text[read - size : read]

    while read < len(text):
        turn = draw()
        if turn < 0.25:
            made += next_of_text(number(*FRESH))
        elif turn < 0.45:
            back, size = by_logarithm(*BACK), by_logarithm(*PASSAGE) + PASSAGE[0]
            start = max(0, len(made) - back)
            made += made[start : start + size]
        else:
            size = by_logarithm(*PASSAGE)
            passage = next_of_text(size)
            if draw() < 0.5:
                passage = bytes(ord("a") + int(draw() * LETTERS) for _ in range(size))
            for _ in range(max(2, number(*SAID) // size)):
                made += passage
                if draw() < 0.3:
                    made += next_of_text(int(draw() * BETWEEN))
    return bytes(made)
