"""A line of Chinese for every method and function, and the words of the catalogue in Chinese."""

LINES: dict[str, str] = {
    # Input
    "ComplexOrder": "复数式：每个词是一组复数，相位随位置转动。",
    "Floater": "FLOATER：位置向量由一个学出来的连续流（神经 ODE）给出。",
    "Hierarchical": "层次分解：把位置写成 n 进制两位数，各取一行按比例相加。",
    "Learned": "训练式（可学习）位置编码：每个位置一个训练出来的向量。",
    "Multiplied": "相乘式：词向量乘以一加位置向量，而不是相加。",
    "Recurrent": "递归式：每个位置的向量由前一个位置经小网络推出。",
    "Sinusoidal": "三角式：给词向量加上固定的正弦、余弦波。",
    # Turns
    "AxialRope": "多轴 RoPE（M-RoPE）：一个 token 有多个坐标，各段维度按各自的坐标旋转。",
    "FloaterLayer": "逐层 FLOATER：每层都把连续流的状态加到 q、k、v 上。",
    "FusedRope": "融合式：像 RoPE 一样旋转 q、k，并且旋转 v。",
    "LearnedRope": "可学习 RoPE：频率从 RoPE 的取值出发，随模型一起训练。",
    "Partial": "部分旋转：只旋转前面若干维，其余不动。",
    "QkNorm": "QK 归一化：q、k 除以各自的均方根，再乘以学出来的权重。",
    "Rope": "旋转位置编码：第 n 对维度转过的角度是位置乘以 θ^(−2n/d)。",
    "TwoPartRope": "ChatGLM 的二维旋转：前一半维度用第一种位置，后一半用第二种。",
    "Xpos": "xPos：在 RoPE 上让各对维度随距离指数衰减。",
    # Stretches of RoPE
    "ByParts": "NTK-by-parts：高频不动、低频内插、中间过渡，即不带温度的 YaRN。",
    "DynamicLinear": "动态线性内插：按文本当前长度把位置压回训练范围。",
    "DynamicNtk": "动态 NTK：底数随文本当前长度变大。",
    "DynamicYarn": "动态 YaRN：倍数取当前长度与训练长度之比，至少为 1。",
    "Interpolate": "线性内插（PI）：所有频率除以同一个倍数，等于把位置按比例压缩。",
    "Llama3": "Llama 3.1 的分段缩放：按训练长度内转过的圈数决定内插多少。",
    "LongRope": "LongRoPE：每个频率除以各自搜索出来的倍数，长短文本各一组。",
    "Ntk": "NTK-aware：要拉长 s 倍，就把底数 θ 换成 θ · s^(d/(d − 2))，高频外推、低频内插。",
    "NtkMixed": "NTK-mixed（混合进制）：越靠后的维度压缩得越多，最后一对恰为给定倍数。",
    "Proportional": "p-RoPE：只保留前一部分频率，其余置零。",
    "Yarn": "YaRN：逐对维度在内插与不变之间过渡，并调整注意力温度。",
    # Relations
    "Deberta": "DeBERTa 式：分数加上内容到位置、位置到内容两项，舍去位置到位置。",
    "Nezha": "NEZHA：给 k 和 v 加上由相对距离决定的固定正弦向量。",
    "Shaw": "经典式（Shaw）：给 k 和 v 加上由截断后的相对距离查出的向量。",
    "TransformerXL": "XLNet 式（Transformer-XL）：内容对内容、内容对距离两项，各带一个学出来的偏置。",
    # Biases
    "Alibi": "ALiBi：分数减去斜率乘距离，每个头斜率不同。",
    "Fire": "FIRE：用一个小网络，把距离与当前位置之比映成偏置。",
    "Kerple": "KERPLE：按学出来的幂函数或对数函数，随距离降低分数。",
    "LearnedAlibi": "双向可学习 ALiBi：左右两侧各有学出来的斜率，用于编码器。",
    "OffsetAlibi": "带偏移的双向 ALiBi：两侧都随距离降低，左侧少降半步，以分左右。",
    "Sandwich": "Sandwich：加上随距离变化的余弦和，近处高、远处低。",
    "SoftCap": "软截断：把分数平滑地限制在 ±cap 之内。",
    "SplitAlibi": "分头的双向 ALiBi：一半的头只看左边，另一半只看右边。",
    "T5Bias": "T5 式：按距离所在的桶，给分数加上一个学出来的数。",
    # Stretches of ALiBi
    "AlibiDynamicNtk": "动态 NTK-ALiBi：斜率按文本当前长度变缓。",
    "AlibiInterpolate": "ALiBi 内插：所有斜率除以同一个倍数。",
    "AlibiNtk": "NTK-ALiBi：最陡的头不变，最缓的头除以整个倍数，中间按幂过渡。",
    # Counting
    "Cope": "CoPE（上下文位置编码）：数出两者之间由 q 挑中的 token，按个数查表。",
    # Places
    "Dilute": "Dilute：远处的 k 比训练时多出多少倍，就按其对数降低它们的分数。",
    "DualChunk": "双块注意力：位置在每一块里重新数起，跨块时另有规定。",
    "KeepSinks": "KeepSinks：开头几个 k 不受 Pivot、Dilute 影响。",
    "LeakyRerope": "Leaky ReRoPE：超出窗口后，距离放慢增长。",
    "Pivot": "Pivot：以近处 k 的 log-sum-exp 为界，抬高超过它的远处分数，压低其余的。",
    "Rerope": "ReRoPE：超出窗口的距离一律截断为窗口大小。",
    "SelfExtend": "Self-Extend：近处距离照旧，远处若干 token 共用一个位置。",
    "Stream": "StreamingLLM：只看开头几个 token 和最近的窗口，位置按缓存中的次序算。",
    # Scale and softmax
    "DeepseekScale": "DeepSeek 的温度：q 乘以 YaRN 幅度的平方。",
    "Llama4Scale": "Llama 4 的温度：按身后有多少块取对数。",
    "LogN": "log-n 缩放：分数乘以 k 的个数的对数，以训练长度为底。",
    "Scale": "固定缩放：点积乘以给定的数，代替 1/√d。",
    "SinkLogit": "可学习的注意力汇：softmax 的分母多一项，头可以什么都不看。",
    "SoftmaxOne": "SoftMax₁：softmax 的分母加 1。",
    "Nope": "NoPE：什么也不加，作为对照。",
    # Visible
    "causal": "因果：看第 0 到第 i 个 k，包括自己。",
    "chunks": "分块：只看与自己同一块的 k，每块 n 个。",
    "everything": "全部可见。",
    "sinks": "开头 n 个 k，总是可见。",
    "window": "窗口：看最近的 n 个 k，包括自己；ahead 再加上后面若干个。",
    # Samplers
    "Pose": "PoSE：把文本切成两段，后一段的位置随机跳过一截。",
    "Randomized": "随机位置：从更大的范围里按序抽取位置来训练。",
    # Functions
    "Cache": "KV 缓存：保存 k、v 以及它们的序号和位置。",
    "MaskDecoder": "DeBERTa 的增强掩码解码器：最后一层用带绝对位置的 q 再算一遍。",
    "Schedule": "逐层方案：每层各用一个方案。",
    "Scheme": "方案：把位置编码、缩放与可见范围放在一起。",
    "attend": "在给定方案下计算注意力。",
    "complex_attend": "q、k、v 都是复数的注意力。",
    "critical_base": "临界底数：微调到目标长度时，底数超过它，能用的长度便超过目标。",
    "critical_dimension": "临界维度：训练长度内转满一圈的维度数。",
    "documents_of": "把变长批次的累计长度换成每个 token 的（文档号，序号）。",
    "explain": "说明 attend 会选哪个后端、代价多少、其他的为什么不行。",
    "hwfa": "HWFA：除最后一层外都是带 RoPE 的窗口，最后一层看全部、不带位置。",
    "hwfa2": "HWFA2：窗口层带 RoPE，一两个全局层在训练之后改用 ReRoPE。",
    "linear_attend": "线性注意力：分子旋转、分母不旋转。",
    "llama4": "Llama 4 的各层：块内 RoPE，每第四层看全部、不带位置。",
    "merge": "把分别在几组 k 上算出的结果合成一个。",
    "methods": "列出所有方法及其公式、论文和能运行它的后端。",
    "padding_leak": "补零泄漏：常数输入经随机卷积后，各处的差别。",
    "reach_of": "换一个底数微调之后，模型能处理多少 token。",
    "rotate": "按给定的余弦、正弦旋转每一对维度。",
    "scores": "softmax 之前的分数；看不见的 k 为 −∞。",
    "weights": "注意力权重，即 scores 的 softmax。",
    # milepost.hf
    "hf.MemWalker": "MemWalker：把长文本做成摘要树，让模型自己沿树查找。",
    "hf.StreamingCache": "流式缓存：只留开头几个 token 和最近的窗口，显存固定，可一直读下去。",
    "hf.asker": "把一个检查点变成问答函数，供 MemWalker 使用。",
    "hf.check": "比较两个模型的约定（配对、底数、缩放等），指出不同之处。",
    "hf.choose": "在你的文本上试各种方法，按规则选出最好的一个。",
    "hf.export": "写出 transformers、vLLM、llama.cpp、ONNX 等能读的文件。",
    "hf.extend": "就地扩展一个 transformers 模型。",
    "hf.load": "读回 save 写出的文件夹。",
    "hf.measure": "测量扩展后的损失与召回，逐长度比较。",
    "hf.nbce": "NBCE：用朴素贝叶斯合并多段上下文的预测。",
    "hf.plan": "列出可用的方法及其配置。",
    "hf.restore": "撤销 extend。",
    "hf.save": "把扩展后的模型存成文件夹。",
    "hf.show": "逐层说明一个模型现在怎么算位置。",
}
"""By name, as `milepost methods` lists them; what another package exports has its package before it."""

GROUPS: dict[str, tuple[str, str]] = {
    "Input": ("输入", "进入第一层之前，与词向量结合的位置编码"),
    "Turns": ("旋转", "RoPE 一族：点积之前旋转 q 和 k"),
    "Stretches of RoPE": ("RoPE 的拉伸", "作为旋转的参数：Rope(head_dim, stretch=…)"),
    "Relations": ("相对位置表", "点积之内，按距离查表"),
    "Biases": ("偏置", "缩放之后，逐个改变分数（score_mod）"),
    "Stretches of ALiBi": ("ALiBi 的拉伸", "作为 ALiBi 的参数：Alibi(heads, stretch=…)"),
    "Counting": ("计数", "整行分数一起改变"),
    "Places": ("位置重排", "改变远近各处的相对距离"),
    "Scale and softmax": ("缩放与 softmax", "softmax 的缩放、温度与注意力汇"),
    "No position": ("无位置", "对照"),
    "Visible": ("可见范围", "哪些 k 可见（mask_mod）；用 &、|、~ 组合"),
    "Samplers": ("位置采样", "训练用的位置：attend(…, position=…)"),
    "Functions": ("函数", "其余导出的名字，括号里是必需的参数"),
}
"""What the groups are called, and what is said of each."""

LABELS: dict[str, str] = {
    "method": "方法",
    "what it does": "做什么",
    "what it does, and its formula": "做什么，以及公式",
    "method, what it does, and its formula": "方法，做什么，以及公式",
    "formula": "公式",
    "How it composes": "怎样组合",
    "Example": "示例",
    "seam": "接缝",
    "verbs": "动词",
    "facets": "刻面",
    "paper": "出处",
    "relative": "只依赖相对距离",
    "learned": "可训练",
    "backends": "后端",
}
"""Headings of tables and pages."""


def label(english: str, lang: str) -> str:
    """Return a heading in a language."""
    return LABELS.get(english, english) if lang == "zh" else english


def group(title: str, about: str, lang: str) -> tuple[str, str]:
    """Return what a group is called, and what is said of it, in a language."""
    return GROUPS[title] if lang == "zh" else (title, about)
