"""`--model milepost` of lm-evaluation-harness: its own `hf`, with `extend=…` and folders that `save` wrote.

Only a process that has lm-eval loads this module. lm-eval has no entry point for models of others, so it must be
imported before lm-eval's command line runs, which `milepost eval` does.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from milepost import Schedule, __version__
from milepost.configs.source import text_of
from milepost.configs.stored import unread_in
from milepost.hf.config.source import config_of
from milepost.hf.extend import extend as extended
from milepost.hf.files.saving import config_in, load, plain_config
from milepost.hf.model.extension import changed_by, extension_of

NAME = "milepost"
ENDLESS = 1 << 30
"""The longest text of a model that was extended by a method without an end."""
NOT_FOR_LOAD = ("revision", "trust_remote_code", "gguf_file", "subfolder")

HFLM: Any = importlib.import_module("lm_eval.models.huggingface").HFLM
register_model: Any = importlib.import_module("lm_eval.api.registry").register_model


class Loaded:
    """What lm-eval asks for a model in place of `AutoModelForCausalLM`, where a folder stores an extension."""

    @staticmethod
    def from_pretrained(folder: str, **options: Any) -> Any:
        """Return the extended model of a folder."""
        given = {name: each for name, each in options.items() if name not in NOT_FOR_LOAD and each is not None}
        return load(folder, **given)


@register_model(NAME)
class Milepost(HFLM):
    """lm-eval's `hf`, extended.

    pretrained: a model, a name of the hub or a folder; one that `milepost.hf.save` wrote is read as what it is. extend:
    a row of the lab or an expression, as `milepost.hf.extend` takes it; without it the model is `hf`'s. to: the length
    to reach, for rows that go by it. All other arguments are those of `hf`.

    `hf` cuts texts from the left to the longest length of the config, which is the trained one where no config can say
    the method. Here such a model reads whole texts, unless max_length says otherwise, or `to`.
    """

    def __init__(self, pretrained: Any, extend: object = None, to: int | None = None, **options: Any) -> None:
        if extend is not None and not isinstance(extend, str):
            raise TypeError(
                f"extend={extend!r}: give a row or an expression as text, such as extend='ReRoPE, sinks kept' or "
                f"extend=Rerope(256)"
            )
        if to is not None and extend is None:
            raise ValueError(f"to={to}: the length to reach is for extend=…, which is not given")
        self.to = to
        super().__init__(pretrained, **options)
        if extend is not None:
            if self.backend != "causal":
                raise ValueError(f"extend={extend!r}: {pretrained} is an encoder-decoder; causal models are evaluated")
            if changed_by(self.model) is not None:
                raise ValueError(
                    f"extend={extend!r}: {pretrained} is extended already; leave extend out, or give the model that it "
                    f"was made of"
                )
            extended(self.model, extend, to=to)

    def _get_config(self, pretrained: str, **options: Any) -> None:
        if stores_extension(pretrained):
            self._config, self.AUTO_MODEL_CLASS = plain_config(config_in(Path(pretrained), NAME)), Loaded
        else:
            super()._get_config(pretrained, **options)

    @property
    def max_length(self) -> int:
        """How many tokens of a text are read: what was given, the length to reach, or what the config promises."""
        stock: Any = super()
        found: int = stock.max_length
        if self._max_length or changed_by(self.model) is None:
            return found
        trained = Schedule.of(self.model).trained
        return self.to or (found if trained is None or found > trained else ENDLESS)

    @property
    def by_length(self) -> bool:
        """Whether what a model computes follows the length of the text, as under dynamic NTK."""
        done = extension_of(self.model)
        return done is not None and any(scheme.by_length for scheme in done.schedule)

    def _detect_batch_size(self, requests: Sequence[Any] | None = None, pos: int = 0) -> int:
        if not requests and self.max_length == ENDLESS:
            raise ValueError(
                "batch_size=auto: the batch is tried out at the longest length, and this extension has none; give "
                "max_length=…, or a batch size"
            )
        stock: Any = super()
        return stock._detect_batch_size(requests, pos)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, override_bs: int | None = None) -> Any:
        # `hf` pads these on the right and gives no mask: behind a text nobody notices, but its length would be another.
        size = self.batch_size_per_gpu
        try:
            if self.by_length:
                self.batch_size_per_gpu = override_bs = 1
            stock: Any = super()
            return stock._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        finally:
            self.batch_size_per_gpu = size

    def get_model_info(self) -> dict[str, Any]:
        """Return what lm-eval keeps of a model, and its schemes."""
        stock: Any = super()
        found = {"milepost_version": __version__, "milepost_schedule": repr(Schedule.of(self.model))}
        return stock.get_model_info() | found


def stores_extension(pretrained: str) -> bool:
    """Return True if this is a folder that only milepost reads."""
    if not Path(pretrained).is_dir():
        return False
    config = config_of(pretrained, NAME)
    return unread_in(text_of(config) or config) is not None
