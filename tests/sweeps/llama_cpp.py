"""llama.cpp by its C interface, out of the wheel xllamacpp: log-probabilities of a whole text, in float32.

Parameters are structures that grow from release to release. They are passed in a block larger than any of them, filled
by the library's own defaults; only fields near the front are set, and two types that are found by their default.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

F16, F32 = 1, 0
SIZE = 1024
"""Bytes of a block that any structure of parameters fits into."""
THREADS = int(os.environ.get("OMP_NUM_THREADS", "1"))


class Block(ctypes.Structure):
    """A structure of unknown fields; larger than it is."""

    _fields_ = (("bytes", ctypes.c_uint32 * (SIZE // 4)),)


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def library() -> Any:
    """Return the library, or None where the wheel is not installed."""
    found = importlib.util.find_spec("xllamacpp")
    if found is None or found.origin is None:
        return None
    lib: Any = ctypes.CDLL(str(next(Path(found.origin).parent.glob("xllamacpp*.so"))))
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(lib, name).restype = Block
    lib.llama_model_load_from_file.restype = ctypes.c_void_p
    lib.llama_model_load_from_file.argtypes = (ctypes.c_char_p, Block)
    lib.llama_init_from_model.restype = ctypes.c_void_p
    lib.llama_init_from_model.argtypes = (ctypes.c_void_p, Block)
    lib.llama_batch_init.restype = Batch
    lib.llama_decode.argtypes = (ctypes.c_void_p, Batch)
    lib.llama_get_logits_ith.restype = ctypes.POINTER(ctypes.c_float)
    lib.llama_get_logits_ith.argtypes = (ctypes.c_void_p, ctypes.c_int32)
    lib.llama_model_get_vocab.restype = ctypes.c_void_p
    for name in ("llama_model_get_vocab", "llama_free", "llama_model_free", "llama_vocab_n_tokens"):
        getattr(lib, name).argtypes = (ctypes.c_void_p,)
    lib.llama_tokenize.argtypes = (
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int32), ctypes.c_int32,
        ctypes.c_bool, ctypes.c_bool,
    )  # fmt: skip
    lib.llama_backend_init()
    lib.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *given: None)
    if not os.environ.get("MILEPOST_LLAMA_LOG"):
        lib.llama_log_set(lib.quiet, None)
    return lib


class Reader:
    """A GGUF file in llama.cpp."""

    def __init__(self, file: Path, context: int) -> None:
        self.lib, self.context = library(), context
        self.model = self.lib.llama_model_load_from_file(str(file).encode(), self.lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {file}")
        given = self.lib.llama_context_default_params()
        words = list(given.bytes)
        at = next(n for n in range(16, 64) if words[n] == words[n + 1] == F16 and words[n - 1] == words[n - 2] == 0)
        given.bytes[at] = given.bytes[at + 1] = F32
        # The context, what is decoded at once, and how many tokens of it have logits.
        for place in (0, 1, 2, 6):
            given.bytes[place] = context
        for place in (7, 8):
            given.bytes[place] = THREADS
        # No flash attention, which keeps fewer bits.
        given.bytes[13] = 0
        self.state = self.lib.llama_init_from_model(self.model, given)
        if not self.state:
            raise RuntimeError(f"llama.cpp makes no context for {file}")
        self.vocab = self.lib.llama_model_get_vocab(self.model)

    def log_probabilities(self, tokens: list[int]) -> Tensor:
        """Return those of every next token, [t vocabulary]."""
        n, size = len(tokens), self.lib.llama_vocab_n_tokens(self.vocab)
        batch = self.lib.llama_batch_init(n, 0, 1)
        batch.n_tokens = n
        for place, token in enumerate(tokens):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, place, 1
            batch.seq_id[place][0], batch.logits[place] = 0, 1
        done = self.lib.llama_decode(self.state, batch)
        if done:
            raise RuntimeError(f"llama_decode ended with {done}")
        rows = [torch.tensor(self.lib.llama_get_logits_ith(self.state, n)[:size]) for n in range(n)]
        return torch.stack(rows).double().log_softmax(-1)

    def tokens(self, text: str) -> list[int]:
        """Return the ids of a text, as llama.cpp makes them, without a BOS."""
        written = text.encode()
        room = (ctypes.c_int32 * (len(written) + 16))()
        count = self.lib.llama_tokenize(self.vocab, written, len(written), room, len(room), False, False)
        return list(room[:count])

    def close(self) -> None:
        """Free it."""
        self.lib.llama_free(self.state)
        self.lib.llama_model_free(self.model)
