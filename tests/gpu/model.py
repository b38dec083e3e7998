"""A real model on the cuda backend against the cpu backend, in f32. Usage: model.py KVEVAL SOURCE_DIR MODEL [BACKEND=cuda].
Of the full cache the answers are the same and the log-likelihoods close. Where a policy ranks, two sums in another order may
swap two tokens that are nearly level at the edge of a budget, and a swapped token may change an answer: most cells agree."""
import os
import sys

sys.path.insert(0, os.path.join(sys.argv[2], "tests/e2e"))
from common import SOURCE, kveval, records, run_checks, work  # noqa: E402

MODEL = sys.argv[3]
BACKEND = sys.argv[4] if len(sys.argv) > 4 else "cuda"
FULL_NLL, NLL, LOST, AGREE = 1e-3, 2e-2, 1e-2, 0.9


def evaluate(backend):
    out = os.path.join(work, backend)
    kveval("eval", "--model", MODEL, "--task", f"ruler-512/niah_single_1,text:{SOURCE}/README.md", "--samples", "2",
           "--window", "512", "--policy", "full,random,knorm,keydiff,lagkv,snapkv,tova", "--budget", "64,256", "--reward",
           "--dtype", "f32", "--backend", backend, "--quiet", "--out", out)
    return records(out)


def check_cpu_against_device():
    a, b = evaluate("cpu"), evaluate(BACKEND)
    assert a and a.keys() == b.keys(), "cells differ"
    agree = worst_full = worst = lost = 0.0
    for key, x in a.items():
        y = b[key]
        assert x["status"] == y["status"] == "ok", f"{key}: {x['reason']} {y['reason']}"
        for field in ("n_context", "kept_min", "kept_max", "prompt_sha256", "kv_bytes"):
            assert x[field] == y[field], f"{key}: {field}: {x[field]} and {y[field]}"
        full = key[2] == "full"
        agree += x["prediction"] == y["prediction"]
        assert not full or x["prediction"] == y["prediction"], f"{key}: '{x['prediction']}' and '{y['prediction']}'"
        if x["nll_sum"] is not None:
            apart = abs(x["nll_sum"] - y["nll_sum"]) / x["nll_sum"]
            worst, worst_full = max(worst, apart), max(worst_full, apart if full else 0)
        if x["reward_lost"] is not None:
            lost = max(lost, abs(x["reward_lost"] - y["reward_lost"]))
    said = (f"{len(a)} cells: {agree / len(a):.1%} of the answers are the same; log-likelihoods within {worst_full:.1e} of "
            f"the full cache, {worst:.1e} of all; lost attention within {lost:.1e}")
    assert worst_full <= FULL_NLL and worst <= NLL and lost <= LOST and agree >= AGREE * len(a), said
    print("   " + said)


run_checks(globals())
