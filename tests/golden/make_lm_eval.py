#!/usr/bin/env python3
"""Per-choice log-likelihoods of 50 items of each multiple-choice task as lm-evaluation-harness has them, and their comparison
with the records of a run. Needs `pip install lm-eval` (made with 0.4.13) and a model as a Hugging Face folder; takes minutes on a processor.

usage: make_lm_eval.py make MODEL_DIR DATA_DIR OUT.jsonl     rows of task, sample_id, loglik, acc, acc_norm
       make_lm_eval.py compare OUT.jsonl RECORDS.jsonl       full-cache records of
           kveval eval --model MODEL_DIR --task boolq,arc-challenge,hellaswag --shots 0 --samples 50 --policy full --budget 64
               --dtype f32 --data DATA_DIR --out DIR        and likewise --task mmlu --data DATA_DIR/mmlu/csv

DATA_DIR holds boolq/validation.jsonl, arc_challenge/test.jsonl and hellaswag/validation.jsonl in Hugging Face's fields, and
mmlu/csv/test/high_school_chemistry_test.csv as its authors publish it. The harness's own task definitions are used; only
where their rows come from is changed."""
import csv
import json
import math
import pathlib
import sys
import tempfile

ITEMS = 50
# ours, the harness's task, the file
TASKS = [("boolq", "boolq", "boolq/validation.jsonl"),
         ("arc-challenge", "arc_challenge", "arc_challenge/test.jsonl"),
         ("hellaswag", "hellaswag", "hellaswag/validation.jsonl"),
         ("mmlu/high_school_chemistry", "mmlu_high_school_chemistry", "mmlu/csv/test/high_school_chemistry_test.csv")]


def read_csv(f):
    """MMLU's own rows: question, four choices, letter; as Hugging Face has them."""
    for question, *choices, letter in csv.reader(f):
        yield {"question": question, "choices": choices, "answer": "ABCD".index(letter), "subject": "high_school_chemistry"}


def chosen_rows(path):
    """(row number, row) of the first ITEMS rows."""
    with open(path, encoding="utf-8", newline="") as f:
        rows = list(enumerate(read_csv(f) if path.suffix == ".csv" else map(json.loads, f), 1))
    return rows[:ITEMS]


def local_config(name, rows, folder):
    """The harness's definition of a task, reading these rows."""
    from lm_eval.tasks import TaskManager
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(TaskManager().task_index[name].yaml_path)
    path = pathlib.Path(folder) / f"{name}.jsonl"
    with open(path, "w", encoding="utf-8") as f:
        for _, row in rows:
            if name == "boolq":  # the harness reads SuperGLUE's spelling of the same rows
                row = {"question": row["question"], "passage": row["passage"], "label": int(row["answer"])}
            f.write(json.dumps(row) + "\n")
    config.update(task=name, dataset_path="json", dataset_name=None, dataset_kwargs={"data_files": {"test": str(path)}},
                  training_split=None, validation_split=None, fewshot_split=None, test_split="test", num_fewshot=0)
    for key in ("group", "tag", "task_alias", "group_alias", "fewshot_config"):
        config.pop(key, None)
    return config


def make(model, data, out):
    import lm_eval

    with tempfile.TemporaryDirectory() as folder, open(out, "w", encoding="utf-8") as f:
        rows = {ours: chosen_rows(pathlib.Path(data) / file) for ours, _, file in TASKS}
        configs = [local_config(name, rows[ours], folder) for ours, name, _ in TASKS]
        results = lm_eval.simple_evaluate(model="hf", model_args=f"pretrained={model},dtype=float32", tasks=configs,
                                          device="cpu", batch_size=1, log_samples=True, bootstrap_iters=0)
        for ours, name, _ in TASKS:
            for sample in sorted(results["samples"][name], key=lambda s: s["doc_id"]):
                line, row = rows[ours][sample["doc_id"]]
                f.write(json.dumps({"task": ours, "sample_id": row["id"] if ours == "arc-challenge" else f"line-{line}",
                                    "loglik": [resp[0][0] for resp in sample["resps"]],
                                    "acc": sample["acc"], "acc_norm": sample.get("acc_norm")}) + "\n")


def compare(golden, records):
    with open(records, encoding="utf-8") as f:
        ours = {(r["task"], r["sample_id"]): r for r in map(json.loads, f) if r["policy"] == "full" and r["status"] == "ok"}
    worst, n, other, tasks = 0.0, 0, 0, {}
    with open(golden, encoding="utf-8") as f:
        for row in map(json.loads, f):
            r = ours[row["task"], row["sample_id"]]
            assert len(r["loglik"]) == len(row["loglik"]), row
            for a, b in zip(r["loglik"], row["loglik"]):
                worst = max(worst, abs(a - b) / max(1.0, abs(b)))
                n += 1
            sums = tasks.setdefault(row["task"], [0, 0, 0])
            sums[0] += 1
            sums[1] += r["acc"]
            sums[2] += row["acc"]
            other += r["acc"] != row["acc"] or (row["acc_norm"] is not None and r["acc_norm"] != row["acc_norm"])
    for task, (count, mine, theirs) in tasks.items():
        print(f"{task}: {count} items, accuracy {mine / count:.4f} here and {theirs / count:.4f} there")
    print(f"{n} log-likelihoods, worst difference {worst:.3g} of max(1, |x|); {other} items judged differently")
    return 0 if n and math.isfinite(worst) and worst < 1e-3 and other == 0 else 1


if len(sys.argv) == 5 and sys.argv[1] == "make":
    make(*sys.argv[2:])
elif len(sys.argv) == 4 and sys.argv[1] == "compare":
    sys.exit(compare(*sys.argv[2:]))
else:
    sys.exit(__doc__)
