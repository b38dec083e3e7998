"""End to end: kveval bench kernels: every op of the backend has rows, the floors come from the probes, every format says
the same, and flags that are wrong."""
import csv
import io
import json
import math
import re
import statistics

from common import SOURCE, kveval, run_checks

BASE = ("bench", "kernels", "--backend", "cpu")
TINY = ("--length", "64", "--tokens", "1,3", "--budget", "8", "--min-samples", "1", "--timeout", "0")
FEW = ("--tokens", "3", "--min-samples", "1", "--timeout", "0")
COLUMNS = ["op", "size", "cache", "bytes", "flops", "gb_per_s", "tflop_per_s", "floor_ms", "bound", "share_pct", "calls", "shape",
           "median_ms", "min_ms", "max_ms", "noise_pct", "repeats", "stop", "peak_memory_bytes", "commit", "version", "hardware",
           "backend", "threads", "model", "model_sha256", "dtype"]
TITLES = ["op", "size", "cache", "MB", "MFLOP", "time us", "GB/s", "TFLOP/s", "floor us", "bound", "share %", "noise %", "repeats"]
PROBES = ["probe copy", "probe gemm bf16"]
HOT_ONLY = {"attention_prefill", "future_importance"}


def ops_of_the_backend():
    """The ops of the vtable: its functions that take a struct of parameters."""
    with open(SOURCE + "/kernels/backend.h") as f:
        return set(re.findall(r"\(\*(\w+)\)\(kve_backend \*be, const kve_\w+_params \*p\)", f.read()))


def numbers_agree(rows, dtype):
    copy = next(r for r in rows if r["op"] == "probe copy")
    gemm = [r for r in rows if r["op"] == f"probe gemm {dtype}"][-1]
    bytes_per_ms, flops_per_ms = copy["bytes"] / copy["min_ms"], gemm["flops"] / gemm["min_ms"]
    for r in rows:
        assert r["bytes"] > 0 and r["flops"] >= 0 and r["floor_ms"] > 0 and r["calls"] >= 1, r
        assert math.isclose(r["gb_per_s"], r["bytes"] / r["median_ms"] * 1e-6), r
        assert math.isclose(r["tflop_per_s"], r["flops"] / r["median_ms"] * 1e-9, abs_tol=1e-12), r
        assert math.isclose(r["share_pct"], 100 * r["floor_ms"] / r["median_ms"]), r
        if not r["op"].startswith("probe"):
            by_copy, by_gemm = r["bytes"] / bytes_per_ms, r["flops"] / flops_per_ms
            assert math.isclose(r["floor_ms"], max(by_copy, by_gemm), rel_tol=1e-6), r
            assert r["bound"] == ("gemm" if by_gemm > by_copy else "copy"), r
        assert 0 < r["share_pct"], r
        if r["op"].startswith("probe"):
            assert r["share_pct"] <= 100.001, r
    # data that come from memory do not beat the floor, but for single rows whose probe was disturbed
    cold = [r["share_pct"] for r in rows if r["cache"] == "cold"]
    assert statistics.median(cold) <= 100, sorted(cold)


def check_every_op():
    lines = kveval(*BASE, *TINY, "--format", "jsonl").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [r["op"] for r in rows[:2]] == PROBES, rows[:2]
    missing = ops_of_the_backend() ^ {r["op"] for r in rows[2:]}
    assert not missing, f"ops without a row, or rows without an op: {missing}"
    assert len(ops_of_the_backend()) >= 16
    keys = [(r["op"], r["size"], r["cache"]) for r in rows]
    assert len(set(keys)) == len(keys), "a row twice"
    for op in ops_of_the_backend():
        caches = {r["cache"] for r in rows if r["op"] == op}
        assert caches == ({"hot"} if op in HOT_ONLY else {"cold", "hot"}), (op, caches)
    assert {r["size"].split()[0] for r in rows if r["op"] == "matmul"} == {"qkv", "o", "gate_up", "down", "lm_head"}
    assert {r["size"].split()[0] for r in rows if r["op"] == "row_stat"} == {"knorm", "keydiff", "lagkv"}
    assert {r["size"].split()[0] for r in rows if r["op"] == "kvp_score"} == {"kvp-64", "kvp-256"}
    numbers_agree(rows, "bf16")


def check_formats():
    lines = kveval(*BASE, *FEW, "--op", "rmsnorm", "-o", "jsonl").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    keys = [(r["op"], r["size"], r["cache"]) for r in rows]
    assert [k[0] for k in keys[:2]] == PROBES
    assert keys[2:] == [("rmsnorm", "T=3 E=576", "cold"), ("rmsnorm", "T=3 E=576", "hot")], keys
    for r in rows:
        assert list(r) == COLUMNS + ["samples_ms"] and len(r["samples_ms"]) == r["repeats"] >= 1, r
        assert r["shape"] == "smollm2" and r["model"] is None and r["backend"].startswith("cpu"), r
    table = list(csv.DictReader(io.StringIO(kveval(*BASE, *FEW, "--op", "rmsnorm", "--format", "csv").stdout)))
    assert list(table[0]) == COLUMNS and [(r["op"], r["size"], r["cache"]) for r in table] == keys, table
    text = kveval(*BASE, *FEW, "--op", "rmsnorm").stdout.splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text[2:]]
    assert "shape smollm2" in text[0] and cells[0] == TITLES, text[:3]
    assert [tuple(c[:3]) for c in cells[2:]] == keys and all(len(c) == len(TITLES) for c in cells), cells


def check_f32():
    rows = json.loads(kveval(*BASE, *FEW, "--op", "embed", "--dtype", "f32", "--format", "json").stdout)
    assert [r["op"] for r in rows] == [*PROBES, "probe gemm f32", "embed", "embed"] and all(r["dtype"] == "f32" for r in rows)
    assert rows[3]["bytes"] == 3 * 576 * (4 + 4) + 3 * 4, rows[3]
    numbers_agree(rows, "f32")


def check_other_shapes():
    for shape, op, size in (("qwen2.5_7b", "rope-append", "T=3 Hq=28 Hkv=4 D=128"), ("llama-3.1-8b", "rank", "rows=256 n=64 out=64")):
        out = kveval(*BASE, *FEW, "--shape", shape, "--op", op, "--length", "64", "-o", "jsonl").stdout
        rows = [json.loads(line) for line in out.splitlines()]
        assert [r["size"] for r in rows[2:]] == [size] * 2, rows


def check_bad_flags():
    for flag, value, said in (
        ("--op", "atention_fork", "attention_fork"), ("--op", "rmsnorm,gathr", "gather"), ("--op", "", "empty"),
        ("--shape", "qwen-7b", "qwen2.5-7b"), ("--length", "25%", "ratio"), ("--tokens", "0", "'0'"), ("--budget", "x", "'x'"),
        ("--tokens", ",".join(map(str, range(1, 18))), "16"), ("--format", "xml", "jsonl"), ("--dtype", "f16", "bf16"),
        ("--backend", "gpu", "cuda"), ("--min-samples", "0", "'0'"), ("--timeout", "x", "'x'"), ("--threads", "-1", "'-1'"),
    ):
        done = kveval(*BASE, flag, value, code=2)
        assert flag in done.stderr and said in done.stderr and not done.stdout, (flag, value, done.stderr)
    text = kveval("bench", "kernels", "--help").stdout
    assert all(f in text for f in ("--op", "--shape", "--backend", "--max-noise")), text


run_checks(globals())
