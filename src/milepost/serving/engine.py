"""Which engines of vLLM are refused: whatever was not run under the plug-in changes what attention is given."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

RUN_WITH = "0.32"
"""The release of vLLM that the plug-in was run with."""
UNTRIED = "MILEPOST_VLLM_UNTRIED"
"""The environment variable that lets another release or device run, at one's own risk."""


def demand_engine(config: Any, version: str, device: str) -> None:
    """Refuse an engine by all that was not run; config is a VllmConfig."""
    wrong = [f"{asked}: {instead}" for asked, instead in refused(config)]
    if wrong:
        raise ValueError(f"milepost in vLLM: not run with this extension: {'; '.join(wrong)}")
    if os.environ.get(UNTRIED) == "1":
        return
    if not version.startswith(f"{RUN_WITH}.") and version != RUN_WITH:
        raise ValueError(
            f"milepost in vLLM: the plug-in was run with vLLM {RUN_WITH}, and this is {version}; install that, or set "
            f"{UNTRIED}=1 and compare its logits with milepost.hf.load(folder) first"
        )
    if device != "cpu":
        raise ValueError(
            f"milepost in vLLM: the plug-in was run on the CPU alone, and this is {device}; set {UNTRIED}=1 to run it "
            f"there, and compare its logits with milepost.hf.load(folder) first"
        )


def refused(config: Any) -> Iterator[tuple[str, str]]:
    """Yield what an engine is asked for that the plug-in was not run with, and what to do instead."""
    parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
    for name, option in PARALLEL.items():
        count = getattr(parallel, name, 1)
        if count and count > 1:
            yield f"{name}={count}", f"leave {option} at 1"
    drafts = config.speculative_config
    if drafts is not None and drafts.method != "ngram":
        # Whatever drafts by a model has layers of its own, which no scheme was stored for.
        yield f"drafts by {drafts.method}", "draft by n-grams of the prompt, or leave --speculative-config out"
    for name, option in ASKED.items():
        if getattr(config, name, None) is not None:
            yield name, f"leave {option} out"
    if cache.cache_dtype != "auto":
        yield f"keys kept as {cache.cache_dtype}", "leave --kv-cache-dtype out: keys are raw, and nobody measured that"
    if model.quantization is not None:
        yield f"weights in {model.quantization}", "serve weights of 16 or 32 bits"
    if model.runner_type != "generate":
        yield f"runner {model.runner_type}", "serve it with --runner generate"


PARALLEL = {
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "data_parallel_size": "--data-parallel-size",
    "decode_context_parallel_size": "--decode-context-parallel-size",
    "prefill_context_parallel_size": "--prefill-context-parallel-size",
}
"""The sizes of an engine that is spread over several processes, and their options."""
ASKED = {
    "lora_config": "--enable-lora",
    "kv_transfer_config": "--kv-transfer-config",
    "ec_transfer_config": "--ec-transfer-config",
}
"""Settings of an engine that are None where nothing was asked for, and their options."""
