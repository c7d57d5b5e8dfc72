"""The entry point of `vllm.general_plugins`, which vLLM calls in each of its processes before it reads a model."""

from __future__ import annotations

import logging


def register() -> None:
    """Let vLLM serve folders that milepost marked; every other model is served as without the plug-in.

    Calling it again changes nothing. A vLLM that lacks what the plug-in builds on is left alone, with a warning: it
    refuses marked folders by itself, by naming milepost.
    """
    try:
        from milepost.serving.doors import register_all
    except (ImportError, AttributeError) as error:
        logging.getLogger("vllm.milepost").warning(
            "milepost: the plug-in does not fit this vLLM (%s), and serves nothing; it was run with 0.32", error
        )
        return
    register_all()
