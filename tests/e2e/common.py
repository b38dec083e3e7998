"""What the end-to-end tests share: the binary, a tiny model, inputs, runs, records. Each test is a program
TEST.py KVEVAL SOURCE_DIR whose functions check_* run in order; a failure prints what differed and ends with 1."""
import array
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

KVEVAL, SOURCE = sys.argv[1], sys.argv[2]
MODEL = os.path.join(SOURCE, "tests/golden/models/llama")
TIMES = {"prefill_us", "score_us", "rank_us", "compact_us", "decode_us", "decode_forks", "unix_time", "attempt"}
work = tempfile.mkdtemp(prefix="kveval-e2e-")


def kveval(*args, code=0, env=None):
    done = subprocess.run([KVEVAL, *args], capture_output=True, text=True, env={**os.environ, **(env or {})})
    assert done.returncode == code, f"{args}: exit {done.returncode} instead of {code}\n{done.stdout}\n{done.stderr}"
    return done


def write_inputs():
    rng = random.Random(7)
    words = [rng.choice("abcdefghij") * rng.randint(1, 4) for _ in range(2000)]
    with open(os.path.join(work, "text.txt"), "w") as f:
        f.write(" ".join(words))
    with open(os.path.join(work, "rows.jsonl"), "w") as f:
        for i in range(6):
            text = " ".join(words[40 * i : 40 * i + 12])
            f.write(json.dumps({"context": text, "question": " what?", "answer_prefix": " It is", "answer": ["a"],
                                "task": "vt", "max_new_tokens": 6}) + "\n")


def run(name, *more, task=None, policy="all", budget="4,9,17,40,500", code=0):
    out = os.path.join(work, name)
    task = task or f"text:{work}/text.txt,ruler"
    kveval("eval", "--model", MODEL, "--chat", "plain", "--task", task, "--policy", policy, "--budget", budget,
           "--samples", "3", "--window", "96", "--data", f"{work}/rows.jsonl", "--dtype", "f32", "--sink", "2",
           "--recent", "3", "--out", out, "--quiet", *more, code=code)
    return out


def records(out, drop=TIMES):
    rows = {}
    with open(os.path.join(out, "records.jsonl")) as f:
        for line in f:
            r = json.loads(line)
            key = (r["task"], r["sample_id"], r["policy"], r["budget"])
            assert key not in rows, f"cell twice: {key}"
            rows[key] = {k: v for k, v in r.items() if k not in drop}
    return rows


def same(a, b, what):
    assert a.keys() == b.keys(), f"{what}: cells differ: {sorted(map(str, a.keys() ^ b.keys()))[:5]}"
    for k in a:
        assert a[k] == b[k], f"{what}: {k}: " + str({f: (a[k][f], b[k][f]) for f in a[k] if a[k][f] != b[k][f]})


def load(path):
    """A safetensors file: metadata, and every tensor as (shape, flat array)."""
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    meta = header.pop("__metadata__", {})
    tensors = {}
    for name, t in header.items():
        a = array.array({"F32": "f", "I32": "i"}[t["dtype"]])
        a.frombytes(data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]])
        tensors[name] = (t["shape"], a)
    return meta, tensors


def run_checks(checks, inputs=write_inputs):
    inputs()
    try:
        for name, check in list(checks.items()):
            if name.startswith("check_"):
                start = time.time()
                check()
                print(f"ok {name[6:]} ({time.time() - start:.1f} s)", flush=True)
    finally:
        shutil.rmtree(work)
