"""End to end: kveval bench e2e's rows in every format, why a row stopped, and flags that are wrong."""
import csv
import io
import json
import math
import statistics

from common import MODEL, kveval, run_checks, work

BASE = ("bench", "e2e", "--model", MODEL, "--length", "40", "--steps", "3", "--forks", "5", "--dtype", "f32")
SWEEP = ("--task", f"text:{work}/text.txt")
QUICK = ("--min-samples", "2", "--max-noise", "100", "--min-time", "0", "--timeout", "20")
POLICIES = ["random", "streaming_llm", "knorm", "keydiff", "lagkv", "cur", "leverage", "snapkv", "tova", "h2o",
            "noncausal_attn", "compactor", "expected_attention", "criticalkv", "pyramidkv", "adakv"]
KEYS = ([("prefill", 40, 1), ("score random", 40, 1), ("rank", 40, 1), ("compact", 40, 1)] +
        [(f"score {p}", 40, 1) for p in POLICIES[1:]] +
        [("decode", 40, 1), ("decode", 40, 5), ("cell", 40, 1), ("sweep", 40, 48)])
NUMBERS = ("value", "median_ms", "min_ms", "max_ms", "noise_pct", "repeats", "peak_memory_bytes", "threads")


def bench(*more):
    return kveval(*BASE, *SWEEP, *QUICK, *more).stdout


def check_json():
    rows = json.loads(bench("--format", "json"))
    assert [(r["name"], r["length"], r["forks"]) for r in rows] == KEYS, rows
    for r in rows:
        assert all(math.isfinite(r[k]) and r[k] >= (k != "noise_pct") * 1e-9 for k in NUMBERS), r
        times = r["samples_ms"]
        assert len(times) == r["repeats"] >= 2 and r["min_ms"] == min(times) and r["max_ms"] == max(times), r
        assert math.isclose(r["median_ms"], statistics.median(times)), r
        spread = statistics.median(abs(t - r["median_ms"]) for t in times)
        assert math.isclose(r["noise_pct"], 148.26 * spread / r["median_ms"], abs_tol=1e-9), r
        assert r["stop"] == "noise" and r["dtype"] == "f32" and len(r["model_sha256"]) == 64 and r["version"], r
    by = {(r["name"], r["forks"]): r for r in rows}
    for key, work_done in {("prefill", 1): 40, ("decode", 1): 3, ("decode", 5): 15}.items():
        assert math.isclose(by[key]["value"], work_done / by[key]["median_ms"] * 1000), by[key]
    assert math.isclose(by["sweep", 48]["value"], by["sweep", 48]["median_ms"] / by["cell", 1]["median_ms"])
    assert by["sweep", 48]["unit"] == "x cell"


def check_other_formats():
    lines = bench("--format", "jsonl").splitlines()
    assert [(r["name"], r["length"], r["forks"]) for r in map(json.loads, lines)] == KEYS
    table = list(csv.DictReader(io.StringIO(bench("--format", "csv"))))
    assert [(r["name"], int(r["length"]), int(r["forks"])) for r in table] == KEYS
    assert list(table[0]) == [k for k in json.loads(lines[0]) if k != "samples_ms"]
    for r in table:
        assert None not in r and all(math.isfinite(float(r[k])) for k in NUMBERS), r
    text = bench().splitlines()
    assert "llama" in text[0] and text[2].startswith("| name")
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in text[2:]]
    assert len(cells) == 2 + len(KEYS) and all(len(c) == len(cells[0]) for c in cells), cells
    assert [(c[0], int(c[1]), int(c[2])) for c in cells[2:]] == KEYS


def check_stops():
    def first(*more):  # without a task there is no sweep of so short a sample
        done = kveval(*BASE, *more, "--format", "jsonl")
        assert "no sweep" in done.stderr
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert "sweep" not in [r["name"] for r in rows]
        return rows[0]

    r = first("--min-samples", "7", "--max-noise", "100", "--min-time", "0")
    assert (r["stop"], r["repeats"]) == ("noise", 7), r
    r = first("--min-samples", "200", "--timeout", "0")
    assert (r["stop"], r["repeats"]) == ("timeout", 1), r
    r = first("--min-samples", "1", "--max-noise", "100", "--min-time", "0.05", "--timeout", "20")
    assert r["stop"] == "samples" or sum(r["samples_ms"]) > 40, r
    r = first("--min-samples", "200", "--max-noise", "0", "--timeout", "20")
    assert (r["stop"], r["repeats"]) == ("samples", 200), r


def check_bad_flags():
    for flag, values in {"--format": ["xml", ""], "--min-samples": ["0", "201", "x"], "--max-noise": ["2%", "-1", "nan", ""],
                         "--min-time": ["-1", "1s"], "--timeout": ["inf", "x"], "--length": ["0", "25%"], "--forks": ["0", "513"],
                         "--steps": ["0"], "--threads": ["-1"], "--dtype": ["f16"]}.items():
        for value in values:
            done = kveval(*BASE, flag, value, code=2)
            assert flag in done.stderr and f"'{value}'" in done.stderr and not done.stdout, (flag, value, done.stderr)
    assert "--repeat" in kveval(*BASE, "--repeat", "3", code=2).stderr
    for words in ([], ["e3e"], ["e2e", "stray"], ["kernels", "stray"]):
        assert kveval("bench", *words, code=2).stderr
    long = kveval(*BASE, "--length", "128", code=2).stderr
    assert "--length 128" in long and "context is 128" in long, long
    assert "rulr" in kveval(*BASE, *QUICK, "--task", "rulr-4k", code=2).stderr
    kveval(*BASE, "--model", work + "/none.gguf", code=4)
    assert "kernels" in kveval("bench", "--help").stdout
    assert "--max-noise" in kveval("bench", "e2e", "--help").stdout


run_checks(globals())
