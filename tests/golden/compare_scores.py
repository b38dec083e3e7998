#!/usr/bin/env python3
"""Scores of a run's records again, by the benchmarks' own code on the same predictions: RULER's (scripts/eval/synthetic of a
clone of NVIDIA/RULER) and, where the run has gov-report, LongBench's, which is the package rouge (`pip install rouge`).

usage: compare_scores.py RULER_CLONE RUN [RUN ...]     ends with 1 where a score differs by more than RULER rounds (1e-4),
or by more than 1e-6 from the package rouge"""
import importlib.util
import json
import sys


def ruler_functions(clone):
    path = f"{clone}/scripts/eval/synthetic/constants.py"
    spec = importlib.util.spec_from_file_location("constants", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {"ruler_all": module.string_match_all, "ruler_any": module.string_match_part}


def ruler_score(function, r):
    """One sample: RULER's functions give a percentage of a list, rounded to two places; its prediction is stripped first and
    its control characters become line ends."""
    text = "".join("\n" if ord(c) < 32 else c for c in r["prediction"].strip()).strip()
    return function([text], [r["references"]]) / 100


def longbench_score(r):
    from rouge import Rouge

    def one(reference):
        try:
            return Rouge().get_scores([r["prediction"]], [reference], avg=True)["rouge-l"]["f"]
        except (ValueError, RecursionError):
            return 0.0

    return max(map(one, r["references"]))


def main(clone, runs):
    functions, seen, differ = ruler_functions(clone), {}, 0
    for run in runs:
        with open(f"{run}/records.jsonl", encoding="utf-8") as f:
            for r in map(json.loads, f):
                if r["status"] != "ok" or r["prediction"] is None:
                    continue
                if r["metric"] in functions:  # rounded to 1e-4 there
                    off = abs(r["score"] - ruler_score(functions[r["metric"]], r)) > 0.5001e-4
                elif r["metric"] == "rouge_l":
                    off = abs(r["rouge_l_longbench"] - longbench_score(r)) > 1e-6
                else:
                    continue
                seen[r["metric"]] = seen.get(r["metric"], 0) + 1
                if off:
                    differ += 1
                    print("differs:", r["task"], r["sample_id"], r["policy"], r["budget"], r["score"])
    print(f"{seen}: {differ} differ")
    return 1 if differ or not seen else 0


if len(sys.argv) < 3:
    sys.exit(__doc__)
sys.exit(main(sys.argv[1], sys.argv[2:]))
