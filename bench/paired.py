#!/usr/bin/env python3
"""Paired differences of one policy against every other one of a run, with intervals: what a table of means cannot show.

usage: bench/paired.py RUN POLICY [MEASURE]     RUN: a folder of kveval eval; MEASURE: score, reward_lost or nll (per token)

For every other policy and budget: the mean over tasks of the mean difference POLICY - other over the samples that both have,
with a 95 % percentile bootstrap interval that resamples samples inside each task (2,000 resamples, fixed seed). A * marks an
interval without 0. Cells in which nothing was evicted are left out. Prints Markdown."""
import collections
import json
import random
import sys

RESAMPLES = 2000


def value(record, measure):
    if measure == "nll":
        return record["nll_sum"] / record["n_scored"] if record["n_scored"] else None
    return record[measure]


def read(run, measure):
    """{(policy, budget): {task: {sample: value}}} of the last attempt of every cell that evicts, and of full."""
    last = {}
    with open(f"{run}/records.jsonl", encoding="utf-8") as f:
        for r in map(json.loads, f):
            last[r["task"], r["sample_id"], r["policy"], r["budget"]] = r
    cells = collections.defaultdict(lambda: collections.defaultdict(dict))
    for r in last.values():
        if r["status"] != "ok" or value(r, measure) is None:
            continue
        if r["budget"] is None or r["budget"] < r["n_context"]:
            cells[r["policy"], r["budget"]][r["task"]][r["sample_id"]] = value(r, measure)
    return cells


def difference(a, b, rng):
    """mean, low, high over tasks of a - b; n pairs."""
    tasks = [[a[t][s] - b[t][s] for s in sorted(a[t].keys() & b[t].keys())] for t in sorted(a.keys() & b.keys())]
    tasks = [t for t in tasks if t]
    if not tasks:
        return None
    means = sorted(sum(sum(rng.choices(t, k=len(t))) / len(t) for t in tasks) / len(tasks) for _ in range(RESAMPLES))
    mean = sum(sum(t) / len(t) for t in tasks) / len(tasks)
    return mean, means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1], sum(map(len, tasks))


def main(run, policy, measure="score"):
    cells, rng = read(run, measure), random.Random(42)
    budgets = sorted({b for p, b in cells if p == policy and b is not None})
    if not budgets:
        sys.exit(f"{run}: no cell of '{policy}' with a {measure} that evicts; policies: {', '.join(sorted({p for p, _ in cells}))}")
    print(f"{measure}: {policy} minus the policy of the row, mean and 95 % interval\n")
    print("| policy | " + " | ".join(map(str, budgets)) + " |\n| --- |" + " --- |" * len(budgets))
    for other in sorted({p for p, b in cells if p != policy}):
        row = []
        for b in budgets:
            d = difference(cells[policy, b], cells[other, None if (other, None) in cells else b], rng)
            row.append("-" if d is None else f"{d[0]:+.4f} [{d[1]:+.4f}, {d[2]:+.4f}]{'*' if d[1] > 0 or d[2] < 0 else ''}")
        print(f"| {other} | " + " | ".join(row) + " |")


if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
main(*sys.argv[1:])
