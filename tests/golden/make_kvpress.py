"""Makes tests/golden/kvpress: the scores that NVIDIA/kvpress itself gives on small random inputs.

Usage: python make_kvpress.py OUT_DIR   (needs torch, transformers and kvpress; made with kvpress 0.5.5)

A Llama attention layer with random weights turns random hidden states into Q, K and V (rotated, fp32); the presses
score them. Each file: one line "kvpress Hq Hkv D n W", then little-endian f32: q [W][Hq][D] (the last W queries),
k [Hkv][n][D], v [Hkv][n][D], then [Hkv][n] scores of knorm, keydiff, lagkv, snapkv, tova.
Release 0.5.5 differs from commit 8bb29b9 in knorm alone, which sums in fp32 at least: no difference for fp32 keys.

The files more_*.bin are for the policies that look at more: one line "kvpress-more Hq Hkv D E n question budget", then
little-endian f32: q [n][Hq][D], k and v [Hkv][n][D], wo [E][Hq D], cos and sin [n + 512][D / 2], the sketch of the
leverage [Hkv][D][48] (drawn N(0, 1), put in place of kvpress's own), [Hkv][n] scores in the order of `more` below, and
AdaKV's tokens per head [Hkv] over SnapKV and over CUR. NonCausalAttnPress gives the padding of the last chunk a share
(it masks with -1e-9 and keeps the padding's queries): where there is padding, its attention alone is replaced by the
chunked softmax over the tokens that exist; elsewhere the two are checked to be the same. LeverageScorePress and
CompactorPress run in f64 (their own code, on the same tensors): where the sketched keys are nearly dependent, as in
more_short, their f32 Cholesky factor moves scores by up to 1e-3.
"""
import copy
import os
import sys
from unittest import mock

import torch
from kvpress import (AdaKVPress, CompactorPress, CriticalKVPress, CURPress, ExpectedAttentionPress, FinchPress,
                     KeyDiffPress, KnormPress, LagKVPress, LeverageScorePress, NonCausalAttnPress,
                     ObservedAttentionPress, SnapKVPress, TOVAPress)
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding, apply_rotary_pos_emb

WINDOW = 64
CASES = [  # name, Hq, Hkv, D, n, seed
    ("two_heads", 8, 2, 16, 390, 1),  # two scored partitions of 128 and a remainder
    ("group_of_three", 3, 1, 24, 97, 2),  # too short for lag statistics
    ("head_32", 4, 1, 32, 261, 3),  # one scored partition, the smallest n
]
MORE_CASES = [  # name, Hq, Hkv, D, E, n, question, budget, seed
    ("more_two_heads", 4, 2, 16, 48, 268, 21, 180, 4),  # compactor's middle is one chunk
    ("more_one_chunk", 2, 1, 16, 32, 256, 5, 80, 5),
    ("more_short", 2, 1, 52, 53, 90, 40, 70, 6),  # more dimensions than the sketch has columns
]


class Layer:
    """A random attention layer and what it makes of random hidden states."""

    def __init__(self, n_q, n_kv, dim, width, n, seed, std, attention):
        torch.manual_seed(seed)
        config = LlamaConfig(hidden_size=width, num_attention_heads=n_q, num_key_value_heads=n_kv, head_dim=dim,
                             max_position_embeddings=1024, attn_implementation=attention)
        self.module = LlamaAttention(config, layer_idx=0)
        for weight in self.module.parameters():
            torch.nn.init.normal_(weight, std=std)
        self.module.rotary_emb = LlamaRotaryEmbedding(config)
        self.hidden = torch.randn(1, n, width)
        self.cos_sin = self.module.rotary_emb(self.hidden, torch.arange(n)[None])

        def split(x, heads):
            return x.view(1, n, heads, dim).transpose(1, 2)

        q, k = split(self.module.q_proj(self.hidden), n_q), split(self.module.k_proj(self.hidden), n_kv)
        self.q, self.k = apply_rotary_pos_emb(q, k, *self.cos_sin)
        self.v = split(self.module.v_proj(self.hidden), n_kv).contiguous()

    def double(self):
        twin = copy.deepcopy(self)
        twin.module.double()
        for name in ("hidden", "k", "v"):
            setattr(twin, name, getattr(self, name).double())
        twin.cos_sin = tuple(x.double() for x in self.cos_sin)
        return twin

    def call(self, method, attentions=None):
        kwargs = {"position_embeddings": self.cos_sin}
        return method(self.module, self.hidden, self.k.clone(), self.v, attentions, kwargs)


def write(path, line, parts):
    with open(path, "wb") as out:
        out.write(line.encode() + b"\n")
        for part in parts:
            out.write(part.contiguous().numpy().astype("<f4").tobytes())


def make(path, n_q, n_kv, dim, n, seed):
    layer = Layer(n_q, n_kv, dim, 48, n, seed, 0.25, "eager")
    parts = [layer.q[0].transpose(0, 1)[-WINDOW:], layer.k[0], layer.v[0]]
    for press in (KnormPress(), KeyDiffPress(), LagKVPress(), SnapKVPress(), TOVAPress()):
        scores = layer.call(press.score)
        assert scores.shape == (1, n_kv, n), (press, scores.shape)
        parts.append(scores[0])
    write(path, f"kvpress {n_q} {n_kv} {dim} {n} {WINDOW}", parts)


def causal_attention(layer):
    q, k = layer.q, layer.k.repeat_interleave(layer.q.shape[1] // layer.k.shape[1], dim=1)
    n = q.shape[2]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    return (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).masked_fill(future, -torch.inf).softmax(-1)


kvpress_chunked = NonCausalAttnPress.non_causal_chunked_attn


def chunked(q, k, size):
    """Column sums of the softmax within chunks, over the tokens that exist."""
    pairs = zip(q.split(size, 2), k.split(size, 2))
    sums = torch.cat([(a @ b.transpose(2, 3)).softmax(-1).sum(2) for a, b in pairs], dim=2)
    if q.shape[2] % size == 0:
        assert torch.allclose(sums, kvpress_chunked(q, k, size), rtol=1e-5)
    return sums


def make_more(path, n_q, n_kv, dim, width, n, question, budget, seed):
    layer = Layer(n_q, n_kv, dim, width, n, seed, 0.2, "sdpa")
    sketch = torch.randn(n_kv, dim, 48)
    ratio = 1 - (budget + 0.5) / n  # kvpress makes exactly `budget` of it
    finch, scores = FinchPress(), []
    finch.window_size = question
    exact = layer.double()
    more = [(CURPress(), layer, None), (LeverageScorePress(), exact, None), (NonCausalAttnPress(), layer, None),
            (CompactorPress(1 - budget / n), exact, None), (CompactorPress(1 - (n // 2) / n), exact, None),
            (ExpectedAttentionPress(), layer, None), (ObservedAttentionPress(), layer, causal_attention(layer)),
            (finch, layer, None), (CriticalKVPress(SnapKVPress(ratio)), layer, None)]
    for press, on, attentions in more:
        with mock.patch.object(NonCausalAttnPress, "non_causal_chunked_attn", staticmethod(chunked)), \
                mock.patch.object(torch, "randn", lambda *shape, dtype, **_: sketch.view(shape).to(dtype)), \
                mock.patch.object(torch, "float32", on.k.dtype):
            scores.append(on.call(press.score, attentions)[0])
        assert scores[-1].shape == (n_kv, n) and scores[-1].isfinite().all(), press
    counts = []
    for base in (SnapKVPress(ratio), CURPress(ratio)):
        layer.call(AdaKVPress(base).compress)
        counts.append(n - torch.bincount(layer.module.masked_key_indices[1], minlength=n_kv))
        assert counts[-1].sum() == n_kv * budget
    cos, sin = layer.module.rotary_emb(layer.hidden, torch.arange(n + 512)[None])
    half = dim // 2
    write(path, f"kvpress-more {n_q} {n_kv} {dim} {width} {n} {question} {budget}",
          [layer.q[0].transpose(0, 1), layer.k[0], layer.v[0], layer.module.o_proj.weight, cos[0, :, :half],
           sin[0, :, :half], sketch, *scores, *counts])


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    with torch.no_grad():
        for name, *shape, n, seed in CASES:
            make(os.path.join(sys.argv[1], name + ".bin"), *shape, n, seed)
        for name, *rest in MORE_CASES:
            make_more(os.path.join(sys.argv[1], name + ".bin"), *rest)


if __name__ == "__main__":
    main()
