"""Models of transformers, extended where they stand: `extend`, `restore`, `save` and `load`."""

from milepost.refusal import need

need("milepost.hf", "hf")

from milepost.hf.extend import extend as extend  # noqa: E402
from milepost.hf.extend import restore as restore  # noqa: E402
from milepost.hf.saving import load as load  # noqa: E402
from milepost.hf.saving import save as save  # noqa: E402
