"""Spellings of the names of methods: RoPE, rope or Rope; T5 or T5Bias; SoftMax₁ or softmax-1."""

import unicodedata
from functools import cache

from milepost.catalogue import register

ALSO = {
    # Methods by their other names
    **dict.fromkeys(("rotary", "RoFormer", "Su", "旋转位置编码", "旋转式"), "Rope"),
    **dict.fromkeys(("learned positions table", "训练式", "可学习位置编码", "BERT", "GPT-2"), "Learned"),
    **dict.fromkeys(("三角式", "正弦位置编码", "正余弦位置编码"), "Sinusoidal"),
    **dict.fromkeys(("recursive", "递归式", "循环式"), "Recurrent"),
    **dict.fromkeys(("hierarchical decomposition", "层次分解", "层次分解位置编码"), "Hierarchical"),
    **dict.fromkeys(("multiplicative", "相乘式"), "Multiplied"),
    **dict.fromkeys(("neural ODE", "神经ODE"), "Floater"),
    **dict.fromkeys(("复数式", "complex embeddings"), "ComplexOrder"),
    **dict.fromkeys(("fused", "融合式"), "FusedRope"),
    **dict.fromkeys(("经典式", "relative key"), "Shaw"),
    **dict.fromkeys(("XLNet", "XLNet式", "XL"), "TransformerXL"),
    **dict.fromkeys(("T5", "T5式", "relative position bias"), "T5Bias"),
    **{
        "DeBERTa式": "Deberta",
        "disentangled attention": "Deberta",
        "增强掩码解码器": "MaskDecoder",
        "EMD": "MaskDecoder",
    },
    **dict.fromkeys(("BLOOM", "MPT", "Baichuan", "百川", "线性偏置", "attention with linear biases"), "Alibi"),
    **{"two-sided ALiBi": "SplitAlibi", "双向ALiBi": "SplitAlibi", "ALiBi内插": "AlibiInterpolate"},
    **dict.fromkeys(("上下文位置编码", "contextual position encoding"), "Cope"),
    **dict.fromkeys(("无位置编码", "no position encoding"), "Nope"),
    # Reaching further
    **dict.fromkeys(("PI", "线性内插", "位置内插", "linear scaling", "LongChat", "condense"), "Interpolate"),
    **dict.fromkeys(("ntk-aware", "NTK-RoPE", "NTK内插"), "Ntk"),
    **dict.fromkeys(("混合进制", "进制"), "NtkMixed"),
    **{"动态NTK": "DynamicNtk", "动态线性内插": "DynamicLinear", "动态YaRN": "DynamicYarn"},
    **{"Llama 3.1": "Llama3", "Phi-3": "LongRope", "DCA": "DualChunk", "双块注意力": "DualChunk"},
    **dict.fromkeys(("streaming", "流式推理", "流式"), "Stream"),
    **dict.fromkeys(("logn attention", "对数缩放", "logn缩放"), "LogN"),
    **dict.fromkeys(("随机位置", "randomized position encodings", "随机位置编码"), "Randomized"),
    **dict.fromkeys(("gpt-oss", "attention sink", "注意力汇"), "SinkLogit"),
    # Models
    **{
        "ChatGLM": "TwoPartRope",
        "GPT-NeoX": "Partial",
        "部分旋转": "Partial",
        "Gemma 2": "SoftCap",
        "HunYuan": "QkNorm",
    },
    **dict.fromkeys(("M-RoPE", "Qwen2-VL", "Qwen3-VL", "二维RoPE", "2-D RoPE"), "AxialRope"),
    **{"iRoPE": "llama4", "窗口全局混合注意力": "hwfa", "hybrid window-full attention": "hwfa"},
    # Functions
    **{
        "滑动窗口": "window",
        "sliding window": "window",
        "因果掩码": "causal",
        "KV缓存": "Cache",
        "线性注意力": "linear_attend",
    },
    **{"补零泄漏": "padding_leak", "zero padding": "padding_leak", "复数注意力": "complex_attend"},
    **{"临界维度": "critical_dimension", "临界底数": "critical_base", "scaling laws": "critical_dimension"},
    **dict.fromkeys(("朴素贝叶斯", "naive Bayes"), "hf.nbce"),
    **{"endless text": "hf.StreamingCache", "summary tree": "hf.MemWalker", "摘要树": "hf.MemWalker"},
}
"""Names in the field that are neither the class nor its paper's own word, in English and Chinese.

hf.nbce is what milepost.hf exports as nbce.
"""


def plain(name: str) -> str:
    """Return a name without what people write differently: capitals, dashes, blanks, and small figures such as ₁."""
    return "".join(letter for letter in unicodedata.normalize("NFKC", name).lower() if letter.isalnum())


@cache
def spellings() -> dict[str, str]:
    """Return every plain spelling of every method, to the name of its class."""
    entries = register.methods()
    methods = {entry.name for entry in entries}
    found = {plain(each): name for each, name in ALSO.items() if name in methods}
    found |= {plain(entry.title): entry.name for entry in entries if entry.title}
    return found | {plain(entry.name): entry.name for entry in entries}


def method_called(name: str) -> str | None:
    """Return the class of the method that people write so, or None."""
    return spellings().get(plain(name))
