# pyright: basic, reportMissingImports=false
"""Where vLLM is told of extended folders: its parser of configs, its registry of models and its checks of an engine."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import vllm
from transformers import CONFIG_MAPPING
from vllm.model_executor.models.config import MODELS_CONFIG_MAP, VerifyAndUpdateConfig
from vllm.model_executor.models.registry import ModelRegistry
from vllm.platforms import current_platform
from vllm.transformers_utils.config import HFConfigParser, get_config_parser, register_config_parser

from milepost.configs.source import from_disk
from milepost.serving.engine import demand_engine
from milepost.serving.folders import ARCHITECTURES, PREFIX, is_ours, served


class FolderParser(HFConfigParser):
    """Reads configs as vLLM does, and those that milepost marked without their marks."""

    def parse(
        self,
        model: str | Path,
        trust_remote_code: bool,
        revision: str | None = None,
        code_revision: str | None = None,
        **others: Any,
    ) -> tuple[dict[str, Any], Any]:
        """Return the dict of a config and the config; nothing is downloaded for a marked one."""
        found = config_in(Path(model))
        if not is_ours(found):
            return super().parse(model, trust_remote_code, revision, code_revision, **others)
        made = served(found)
        return made, CONFIG_MAPPING[made["model_type"]].from_dict(made, name_or_path=str(model))


def config_in(folder: Path) -> dict[str, Any]:
    """Return the config of a folder here; none of one elsewhere or one that cannot be read, of which vLLM says why."""
    try:
        return from_disk(folder, "vLLM") if folder.is_dir() else {}
    except (OSError, ValueError):
        return {}


class Engine(VerifyAndUpdateConfig):
    """Asked by vLLM before it starts its processes."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Refuse an engine that was not run."""
        demand_engine(vllm_config, vllm.__version__, current_platform.device_type)


def register_all() -> None:
    """Register everything once in this process."""
    for each in ARCHITECTURES:
        if each in ModelRegistry.models:
            ModelRegistry.register_model(PREFIX + each, f"milepost.serving.models:{PREFIX}{each}")
            MODELS_CONFIG_MAP[PREFIX + each] = Engine
    if not isinstance(get_config_parser("hf"), FolderParser):
        with quiet("vllm.transformers_utils.config"):
            register_config_parser("hf")(FolderParser)


@contextmanager
def quiet(name: str) -> Generator[None]:
    """Leave out what a logger says: vLLM warns of a parser that takes another's place, in each process of any model."""
    logger = logging.getLogger(name)
    was, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was
