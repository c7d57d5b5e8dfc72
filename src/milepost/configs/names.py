"""Names of transformers, x-transformers, flash-attention and vLLM, and milepost's for each.

docs/names.md is this table, written by `python -m milepost.configs.names`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Name:
    """One name of another library, where it lives there, and the same in milepost, as an example that runs."""

    theirs: str
    where: str
    ours: str
    note: str = ""


ROPE = "transformers.modeling_rope_utils:RopeParameters"
TYPES = "transformers.modeling_rope_utils:ROPE_INIT_FUNCTIONS"
X = "x_transformers.x_transformers:"
LAYERS, ATTENTION, WRAPPER = f"{X}AttentionLayers", f"{X}Attention", f"{X}TransformerWrapper"
FLASH, TURN, ROTARY = (
    "flash_attn:flash_attn_func",
    "flash_attn.layers.rotary:apply_rotary_emb",
    "flash_attn.layers.rotary:RotaryEmbedding",
)
GET, SERVE, ATTEND = (
    "vllm.model_executor.layers.rotary_embedding:get_rope",
    "vllm:LLM",
    "vllm.model_executor.layers.attention:Attention",
)


def models(name: str, family: str) -> str:
    """Return the path of a class or function of one of transformers' models."""
    return f"transformers.models.{family}.{name}_{family}"


KEYS: tuple[Name, ...] = (
    Name("rope_theta", ROPE, "Rope(128, theta=500000.0)", "before transformers 5 beside `rope_scaling`, now inside"),
    Name("rope_type", ROPE, "Rope(128, stretch=Yarn(4, 32768))", '"type" in old configs; "default" is no stretch'),
    Name("factor", ROPE, "Interpolate(4.0)", "the word is the same in every stretch"),
    Name("original_max_position_embeddings", ROPE, "Yarn(4.0, trained=32768)", "`trained` is the one word for it"),
    Name("attention_factor", ROPE, "Yarn(4.0, 32768, scaled=1.2)", "rides on cos and sin"),
    Name("beta_fast", ROPE, "Yarn(4.0, 32768, fast=32.0)"),
    Name("beta_slow", ROPE, "Yarn(4.0, 32768, slow=1.0)"),
    Name("truncate", ROPE, "Yarn(32.0, 4096, truncate=False)", "gpt-oss"),
    Name("mscale", ROPE, "Yarn(40.0, 4096, scaled=1.0)", "scaled is m(mscale) / m(mscale_all_dim)"),
    Name("mscale_all_dim", ROPE, "DeepseekScale(40.0, weight=1.0)", "only DeepSeek sharpens the softmax by it"),
    Name("short_factor", ROPE, "LongRope(short=(1.0,) * 48, long=(4.0,) * 48, trained=4096)"),
    Name("long_factor", ROPE, "LongRope(short=(1.0,) * 48, long=(4.0,) * 48, trained=4096)"),
    Name("low_freq_factor", ROPE, "Llama3(8.0, 8192, low=1.0)"),
    Name("high_freq_factor", ROPE, "Llama3(8.0, 8192, high=4.0)"),
    Name("partial_rotary_factor", ROPE, "Partial(Rope(32), of=80)", "0.4 of 80 channels; `rotary_pct` in GPT-NeoX"),
    Name("mrope_section", ROPE, "AxialRope(128, (16, 24, 24))", "time, height, width"),
    Name("linear", TYPES, "Interpolate(4.0)"),
    Name("dynamic", TYPES, "DynamicNtk(4096, factor=2.0)", "trained is max_position_embeddings"),
    Name("yarn", TYPES, "Yarn(4.0, 32768)"),
    Name("longrope", TYPES, "LongRope((1.0,) * 48, (4.0,) * 48, 4096, factor=32.0)", '"su" in old configs'),
    Name("llama3", TYPES, "Llama3(8.0, 8192)"),
    Name("proportional", TYPES, "Proportional(0.25)"),
    Name(
        "rotary_dim", models("configuration", "gptj") + ":GPTJConfig", "Partial(Rope(64, pairs='neighbours'), of=256)"
    ),
    Name("head_dim", "transformers:LlamaConfig", "Rope(128)", "without it, hidden_size / num_attention_heads"),
    Name(
        "qk_rope_head_dim",
        "transformers:DeepseekV3Config",
        "Partial(Rope(64, pairs='neighbours'), of=192)",
        "of counts qk_nope_head_dim too; the channels that turn come first",
    ),
    Name("rope_interleave", "transformers:DeepseekV3Config", "Rope(64, pairs='neighbours')", 'False is "halves"'),
    Name("sliding_window", "transformers:MistralConfig", "causal & window(4096)", "the same count, itself included"),
    Name("local_attention", "transformers:ModernBertConfig", "window(65, ahead=64)", "128 there: both sides"),
    Name("attention_chunk_size", "transformers:Llama4TextConfig", "causal & chunks(8192)"),
    Name("layer_types", "transformers:Gemma3TextConfig", "Schedule([Scheme(Rope(256), causal & window(512))] * 5)"),
    Name("no_rope_layers", "transformers:SmolLM3Config", "Scheme(Nope(), causal)", "a 1 there means that it does turn"),
    Name("floor_scale", "transformers:Llama4TextConfig", "Llama4Scale(chunk=8192)"),
    Name("attn_scale", "transformers:Llama4TextConfig", "Llama4Scale(weight=0.1)"),
    Name("query_pre_attn_scalar", "transformers:Gemma2Config", "Scale(224**-0.5)"),
    Name("attention_multiplier", "transformers:GraniteConfig", "Scale(0.0078125)"),
    Name("attn_logit_softcapping", "transformers:Gemma2Config", "SoftCap(50.0)"),
    Name("max_position_embeddings", "transformers:BertConfig", "Learned(512, 768)", "RoBERTa: two rows fewer"),
    Name("n_positions", "transformers:GPT2Config", "Learned(1024, 768)"),
    Name(
        "max_source_positions",
        "transformers:WhisperConfig",
        "Sinusoidal(768, layout='concatenated', denominator=383)",
        "waves for any length; transformers keeps so many rows",
    ),
    Name("max_target_positions", "transformers:WhisperConfig", "Learned(448, 768)"),
    Name("local_radius", "transformers:LongT5Config", "window(128, ahead=127)", "127 there: its own key not counted"),
    Name("alibi", "transformers:FalconConfig", "Alibi(32, stretch=AlibiInterpolate(8.0))", "Falcon divides it by √d"),
    Name("alibi", models("configuration", "mpt") + ":MptAttentionConfig", "Alibi(32)"),
    Name("relative_attention_num_buckets", "transformers:T5Config", "T5Bias(8, buckets=32)"),
    Name("relative_attention_max_distance", "transformers:T5Config", "T5Bias(8, reach=128)"),
    Name("clamp_len", "transformers:XLNetConfig", "TransformerXL(1024, 16, 64, reach=512)", "zero and less: no reach"),
    Name("max_relative_positions", "transformers:DebertaConfig", "Deberta(768, 12, 64, reach=512)"),
    Name(
        "position_ids",
        models("modeling", "llama") + ":LlamaModel.forward",
        "Rope(128).turn",
        "attend(position=…, key_position=…)",
    ),
)

CLASSES: tuple[Name, ...] = tuple(
    Name(name, models("modeling", family), ours, note)
    for name, family, ours, note in (
        ("LlamaRotaryEmbedding", "llama", "Rope(128)", "Rope.of(config) reads it; milepost.dropin has one"),
        ("apply_rotary_pos_emb", "llama", "Rope(128).turn", "halves; milepost.dropin has one"),
        ("apply_rotary_pos_emb", "cohere", "Rope(128, pairs='neighbours').turn", "neighbours"),
        ("rotate_every_two", "gptj", "Rope(64, pairs='neighbours').turn", ""),
        ("Llama4TextRotaryEmbedding", "llama4", "Rope(128, pairs='neighbours')", ""),
        ("GptOssAttention", "gpt_oss", "SinkLogit(64)", "its sinks are logits of attending to nothing"),
        ("build_alibi_tensor", "bloom", "Alibi(16)", "m·j there, which the softmax cannot tell apart"),
        ("build_mpt_alibi_tensor", "mpt", "Alibi(32)", ""),
        ("T5Attention", "t5", "Scheme(T5Bias(8), Scale(1.0), causal)", "T5 does not divide by √d"),
        ("XLNetRelativeAttention", "xlnet", "Scheme(TransformerXL(1024, 16, 64))", "r_w_bias is u, r_r_bias is v"),
        (
            "DisentangledSelfAttention",
            "deberta_v2",
            "Deberta(768, 12, 64, reach=512, buckets=256, bias='both')",
            "Microsoft's row for keys ahead by reach or more is one on from transformers'",
        ),
        ("BartLearnedPositionalEmbedding", "bart", "Learned(1024, 1024)", "its first two rows are never used"),
        ("MarianSinusoidalPositionalEmbedding", "marian", "Sinusoidal(512, layout='concatenated')", ""),
        (
            "M2M100SinusoidalPositionalEmbedding",
            "m2m_100",
            "Sinusoidal(1024, layout='concatenated', denominator=511, start=2)",
            "fairseq's: the first token stands after the padding token",
        ),
        ("OPTLearnedPositionalEmbedding", "opt", "Learned(2048, 768)", "its first two rows are never used"),
        ("RoFormerSinusoidalPositionalEmbedding", "roformer", "Rope(64, pairs='neighbours')", ""),
    )
)

X_TRANSFORMERS: tuple[Name, ...] = (
    Name("rotary_pos_emb", LAYERS, "Partial(Rope(32, pairs='neighbours'), of=64)", "half of the head by default"),
    Name("rotary_emb_dim", LAYERS, "Partial(Rope(32, pairs='neighbours'), of=64)"),
    Name("rotary_interpolation_factor", LAYERS, "Interpolate(4.0)"),
    Name("rotary_base_rescale_factor", LAYERS, "Ntk(4.0)", "the factor, raised to d/(d − 2) by itself"),
    Name("rotary_xpos", LAYERS, "Xpos(64)"),
    Name("rotary_xpos_scale_base", LAYERS, "Xpos(64, fade=512.0)"),
    Name("alibi_pos_bias", LAYERS, "Alibi(8)", "learned positions stay on there unless use_abs_pos_emb=False"),
    Name("rel_pos_bias", LAYERS, "T5Bias(8)", "its table is multiplied by √d there"),
    Name("rel_pos_num_buckets", LAYERS, "T5Bias(8, buckets=32)"),
    Name("rel_pos_max_distance", LAYERS, "T5Bias(8, reach=128)"),
    Name("causal", LAYERS, "causal"),
    Name("max_attend_past", ATTENTION, "causal & window(513)", "512 there: the keys behind, itself not counted"),
    Name("softclamp_logits", ATTENTION, "SoftCap(50.0)"),
    Name("logit_softclamp_value", ATTENTION, "SoftCap(50.0)"),
    Name("use_cope", ATTENTION, "Cope(64, 16, after_scale=True)"),
    Name("cope_max_pos", ATTENTION, "Cope(64, positions=16, after_scale=True)"),
    Name("head_learned_sink", ATTENTION, "SinkLogit(8)"),
    Name("add_zero_kv", ATTENTION, "SoftmaxOne(8)"),
    Name("use_abs_pos_emb", WRAPPER, "Learned(1024, 512)", "multiplied by 1/√D there"),
    Name("scaled_sinu_pos_emb", WRAPPER, "Sinusoidal(512, layout='concatenated')", "with a learned factor there"),
)

FLASH_ATTENTION: tuple[Name, ...] = (
    Name("causal", FLASH, "causal"),
    Name("window_size", FLASH, "window(256, ahead=128)", "(255, 128) there: left and right of the query"),
    Name("alibi_slopes", FLASH, "Alibi(32).slopes().behind", "float32 there"),
    Name("softcap", FLASH, "SoftCap(50.0)", "0 there is none"),
    Name("softmax_scale", FLASH, "Scale(0.125)"),
    Name("cu_seqlens_q", "flash_attn:flash_attn_varlen_func", "documents_of", "attend(documents=…, index=…)"),
    Name("interleaved", TURN, "Rope(64, pairs='neighbours')", 'False is "halves"'),
    Name("seqlen_offsets", TURN, "Rope(64).turn", "give the positions themselves"),
    Name("base", ROTARY, "Rope(64, theta=10000.0)"),
    Name("scale_base", ROTARY, "Xpos(64, fade=512.0, pairs='halves')", "None there is plain RoPE"),
)

VLLM: tuple[Name, ...] = (
    Name("head_size", GET, "Rope(128)"),
    Name("rotary_dim", GET, "Partial(Rope(32), of=80)", "not from 0.13 on: rope_parameters['partial_rotary_factor']"),
    Name("base", GET, "Rope(128, theta=10000.0)", "not from 0.12 on: rope_parameters['rope_theta']"),
    Name("rope_parameters", GET, "Rope(128, stretch=Yarn(4.0, 32768))", "transformers' keys; rope_scaling before 0.12"),
    Name("is_neox_style", GET, "Rope(128, pairs='halves')", 'False is "neighbours"'),
    Name("max_position", GET, "DynamicNtk(4096)", "the length of its table; only dynamic stretches need one here"),
    Name("dual_chunk_attention_config", GET, "DualChunk(chunk=3072, local=512)", "chunk_size and local_size"),
    Name(
        "hf_overrides",
        SERVE,
        "Rope.of({'model_type': 'qwen3', 'head_dim': 128, 'rope_parameters': "
        "{'rope_type': 'yarn', 'rope_theta': 1e6, 'factor': 4.0, 'original_max_position_embeddings': 32768}})",
        "--rope-scaling before",
    ),
    Name("alibi_slopes", ATTEND, "Alibi(32).slopes().behind"),
    Name("logits_soft_cap", ATTEND, "SoftCap(50.0)"),
    Name("per_layer_sliding_window", ATTEND, "causal & window(4096)"),
    Name("scale", ATTEND, "Scale(0.125)"),
)

NAMES: dict[str, tuple[Name, ...]] = {
    "Config keys of transformers": KEYS,
    "Classes and functions of transformers": CLASSES,
    "Arguments of x-transformers": X_TRANSFORMERS,
    "Arguments of flash-attention": FLASH_ATTENTION,
    "Arguments of vLLM": VLLM,
}


EXAMPLE = """```python
import milepost as mp

llama = {"model_type": "llama", "head_dim": 128, "rope_theta": 500000.0, "num_hidden_layers": 32}
print(mp.Scheme.of(llama).parts)
yarn = {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 8192}
print(mp.Rope.of({"model_type": "llama", "head_dim": 128, "rope_parameters": yarn}).stretch)
```
```
(Rope(head_dim=128, theta=500000.0, pairs='halves', stretch=None), causal)
Yarn(factor=4.0, trained=8192, ramp='code', fast=32.0, slow=1.0, truncate=True, scaled=None)
```"""


def page() -> str:
    """Return the table as Markdown."""
    lines = [
        "# What others call it",
        "",
        "Most configurations need no translation: `Scheme.of(config)`, `Schedule.of(config)` and `Rope.of(config)`",
        "read a model or a config of transformers, a folder with a config.json, that file, or its dict, old or new,",
        "and refuse what they do not know.",
        "",
        EXAMPLE,
        "",
        "The tables below are for reading code; every example in them runs.",
    ]
    for title, names in NAMES.items():
        lines += ["", f"## {title}", "", "| theirs | in | milepost | |", "|---|---|---|---|"]
        lines += [f"| `{each.theirs}` | {owner(each)} | `{each.ours}` | {each.note} |" for each in names]
    return "\n".join(lines) + "\n"


def owner(name: Name) -> str:
    """Return the class, function or model that a name belongs to, in short."""
    place, _, inside = name.where.partition(":")
    return f"`{inside or place.rpartition('.')[2]}`"


if __name__ == "__main__":
    print(page(), end="")
