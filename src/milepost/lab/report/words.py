"""What each way of judging is called, and what it means."""

from __future__ import annotations

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
