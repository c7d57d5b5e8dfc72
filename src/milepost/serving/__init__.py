"""Extended models in vLLM: a plug-in that serves the folders that `milepost.hf` saves (docs/vllm.md)."""
