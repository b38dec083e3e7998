#!/usr/bin/env python3
"""Writes rouge/pairs.jsonl: 500 pairs of texts with rouge_l and rouge_l_longbench as the packages rouge-score and rouge
give them. Needs `pip install rouge-score rouge`; the same versions give the same file.

usage: make_rouge.py [OUT]"""
import json
import pathlib
import random
import sys

from rouge import Rouge
from rouge_score import rouge_scorer

SPACES = [" ", "  ", "\n", "\t", "\u00a0", "\u2003", "\u3000", "\x1f", "\x85", "\u2028"]
WORDS = ["the", "The", "THE", "a", "of", "report", "Report", "agency", "agencies", "2019", "$1.5", "U.S.", "e.g.", "cost-of",
         "caf\u00e9", "Caf\u00c9", "\u212aelvin", "kelvin", "\u0130stanbul", "i", "stanbul", "na\u00efve", "x\u0307", "\u00df",
         "\u65e5\u672c", "\U0001f600", "it's", "its", "A", "B", "C", "D"]
HOSTILE = ["", " ", ".", "...", ". . .", "\n", "a", "a.", ".a", "A", "word", "word.", "word word word", "1.5", ".5.", "-", "\u2026",
           "\u212a", "\u0130", "\u0130\u0130", "a\u0130b", "a.b.c.d", "a b. a b. a b", "b a. b a", "\u65e5\u672c\u8a9e",
           "\U0001f600 \U0001f600", "  a  b  ", "a\u00a0b", "a\u200bb", "a\x1cb", "_a_b_", "e\u0301", "AB ab Ab aB",
           "x" * 300, "x " * 100, "x. " * 60, "a b " * 50, "b a " * 50]


def text(rng):
    kind = rng.random()
    vocabulary = rng.sample(WORDS, rng.randint(1, 8)) if kind < 0.6 else WORDS
    out = []
    for _ in range(rng.randint(0, rng.choice([3, 12, 40]))):
        out.append(rng.choice(vocabulary))
        if rng.random() < 0.2:
            out.append(rng.choice([".", ". ", "..", ",", "! ", " .", "?"]))
        out.append(rng.choice(SPACES) if rng.random() < 0.2 else " ")
    return "".join(out)


def edited(rng, source):
    words = source.split(" ")
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(len(words) + 1)
        words[at : at + rng.randint(0, 2)] = rng.choices(WORDS, k=rng.randint(0, 2))
    return " ".join(words)


def pairs():
    rng = random.Random(20)
    for i, a in enumerate(HOSTILE):
        yield a, HOSTILE[(i * 7 + 3) % len(HOSTILE)]
        yield a, a
        yield a, text(rng)
        yield text(rng), a
    while True:
        a = text(rng)
        yield a, edited(rng, a) if rng.random() < 0.6 else text(rng)


def longbench(prediction, reference):
    try:
        return Rouge().get_scores([prediction], [reference], avg=True)["rouge-l"]["f"]
    except ValueError:  # no sentence on one side, which LongBench counts as 0
        return 0.0


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "rouge/pairs.jsonl"
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=False)
    made = pairs()
    with open(out, "w") as f:
        for _ in range(500):
            prediction, reference = next(made)
            row = {"prediction": prediction, "reference": reference,
                   "rouge_l": scorer.score(reference, prediction)["rougeL"].fmeasure,
                   "rouge_l_longbench": longbench(prediction, reference)}
            f.write(json.dumps(row) + "\n")


main()
