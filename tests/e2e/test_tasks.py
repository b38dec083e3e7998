"""End to end: tasks that come as files, on a tiny model whose context is 128 tokens. Records, reports, examples, bad rows,
and the log-likelihoods against `kveval logits`."""
import array
import csv
import json
import math
import os
import re
import shutil

from common import MODEL, kveval, records, run_checks, same, work

LONG = ("--model", MODEL, "--dtype", "f32", "--sink", "1", "--recent", "2", "--quiet")


def put(name, rows):
    path = os.path.join(work, "data", name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        for row in rows:
            f.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
    return path


def arc(i, question, key="B"):
    return {"id": f"q{i}", "question": question, "choices": {"text": ["a cat", "the other man", "rain"], "label": ["A", "B", "C"]},
            "answerKey": key}


def write_tasks():
    put("boolq/dev.jsonl", [{"question": f"is it {i}", "answer": i % 2 == 0, "passage": f"The hat {i} is on the mat."} for i in range(3)])
    put("arc/test.jsonl", [arc(i, f"What is on the mat {i}?") for i in range(3)])
    put("arc/train.jsonl", [arc("s", "Who?", "C")])
    put("swag/val.jsonl", [{"activity_label": "Rain", "ctx_a": "It is wet.", "ctx_b": "a man", "endings": ["a", "bb", "ccc", "d e"],
                            "label": str(i)} for i in range(2)])
    put("mmlu/test.jsonl", [{"question": f"N{i}?", "subject": s, "choices": ["1", "2", "3", "4"], "answer": i % 4}
                            for s, n in (("art", 1), ("law", 3)) for i in range(n)])


def run(name, task, *more, code=0, budget="6,12,500", policy="full,knorm,oracle"):
    out = os.path.join(work, name)
    done = kveval("eval", *LONG, "--task", task, "--policy", policy, "--budget", budget, "--data", f"{work}/data", "--out", out,
                  *more, code=code)
    return out, done


def check_records():
    write_tasks()
    out, _ = run("base", "boolq,arc-challenge,hellaswag", "--shots", "0")
    rows = records(out)
    assert len(rows) == 8 * 7, len(rows)
    for (task, _, policy, budget), r in rows.items():
        assert r["status"] == "ok" and r["shots"] == 0 and r["subject"] is None, r
        assert len(r["loglik"]) == {"boolq": 2, "arc-challenge": 3, "hellaswag": 4}[task]
        assert r["metric"] == ("acc" if task == "boolq" else "acc_norm") and r["score"] == r[r["metric"]]
        best = max(range(len(r["loglik"])), key=lambda c: r["loglik"][c])
        assert r["acc"] == (best == r["gold"]), r
        assert r["question_in_prefill"] == (task == "arc-challenge")
        if budget == 500:
            whole = rows[task, r["sample_id"], "full", None]
            assert r["loglik"] == whole["loglik"] and r["kept_max"] == r["n_context"]
    again, _ = run("base", "boolq,arc-challenge,hellaswag", "--shots", "0")  # resumed: nothing to do
    same(rows, records(again), "resumed")
    again, _ = run("poor", "boolq,arc-challenge,hellaswag", "--shots", "0", "--fork-mib", "1", "--chunk", "64", "--threads", "1")
    same(rows, records(again), "little memory")
    again, _ = run("reward", "boolq,arc-challenge,hellaswag", "--shots", "0", "--reward")
    for k, r in records(again).items():
        assert r["loglik"] == rows[k]["loglik"] and r["reward_lost"] is not None, k


def logits(text):
    with open(os.path.join(work, "prompt"), "w") as f:
        f.write(text)
    path = os.path.join(work, "out.npy")
    kveval("logits", "--model", MODEL, "--dtype", "f32", "--prompt-file", os.path.join(work, "prompt"), "--out", path)
    with open(path, "rb") as f:
        data = f.read()
    start = 10 + int.from_bytes(data[8:10], "little")
    values = array.array("f", data[start:])
    return [values[i : i + 272] for i in range(0, len(values), 272)]


def log_softmax(row, i):
    top = max(row)
    return row[i] - top - math.log(sum(math.exp(x - top) for x in row))


def check_loglik():
    """The full cache's numbers are those of one forward pass over the whole text."""
    out, _ = run("logged", "boolq,arc-challenge,hellaswag", "--shots", "0", "--samples", "1", "--log-samples", policy="full")
    texts = {"boolq": ("The hat 0 is on the mat.\nQuestion: is it 0?\nAnswer:", [" no", " yes"]),
             "arc-challenge": ("Question: What is on the mat 0?\nAnswer:", [" a cat", " the other man", " rain"]),
             "hellaswag": ("Rain: It is wet. A man", [" a", " bb", " ccc", " d e"])}
    n = 0
    for (task, sample, _, _), r in records(out).items():
        with open(os.path.join(out, "samples", task, sample + ".json")) as f:
            logged = json.load(f)
        text, choices = texts[task]
        assert logged["context"] + logged["tail"] == text and logged["chat_template_sha256"] == "", logged
        for ids, choice, got in zip(logged["choice_ids"], choices, r["loglik"]):
            rows = logits(text + choice)
            first = len(logged["context_ids"]) + len(logged["tail_ids"])
            want = sum(log_softmax(rows[first + i - 1], token) for i, token in enumerate(ids))
            assert math.isclose(got, want, rel_tol=1e-4), (task, choice, got, want)
            n += 1
    assert n == 9


def check_shots():
    out, _ = run("shots", "arc-challenge", "--shots", "1", "--samples", "1", "--log-samples", policy="full")
    (_, sample, _, _), r = next(iter(records(out).items()))
    with open(os.path.join(out, "samples", "arc-challenge", sample + ".json")) as f:
        text = json.load(f)["context"]
    assert text == "Question: Who?\nAnswer: rain\n\nQuestion: What is on the mat 0?" and r["shots"] == 1, (text, r)
    _, done = run("shots", "arc-challenge", "--shots", "0", code=2)
    assert "shots" in done.stderr, done.stderr
    _, done = run("none", "arc-challenge", "--shots", "2", code=4)
    assert "1 examples for --shots 2" in done.stderr, done.stderr


def check_generate():
    """Choices that the model writes: chat template, exact match of the first word; never in a folder with the others."""
    roomy = os.path.join(work, "roomy")  # these prompts are longer than the tiny model's context
    shutil.copytree(MODEL, roomy)
    with open(os.path.join(roomy, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(roomy, "config.json"), "w") as f:
        json.dump({**config, "max_position_embeddings": 512}, f)
    flags = ("boolq,arc-challenge,hellaswag,mmlu", "--shots", "0", "--model", roomy)
    out, _ = run("written", *flags, "--answer", "generate", "--log-samples", budget="6,12")
    rows = records(out)
    assert len(rows) == 12 * 5, len(rows)
    for (task, sample, _, _), r in rows.items():
        assert r["status"] == "ok" and r["metric"] == "exact_match" and r["loglik"] is None and r["acc"] is None, r
        assert r["task_version"].endswith("-generate-1") and r["references"][0] in ("yes", "no", "A", "B", "C", "D"), r
        word = re.search(r"(?:[A-Za-z0-9]|[^\x00-\x7f])+", r["prediction"])
        article = word is not None and re.match(r".[ \t]+[A-Za-z0-9\u0080-\uffff]", r["prediction"][word.start():])
        assert r["score"] == (word is not None and not article and word.group(0).lower() == r["references"][0].lower()), r
        assert 0 <= r["n_generated"] <= 8 and r["question_in_prefill"] == task.startswith(("arc", "mmlu")), r
        with open(os.path.join(out, "samples", task, sample + ".json")) as f:
            logged = json.load(f)
        assert logged["context"].startswith("<|im_start|>user\n") and logged["tail"].endswith("assistant\n"), logged
        if task == "boolq":
            assert "Question" not in logged["context"] and "Answer with yes or no." in logged["tail"], logged
        if task == "hellaswag":
            assert "How does it go on?" in logged["tail"], logged
    with open(os.path.join(out, "manifest.json")) as f:
        assert json.load(f)["answer"] == "generate"
    same(rows, records(run("written", *flags, "--answer", "generate", budget="6,12")[0]), "resumed")
    _, done = run("written", *flags, code=2)
    assert "answer = generate, but the command says loglik" in done.stderr, done.stderr
    assert "Score (exact_match)" in kveval("report", out).stdout
    refused = kveval("report", os.path.join(work, "base"), out, code=2)
    assert "answer is loglik in A and generate in B" in refused.stderr, refused.stderr
    _, done = run("odd", "boolq", "--answer", "likely", code=2)
    assert "'likely' is neither 'loglik' nor 'generate'" in done.stderr, done.stderr


def check_report():
    out, _ = run("mmlu", "mmlu", "--shots", "0", budget="6,90", policy="full,knorm")
    text = kveval("report", out).stdout
    assert "mmlu: Score, all samples of 2 subjects" in text and "mmlu/law: Score (acc)" in text, text
    assert "not compressed" in text and "(samples compressed)" in text, text
    with open(os.path.join(out, "report", "summary.csv")) as f:
        rows = list(csv.DictReader(f))
    whole = [r for r in rows if r["scope"] == "suite" and r["policy"] == "full" and r["metric"] == "acc"]
    scores = [r["acc"] for k, r in records(out).items() if k[2] == "full"]
    assert len(whole) == 1 and len(scores) == 4 and math.isclose(float(whole[0]["mean"]), sum(scores) / 4), (whole, scores)
    assert {r["compressed"] for r in rows if r["budget"] == "90"} == {"0"}


def check_bad_rows():
    put("boolq/dev.jsonl", ['{"question": "is it", "answer": true, "passage": "The mat."}', '{"question": "q", "passage": "p"}'])
    _, done = run("bad", "boolq", code=4)
    assert "dev.jsonl:2: field 'answer' is missing" in done.stderr, done.stderr
    out, done = run("bad", "boolq", "--skip-bad")
    assert len({k[1] for k in records(out)}) == 1
    with open(os.path.join(out, "manifest.json")) as f:
        assert json.load(f)["skipped_bad_rows"] == "1"
    put("boolq/dev.jsonl", ['{"question": "is it", "answer": true, "passage": "' + "x" * 300 + '"}'])
    out, done = run("long", "boolq", code=3)
    assert all("dev.jsonl:1: field 'passage'" in r["reason"] for r in records(out).values()), done.stderr


def check_listing():
    names = {row["task"] for row in json.loads(kveval("ls", "tasks", "--json").stdout)}
    assert {"boolq", "arc-challenge", "mmlu", "hellaswag", "gov-report", "oasst2-4k"} <= names, names
    assert "boolq" in kveval("eval", "--help").stdout


run_checks(globals())
