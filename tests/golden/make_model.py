"""Makes tests/golden/models: tiny random models as Hugging Face folders, and the reference library's logits for them.

Usage: python make_model.py OUT_DIR   (needs torch, transformers, tokenizers, gguf, numpy)
Beside each model: ids.txt, one sequence of token ids a line; logits.bin, the logits of all its positions as f32
[positions][V], sequence after sequence. They are computed by the saved folder, read back, in f32.
values.txt: "tensor NAME ROW COLUMN VALUE" under kveval's own names (fused rows counted from their part's first), and
"rope TOTAL POSITION INDEX COS SIN" of the rotary tables. OUT_DIR/dequant.txt: "TYPE BLOCK VALUES", one random block of
each stored type in hex and what it decodes to, as the hex of f32 (needs the `gguf` package).
The models differ on purpose: dtype, shards, tied head, GQA group, RoPE scaling, old and new style of config.json.
"""
import json
import pathlib
import shutil
import sys

import gguf
import numpy
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)
from transformers.utils.logging import disable_progress_bar

VOCAB = 272  # five more than the tokenizer has, as real models pad
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [("t", "h"), ("th", "e"), ("i", "n"), ("e", "r"), ("Ġ", "the"), ("a", "n"), ("Ġ", "a"), ("o", "n")]
CHATML = ("{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
COMMON = dict(vocab_size=VOCAB, num_hidden_layers=2, hidden_size=40, intermediate_size=56, bos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


def spread(n: int, last: float) -> list:
    """n factors from 1 up to `last`, with three decimals."""
    return [round(1 + (last - 1) * i / (n - 1), 3) for i in range(n)]


def cases() -> dict:
    long_rope = dict(rope_type="longrope", short_factor=spread(12, 1.5), long_factor=spread(12, 6.0), rope_theta=10000.0,
                     partial_rotary_factor=0.75, original_max_position_embeddings=32)
    return {
        "llama": (LlamaForCausalLM, LlamaConfig(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
                                                max_position_embeddings=128, rope_parameters=LLAMA3 | dict(rope_theta=500.0),
                                                eos_token_id=[256, 258], tie_word_embeddings=False), torch.bfloat16, "old"),
        "llama_tied": (LlamaForCausalLM, LlamaConfig(**COMMON, num_attention_heads=3, num_key_value_heads=1, head_dim=16, rms_norm_eps=1e-5,
                                                     max_position_embeddings=64, rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                                                     eos_token_id=258, tie_word_embeddings=True), torch.float32, "old"),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config(**COMMON, num_attention_heads=4, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6,
                                                max_position_embeddings=64, rope_parameters=dict(rope_type="default", rope_theta=1e6),
                                                eos_token_id=258, tie_word_embeddings=False), torch.bfloat16, "sharded"),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config(**COMMON, num_attention_heads=4, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-6,
                                                max_position_embeddings=64, rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=1e4),
                                                eos_token_id=258, tie_word_embeddings=True), torch.float16, "new"),
        "phi3": (Phi3ForCausalLM, Phi3Config(**(COMMON | dict(hidden_size=64, intermediate_size=32)), num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5,
                                             max_position_embeddings=128, original_max_position_embeddings=32, rope_parameters=long_rope, partial_rotary_factor=0.75,
                                             eos_token_id=256, tie_word_embeddings=False), torch.bfloat16, "new"),
    }


def write_tokenizer(folder: pathlib.Path, jinja_file: bool) -> None:
    texts = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(texts)}
    for i, special in enumerate(SPECIALS):
        vocab[special] = 256 + i
    for left, right in MERGES:
        vocab[left + right] = len(vocab)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(SPECIALS)
    tok.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": None, "tokenizer_class": "PreTrainedTokenizerFast"}
    if jinja_file:
        (folder / "chat_template.jinja").write_text(CHATML)
    else:
        config["chat_template"] = CHATML
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def randomise(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Weights large enough that a wrong step shows in the logits."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if name.endswith("norm.weight"):
            p.data = 1 + 0.2 * noise
        elif p.ndim == 1:
            p.data = 0.3 * noise
        else:
            p.data = noise * (0.3 if "embed" in name else p.shape[1] ** -0.5)


def old_style(path: pathlib.Path) -> None:
    """rope_parameters -> rope_theta and rope_scaling, as files written before that name have it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    path.write_text(json.dumps(config, indent=2) + "\n")


def values(model, folder: pathlib.Path, lengths: list, generator: torch.Generator) -> None:
    """Some elements of each kind of tensor, and of the rotary tables."""
    config, layer = model.config, model.model.layers[1]
    named = {"embed": model.model.embed_tokens.weight, "final_norm": model.model.norm.weight, "1.o": layer.self_attn.o_proj.weight,
             "1.ffn_norm": layer.post_attention_layernorm.weight, "1.attn_norm": layer.input_layernorm.weight, "1.down": layer.mlp.down_proj.weight}
    if not config.tie_word_embeddings:
        named["head"] = model.lm_head.weight
    if config.model_type == "phi3":
        dim = config.hidden_size // config.num_attention_heads
        q, kv = config.num_attention_heads * dim, config.num_key_value_heads * dim
        named["1.q"], named["1.k"], named["1.v"] = torch.split(layer.self_attn.qkv_proj.weight, [q, kv, kv])
        named["1.gate"], named["1.up"] = layer.mlp.gate_up_proj.weight.chunk(2)
    else:
        named |= {f"1.{p}": getattr(layer.self_attn, p + "_proj").weight for p in "qkv"}
        named |= {f"1.{p}": getattr(layer.mlp, p + "_proj").weight for p in ("gate", "up")}
    if config.model_type == "qwen2":
        named |= {f"1.{p}_bias": getattr(layer.self_attn, p + "_proj").bias for p in "qkv"}
    if config.model_type == "qwen3":
        named |= {"1.q_norm": layer.self_attn.q_norm.weight, "1.k_norm": layer.self_attn.k_norm.weight}
    lines = []
    for name, t in named.items():
        t = t.detach().reshape(-1, t.shape[-1])
        for row in sorted({0, int(torch.randint(0, t.shape[0], (1,), generator=generator)), t.shape[0] - 1}):
            column = int(torch.randint(0, t.shape[1], (1,), generator=generator))
            lines.append(f"tensor {name} {row} {column} {float(t[row, column]).hex()}")
    rope = model.model.rotary_emb
    for total in lengths:
        cos, sin = rope(torch.zeros(1, dtype=torch.float32), torch.arange(total)[None])
        for position, index in ((0, 0), (1, 0), (total - 1, 1), (total // 2, cos.shape[-1] // 2 - 1), (total - 1, 3)):
            lines.append(f"rope {total} {position} {index} {float(cos[0, position, index])!r} {float(sin[0, position, index])!r}")
    (folder / "values.txt").write_text("\n".join(lines) + "\n")


def dequant(out: pathlib.Path) -> None:
    rng, plain = numpy.random.default_rng(5), {"F32": numpy.float32, "F16": numpy.float16}
    lines = []
    for name in "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K".split():
        kind = gguf.GGMLQuantizationType[name]
        _, size = gguf.GGML_QUANT_SIZES[kind]
        while True:  # a random block whose scales are finite
            raw = rng.integers(0, 256, (1, size if size > 4 else 32), dtype=numpy.uint8)
            with numpy.errstate(all="ignore"):
                x = gguf.quants.dequantize(raw.view(plain[name]) if name in plain else raw, kind)
            x = numpy.asarray(x, dtype=numpy.float32)
            if numpy.isfinite(x).all():
                break
        lines.append(f"{name} {raw.tobytes().hex()} {x.tobytes().hex()}")
    (out / "dequant.txt").write_text("\n".join(lines) + "\n")


def make(name: str, folder: pathlib.Path, cls: type, config, dtype: torch.dtype, style: str) -> None:
    generator = torch.Generator().manual_seed(len(name) * 1000 + ord(name[-1]))
    model = cls(config)
    randomise(model, generator)
    if config.tie_word_embeddings:
        model.tie_weights()
    model.to(dtype).save_pretrained(folder, max_shard_size="50KB" if style == "sharded" else "5GB")
    if style == "old":
        old_style(folder / "config.json")
    for weights in folder.glob("*.safetensors"):
        weights.chmod(0o644)
    write_tokenizer(folder, jinja_file=style == "new")
    lengths = [34, 12] if name == "phi3" else [40]  # phi3: behind and before its original context
    sequences = [torch.randint(0, VOCAB, (n,), generator=generator) for n in lengths]
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = [read(s[None], use_cache=False).logits[0] for s in sequences]
    (folder / "ids.txt").write_text("".join(" ".join(map(str, s.tolist())) + "\n" for s in sequences))
    (folder / "logits.bin").write_bytes(b"".join(x.contiguous().numpy().tobytes() for x in logits))
    values(read, folder, lengths, generator)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {size} bytes, logits within [{min(x.min() for x in logits):.3f}, {max(x.max() for x in logits):.3f}]")


def main() -> int:
    out = pathlib.Path(sys.argv[1])
    disable_progress_bar()
    for name, (cls, config, dtype, style) in cases().items():
        shutil.rmtree(out / name, ignore_errors=True)
        make(name, out / name, cls, config, dtype, style)
    dequant(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
