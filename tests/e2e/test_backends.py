"""End to end: the cuda backend's answers against the cpu backend's, on tiny models. The binary has both backends: a GPU's,
or the one of tests/simt. Exit code 77 where no device answers."""
import json
import math
import os
import random
import sys

import common
from common import SOURCE, kveval, load, records, run, run_checks, work

MODELS = ["llama", "qwen2", "qwen3", "phi3"]
NOT_OF_A_TRACE = {"full", "kvp_r", "kvp_r4k", "kvp_s", "finch", "criticalkv", "kvzip"}  # they want a model, its weights or a question
POLICIES = [p["policy"] for p in json.loads(kveval("ls", "policies", "--json").stdout)
            if p["policy"] not in NOT_OF_A_TRACE and ":" not in p["policy"]]
CELLS = "full,random,streaming_llm,knorm,keydiff,lagkv,snapkv,tova,h2o,criticalkv,adakv,oracle"
FLOATS = {"nll_sum", "score", "reward_lost", "reward_norm", "reward_sum", "reward_sum_norm", "reward_heads"}


def use(model):
    common.MODEL = os.path.join(SOURCE, "tests/golden/models", model)


def close(a, b, tolerance):
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b))
    if not isinstance(a, float) or not isinstance(b, float):
        return a == b
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance * max(1, abs(a))


def compare(cpu, cuda, tolerance, what):
    """Every field of every record; the floats of FLOATS within a tolerance. Returns the worst difference of nll_sum."""
    a, b, worst = records(cpu), records(cuda), 0.0
    assert a and a.keys() == b.keys(), f"{what}: cells differ"
    for key in a:
        assert a[key]["status"] == "ok", f"{what}: {key}: {a[key]}"
        for field in a[key]:
            x, y = a[key][field], b[key][field]
            good = close(x, y, tolerance) if field in FLOATS else x == y
            assert good, f"{what}: {key}: {field}: cpu {x}, cuda {y}"
        if a[key]["nll_sum"] is not None:
            worst = max(worst, abs(a[key]["nll_sum"] - b[key]["nll_sum"]) / abs(a[key]["nll_sum"]))
    return len(a), worst


def check_f32():
    """Kept counts, tokens and text are the same; what is a sum of floats agrees to 1e-4."""
    for model in MODELS:
        use(model)
        both = [run(f"{model}-{be}", "--reward", "--window", "56", "--backend", be, policy=CELLS, budget="4,9,17,500") for be in ("cpu", "cuda")]
        n, worst = compare(*both, 1e-4, model)
        print(f"   {model}: {n} cells, log-likelihoods within {worst:.1e}")


def check_bf16():
    """Tokens may differ where rounding decides; log-likelihoods of given tokens stay close."""
    use("llama")
    both = [run(f"bf16-{be}", "--backend", be, "--window", "56", "--dtype", "bf16", task=f"text:{work}/text.txt", policy="full,random",
                budget="9,17") for be in ("cpu", "cuda")]
    n, worst = compare(*both, 2e-2, "bf16")
    print(f"   {n} cells, log-likelihoods within {worst:.1e}")


def trace(model, backend):
    use(model)
    out = os.path.join(work, f"trace-{model}-{backend}")
    kveval("trace", "--model", common.MODEL, "--chat", "plain", "--dtype", "f32", "--task", f"text:{work}/text.txt",
           "--samples", "1", "--window", "56", "--queries", "--backend", backend, "--out", out)
    return sorted(os.path.join(d, f) for d, _, files in os.walk(out) for f in files)[0]


def ranking(path, policy, backend):
    out = f"{path}.{policy}.{backend}"
    kveval("rank", "--trace", path, "--policy", policy, "--backend", backend, "--out", out, "--sink", "2", "--recent", "3",
           "--budget", "9")
    tensors = load(out)[1]
    return (tensors["ranking"][1], tensors["lengths"][1]), tensors["scores"][1]


def check_kept_sets():
    """The whole ranking, hence the kept set at every budget: of one trace on both backends, and of each backend's own."""
    n = 0
    for model in MODELS:
        ours, theirs = trace(model, "cpu"), trace(model, "cuda")
        for policy in POLICIES:
            order, scores = ranking(ours, policy, "cpu")
            for path in (ours, theirs):
                other, other_scores = ranking(path, policy, "cuda")
                assert order == other, f"{model}: {policy}: rankings differ"
                assert all(close(a, b, 1e-4) or a == b for a, b in zip(scores, other_scores)), f"{model}: {policy}"
                n += 1
    print(f"   {n} rankings of {len(POLICIES)} policies")


def check_logits():
    with open(work + "/prompt.txt", "w") as f:
        f.write("abc aabb ccdd " * 3)
    for model in MODELS:
        use(model)
        rows = []
        for backend in ("cpu", "cuda"):
            out = f"{work}/{model}-{backend}.npy"
            kveval("logits", "--model", common.MODEL, "--prompt-file", work + "/prompt.txt", "--backend", backend,
                   "--chunk", "13", "--out", out)
            with open(out, "rb") as f:
                data = f.read()
            start = 10 + int.from_bytes(data[8:10], "little")
            values = common.array.array("f")
            values.frombytes(data[start:])
            rows.append(values)
        top = max(abs(x) for x in rows[0])
        worst = max(abs(a - b) for a, b in zip(*rows)) / top
        assert len(rows[0]) == len(rows[1]) and worst < 1e-4, f"{model}: {worst}"
        print(f"   {model}: {worst:.1e} of the largest logit")


def check_no_mixing():
    """One folder holds the results of one backend."""
    use("llama")
    out = run("mixed", "--backend", "cpu", policy="knorm", budget="17")
    said = kveval("eval", "--model", common.MODEL, "--chat", "plain", "--task", f"text:{work}/text.txt,ruler", "--policy",
                  "knorm", "--budget", "17", "--samples", "3", "--window", "96", "--data", f"{work}/rows.jsonl",
                  "--dtype", "f32", "--sink", "2", "--recent", "3", "--out", out, "--quiet", "--backend", "cuda", code=2)
    assert "backend = cpu" in said.stderr, said.stderr


def write_inputs():
    """Texts without repeats: keys of the same token have the same norm up to rounding, and rounding is each backend's
    own, so repeats would be ties that either may break its way."""
    symbols = [chr(c) for c in range(33, 127)]
    rng = random.Random(7)
    with open(os.path.join(work, "text.txt"), "w") as f:
        f.write("".join(rng.sample(symbols, len(symbols))) + " \n\t")
    with open(os.path.join(work, "rows.jsonl"), "w") as f:
        for _ in range(3):
            f.write(json.dumps({"context": "".join(rng.sample(symbols, 30)), "question": " what?", "answer_prefix": " It is",
                                "answer": ["a"], "task": "vt", "max_new_tokens": 6}) + "\n")


devices = {d["backend"]: d["device"] for d in json.loads(kveval("ls", "devices", "--json").stdout)}
if not devices["cuda"].startswith("cuda, "):
    print(f"skipped: {devices['cuda']}")
    sys.exit(77)
print(f"   {devices['cpu']} against {devices['cuda']}")
run_checks(globals(), write_inputs)
