"""Compares the kept sets of kveval's policies with those of NVIDIA/kvpress on the same real keys, values and queries.
(leverage draws its own sketch, and criticalkv, finch and kvzip want more than a trace holds: the golden files have them.)

Usage: python compare_kvpress.py KVEVAL TRACE.safetensors [BUDGET ...]     (needs torch, safetensors and kvpress 0.5.5)

The trace comes from `kveval trace --queries`. kveval ranks it (--sink 0 --recent 0); kvpress scores the same tensors
with its own code and keeps the top BUDGET by torch.topk, as its compress() does. Every layer and KV head is a row.
A row that differs is explained, or the program ends with 1:
  tie         the tokens that differ have scores within 1e-6 (relative) of kvpress's threshold: rounding decides there
  last token  kvpress's TOVA puts the last token on top whatever attention it gets
kvpress's noncausal attention gives its padding probability; make_kvpress.py's restatement without that fault is used.
"""
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import torch
from kvpress import (CURPress, ExpectedAttentionPress, KeyDiffPress, KnormPress, LagKVPress, NonCausalAttnPress,
                     ObservedAttentionPress, SnapKVPress, StreamingLLMPress, TOVAPress)
from make_kvpress import chunked
from safetensors.torch import load_file

PRESSES = {"knorm": KnormPress, "keydiff": KeyDiffPress, "lagkv": LagKVPress, "snapkv": SnapKVPress, "tova": TOVAPress,
           "streaming_llm": StreamingLLMPress, "cur": CURPress, "h2o": ObservedAttentionPress,
           "noncausal_attn": NonCausalAttnPress, "expected_attention": ExpectedAttentionPress}


def ratio_for(n, budget):
    """A ratio that kvpress turns into exactly this count (StreamingLLM needs one; int() truncates)."""
    ratio = 1 - (budget + 0.5) / n
    assert int(n * (1 - ratio)) == budget
    return ratio


def turned_back(queries, cos, sin):
    """Queries [n][heads][D] before RoPE; tables [n][D/2]."""
    first, second = queries.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat([first * cos + second * sin, second * cos - first * sin], -1) / (cos**2 + sin**2).repeat(1, 1, 2)


def attention(queries, keys):
    """The causal softmax of every query head, [1][heads][n][n]."""
    n, group = keys.shape[1], queries.shape[1] // keys.shape[0]
    dots = queries.transpose(0, 1) @ keys.repeat_interleave(group, 0).transpose(1, 2) / queries.shape[2]**0.5
    return dots.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1)[None]


def score(policy, budget, trace, layer):
    keys, values, queries = (trace[name][layer] for name in ("keys", "values", "queries"))
    n_q, dim, n = queries.shape[1], queries.shape[2], keys.shape[1]
    tables = [trace[name][n:].repeat(1, 2)[None] for name in ("cos", "sin")]
    module = SimpleNamespace(config=SimpleNamespace(num_attention_heads=n_q, num_key_value_heads=keys.shape[0]),
                             head_dim=dim, rotary_emb=lambda x, positions: tables,
                             q_proj=lambda hidden: hidden)  # the queries are projected already, and rotated but for one press
    if policy == "expected_attention":
        queries = turned_back(queries, trace["cos"][:n], trace["sin"][:n])
    still = (torch.ones(1, n, dim), torch.zeros(1, n, dim))
    press = PRESSES[policy]()
    press.compression_ratio = ratio_for(n, budget)
    maps = attention(queries, keys) if policy == "h2o" else None
    with mock.patch.object(NonCausalAttnPress, "non_causal_chunked_attn", staticmethod(chunked)):
        scores = press.score(module, queries.reshape(1, n, -1), keys[None], values[None], maps, {"position_embeddings": still})[0]
    return scores * torch.arange(n, 0, -1) if policy == "h2o" else scores  # theirs is the mean over those who could see it


def explain(policy, ours, theirs, scores, n):
    differ = list(ours ^ theirs)
    threshold = min(scores[j] for j in theirs)
    if all(abs(scores[j] - threshold) <= 1e-6 * max(1.0, abs(threshold)) for j in differ):
        return "tie"
    # the last token took the place of the token that was next
    if policy == "tova" and n - 1 in theirs - ours and len(differ) == 2:
        return "last token"
    return None


def main():
    kveval, path = sys.argv[1:3]
    budgets = [int(b) for b in sys.argv[3:]] or [64, 128, 256, 512]
    trace = load_file(path)
    layers, heads, n, _ = trace["keys"].shape
    failed = 0
    print(f"{layers} layers, {heads} KV heads, {n} tokens")
    for policy in PRESSES:
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
            subprocess.run([kveval, "rank", "--trace", path, "--policy", policy, "--sink", "0", "--recent", "0", "--out",
                            out.name], check=True)
            ranking = load_file(out.name)["ranking"]
        for budget in budgets:
            count = {"equal": 0, "tie": 0, "last token": 0, None: 0}
            for layer in range(layers):
                scores = score(policy, budget, trace, layer)
                top = scores.topk(budget, dim=-1).indices
                for head in range(heads):
                    ours, theirs = set(ranking[layer, head, :budget].tolist()), set(top[head].tolist())
                    why = "equal" if ours == theirs else explain(policy, ours, theirs, scores[head].tolist(), n)
                    count[why] += 1
            print(f"{policy:18s} budget {budget:5d}: {count['equal']:4d} of {layers * heads} rows equal, "
                  f"{count['tie']} differ by a tie, {count['last token']} by kvpress's last token, "
                  f"{count[None]} unexplained")
            failed += count[None]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
