"""Makes tests/golden/kvpress: the scores that NVIDIA/kvpress itself gives on small random inputs.

Usage: python make_kvpress.py OUT_DIR   (needs torch, transformers and kvpress; made with kvpress 0.5.5)

A Llama attention layer with random weights turns random hidden states into Q, K and V (rotated, fp32); the presses
score them. Each file: one line "kvpress Hq Hkv D n W", then little-endian f32: q [W][Hq][D] (the last W queries),
k [Hkv][n][D], v [Hkv][n][D], then [Hkv][n] scores of knorm, keydiff, lagkv, snapkv, tova.
Release 0.5.5 differs from commit 8bb29b9 in knorm alone, which sums in fp32 at least: no difference for fp32 keys.
"""
import os
import sys

import torch
from kvpress import KeyDiffPress, KnormPress, LagKVPress, SnapKVPress, TOVAPress
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

WINDOW = 64
CASES = [  # name, Hq, Hkv, D, n, seed
    ("two_heads", 8, 2, 16, 390, 1),  # two scored partitions of 128 and a remainder
    ("group_of_three", 3, 1, 24, 97, 2),  # too short for lag statistics
    ("head_32", 4, 1, 32, 261, 3),  # one scored partition, the smallest n
]


def make(path, n_q, n_kv, dim, n, seed):
    torch.manual_seed(seed)
    config = LlamaConfig(hidden_size=48, num_attention_heads=n_q, num_key_value_heads=n_kv, head_dim=dim,
                         max_position_embeddings=1024, attn_implementation="eager")
    layer = LlamaAttention(config, layer_idx=0)
    for weight in layer.parameters():
        torch.nn.init.normal_(weight, std=0.25)
    hidden = torch.randn(1, n, 48)
    cos_sin = LlamaRotaryEmbedding(config)(hidden, torch.arange(n)[None])

    def split(x, heads):
        return x.view(1, n, heads, dim).transpose(1, 2)

    q, k = apply_rotary_pos_emb(split(layer.q_proj(hidden), n_q), split(layer.k_proj(hidden), n_kv), *cos_sin)
    v = split(layer.v_proj(hidden), n_kv).contiguous()
    parts = [q[0].transpose(0, 1)[-WINDOW:], k[0], v[0]]
    for press in (KnormPress(), KeyDiffPress(), LagKVPress(), SnapKVPress(), TOVAPress()):
        scores = press.score(layer, hidden, k, v, None, {"position_embeddings": cos_sin})
        assert scores.shape == (1, n_kv, n), (press, scores.shape)
        parts.append(scores[0])
    with open(path, "wb") as out:
        out.write(f"kvpress {n_q} {n_kv} {dim} {n} {WINDOW}\n".encode())
        for part in parts:
            out.write(part.contiguous().numpy().astype("<f4").tobytes())


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    with torch.no_grad():
        for name, *shape, n, seed in CASES:
            make(os.path.join(sys.argv[1], name + ".bin"), *shape, n, seed)


if __name__ == "__main__":
    main()
