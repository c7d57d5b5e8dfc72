"""What a report says in sentences: how to read its tables, and what each way of judging means."""

from __future__ import annotations

from milepost.lab.statistics.findings import Findings

MEANS = {
    "windows": (
        "Windows",
        "The text is cut into windows of each length that do not overlap, and every byte counts. The first bytes of a "
        "window have little before them to go by, so longer windows score better for that reason alone (the "
        "early-token effect): compare rows at one length, rather than lengths of one row.",
    ),
    "less": (
        "Less the window",
        "The bits of each row less those of the trivial window, on the same windows of text: what these have in common "
        "falls out, so rows come apart here that lie on one another by their bits. Below zero a row gains from what "
        "lies farther back; above zero it would have been better to forget it.",
    ),
    "ends": (
        "Last bytes at fixed ends",
        "The same bytes, the last 256 at most before fixed places in the text, are judged at every length; only how "
        "far back the model may look changes. So the early-token effect is gone: a curve that falls uses what stands "
        "farther back, a level one gains nothing from it, a rising one is hurt by it.",
    ),
    "recall": (
        "Recall of random bytes",
        "Some bytes, drawn one by one from the text, come twice; a row is judged by what it saves on the second copy, "
        "against the same bytes at the same place where they did not come before, by how far back the first copy "
        "began. Nothing but looking back saves anything: a window shorter than the distance may keep its bits low on "
        "text, but it saves nothing here. More is better.",
    ),
    "passages": (
        "Recall of text",
        "The same with passages of the text itself, and text between the copies: what comes again in real reading, "
        "where a good guess leaves less to save. More is better.",
    ),
    "sliding": (
        "Sliding",
        "Windows overlap, and only the last quarter of each counts, so every byte has at least three quarters of the "
        "window before it. It scores better than windows that do not overlap, for the same model.",
    ),
    "alone": (
        "Each byte alone",
        "Every byte is judged by itself, on exactly the window that ends before it. That costs one reading for each "
        "byte, so few are judged and the interval is wide.",
    ),
}
"""By protocol: what it is called and what it means."""

ABOUT_TASKS = (
    "The share of right tokens in answers, by length, with 95 % intervals: higher is better, and a guess draws at "
    "random from the tokens that answers are made of. Each scheme has a model of its own for each task, trained on "
    "examples of every length that fits into the trained one, and judged on the longest that fit into each. Depth "
    "is where in the text a hidden number stands, from 0, its start, to 1, its end. Tasks whose tokens look ahead "
    "have no training-free rows."
)
ABOUT_TRAINING = (
    "Left, bits per byte while training, each point a mean of some steps. Right, the trained models at their own "
    "length under each way of judging: the numbers differ though the models do not, so a number without its protocol "
    "says little."
)
ABOUT_CHOSEN = (
    "Learning rates, and settings of rows without training, of each scheme’s own: the best of those tried, by mean "
    " bits at the trained length and far past it, on a text that is neither trained on nor judged, and with a seed "
    "that no judged model has. Every scheme had as many runs: one that learns something shares them between the "
    "model’s rate and its own (“scheme ×” is how many times the model’s), one that learns nothing spends all on the "
    "model’s. The <strong>strong</strong> one was chosen; one at the edge of its grid may not be the best there is."
)


def about_table(findings: Findings) -> str:
    """How to read the sorted table, as HTML."""
    over = "over seeds" if len(findings.ran.seeds) > 1 else "over windows"
    bits, trained = f"{findings.tolerance:g} bits", f"{findings.ran.trained:,}"
    return (
        f"<b>Reach</b> is the longest text a row can be given: up to there the last bytes cost at most {bits} more "
        f"than they cost the checkpoint as trained, given only the last {trained}. The same bytes are judged at every "
        f"length, and the rule is one for all rows; under it stands the interval, from where a row surely holds to "
        f"where it may. A model that reads no better than a table of byte pairs ({findings.ran.pairs:.2f} bits) has "
        f'none. Bits past the reach are set in <span class="past">this colour</span>. Lower bits are better; '
        f"<strong>strong</strong> is the best of a column and all that is not told apart from it by the paired "
        f'interval, and what only repeats its checkpoint is <span class="same">faint</span>. <b>Bits saved</b>, where '
        f"more is better, is what a second copy saves against the same bytes fresh. ± are 95 % intervals {over}. "
        f"“Against window” is the difference at the longest length, paired: above zero, it would have been better to "
        f'forget all but the last {trained} bytes. What is <em class="tag">trivial</em> needs no method; what '
        f'<em class="tag">forgets</em> hides earlier bytes, as a window does.'
    )


def about_pairs(findings: Findings) -> str:
    """How to read the table of differences."""
    seeds = (
        "over windows, what these checkpoints would differ by on more of such text, and over seeds (Student’s t), what "
        "the methods would differ by on this text; two rows are told apart only where both are clear of zero"
        if len(findings.ran.seeds) > 1
        else "over windows: what these checkpoints would differ by on more of such text. One seed says nothing of what "
        "another would give, and ranks no method"
    )
    return (
        f"Bits at the longest length, less those of the window on the same checkpoint, and less those of the best row, "
        f"window by window: what windows have in common falls out. Intervals are 95 %, {seeds}. They allow for windows "
        f"that go up and down together. Each speaks for itself: of twenty rows that do not differ, one will seem to."
    )


def about_costs(findings: Findings) -> str:
    """How to read the table of costs."""
    longest = f"{max(findings.ran.lengths, default=findings.ran.trained):,}"
    return (
        f"Bytes a second in training, in reading a text of {longest} at once, and in writing one byte after the other "
        f"at its end, with a cache; and the most memory that reading and writing took on a GPU. Each was measured "
        f"once, on the machine that ran the sweep, with all else that ran there: good for orders of magnitude."
    )


def about_positions(longest: int) -> str:
    """How to read the bits by position."""
    return (
        f"The mean bits of each byte by its position in windows of {longest:,}. Every row begins high, because the "
        f"first bytes of a window have nothing before them. Past the trained length a row that holds stays level or "
        f"goes on falling; one that breaks shows where."
    )
