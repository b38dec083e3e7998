#!/usr/bin/env python3
"""One picture of a run for a README or a slide: a suite's score and lost future attention against the budget.

Usage: bench/picture.py DIR SUITE OUT.svg      (after `kveval report DIR`; needs gnuplot)
Dashed: policies that read prefill attention. Grey: the upper bound. Black: the full cache."""
import csv
import os
import subprocess
import sys

COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#332288", "#882255"]
PANELS = [("score", "score (higher is better)"), ("reward_lost", "lost future attention (lower is better)")]


def load(path, suite):
    """{metric: {policy: [(budget or None, mean)]}}, {policy: info}, the title's counts."""
    curves, info, n = {}, {}, 0
    with open(path) as f:
        for r in csv.DictReader(f):
            if r["scope"] != "suite" or r["suite"] != suite or not r["mean"]:
                continue
            budget = int(r["budget"]) if r["budget"] else None
            metric = "score" if r["metric"] in ("ruler_all", "ruler_any") else r["metric"]  # a suite of one kind of task
            curves.setdefault(metric, {}).setdefault(r["policy"], []).append((budget, float(r["mean"])))
            info[r["policy"]] = r["info"]
            n = max(n, int(r["n"]))
    return curves, info, n


def style(policy, info, order):
    if info[policy] == "none":
        return "lc rgb '#1b1f24' lw 2"
    if info[policy] == "future-attention":
        return "lc rgb '#8a9099' lw 2 pt 13 ps 0.8"
    dash = "dt (10,5)" if info[policy] == "prefill-attention" else "dt 1"
    return f"lc rgb '{COLORS[order % len(COLORS)]}' lw 2 pt {[7, 5, 9, 11, 13, 15][order % 6]} ps 0.6 {dash}"


def panel(curves, info, ylabel, with_key):
    budgets = sorted({b for points in curves.values() for b, _ in points if b})
    out = [f"set xtics ({', '.join(map(str, budgets))})", f"set ylabel '{ylabel}'",
           f"set xrange [{budgets[0] / 1.2}:{budgets[-1] * 1.2}]",
           "set key outside right top Left reverse samplen 2.5 noenhanced" if with_key else "unset key"]
    parts, order = [], 0
    for i, (policy, points) in enumerate(curves.items()):
        flat = next((mean for budget, mean in points if budget is None), None)
        look = style(policy, info, order)
        order += info[policy] not in ("none", "future-attention")
        if flat is not None:
            parts.append(f"{flat} title '{policy}' with lines {look}")
            continue
        out.append(f"$d{i} << EOD\n" + "\n".join(f"{b} {m}" for b, m in sorted(points)) + "\nEOD")
        parts.append(f"$d{i} using 1:2 title '{policy}' with linespoints {look}")
    return "\n".join(out) + "\nplot [][0:*] " + ", ".join(parts) + "\n"


def main():
    directory, suite, target = sys.argv[1:4]
    curves, info, n = load(os.path.join(directory, "report", "summary.csv"), suite)
    script = (f"set terminal svg size 1040,360 dynamic font 'sans-serif,12' background '#ffffff'\nset output '{target}'\n"
              f"set encoding utf8\nset multiplot\nset logscale x 2\nset border 3\nset tics nomirror\n"
              f"set grid ytics lc rgb '#e6e9ed'\nset xlabel 'tokens kept per layer and KV head'\n")
    for i, (metric, ylabel) in enumerate(PANELS):
        script += f"set origin {0.42 * i}, 0\nset size {0.42 + 0.16 * i}, 1\n"
        script += panel(curves[metric], info, ylabel, with_key=i == 1)
    subprocess.run(["gnuplot", "-d"], input=script + "unset multiplot\n", text=True, check=True)
    print(f"{target}: {suite}, {n} samples per cell")


main()
