"""Compares kveval with kvpress on torch and with llama.cpp: same machine, weights, token ids and budgets.

Usage: python bench/peers.py KVEVAL MODEL.gguf OUT.json [--length 1024] [--samples 1] [--tasks T,T] [--policies P,P]
           [--budgets B,B] [--kvpress-budgets B,B] [--threads N] [--no-llama] [--no-kvpress]
Needs torch, transformers, gguf, safetensors and kvpress; llama-cpp-python unless --no-llama. Not a part of any test.

1. `kveval trace` makes RULER samples; their text goes into a file of rows without an answer prefix, so that all that
   comes after the cut is the chat template's closing. Every record's prompt_sha256 is checked against the token ids
   that kvpress gets.
2. `kveval eval` runs the rows at --sink 0 --recent 0, in bf16 and in f32. The time is the whole process, loading too.
3. kvpress's own pipeline runs one cell after the other: prefill with the press at the ratio that keeps exactly the
   budget, then greedy decoding. The time is of the cell; the model is loaded before. --kvpress-budgets runs some of
   the budgets only: the time of a whole sweep is then the mean cell times the number of cells.
Every time is given twice: seconds that passed, and processor seconds, which other work on the machine disturbs less
(with --threads 1 and OMP_WAIT_POLICY=passive, so that waiting threads do not count).
4. llama.cpp: prompt and generation speed, of the file as it is (its own kernels for 4-bit weights) and of its BF16 and
   F16 copies. `kveval bench e2e` gives kveval's.
"""
import argparse
import hashlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

MAX_NEW, NEW = 128, 32
ENDS = ("<|im_end|>", "<|endoftext|>")


class Timer:
    """Seconds that passed and processor seconds, of this process and of those it waited for."""

    def __enter__(self):
        self.start, times = time.perf_counter(), os.times()
        self.cpu_start = sum(times[:4])
        return self

    def __exit__(self, *_):
        self.seconds, self.cpu_seconds = time.perf_counter() - self.start, sum(os.times()[:4]) - self.cpu_start


def kveval(args, *words):
    with Timer() as t:
        subprocess.run([args.kveval, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return t


def records(folder):
    with open(folder / "records.jsonl", encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def sha256(context, tail):
    return hashlib.sha256(numpy.array([*context, -1, *tail], dtype="<i4").tobytes()).hexdigest()


def make_rows(args, tokenizer, folder):
    """[{ids, tail, references}] by (task, number), and rows.jsonl."""
    from safetensors.numpy import load_file
    tasks = ",".join(f"ruler-{args.length}/{t}" for t in args.tasks)
    common = ("--model", args.model, "--task", tasks, "--samples", args.samples)
    kveval(args, "trace", *common, "--out", folder / "traces")
    kveval(args, "eval", *common, "--policy", "full", "--budget", 1, "--out", folder / "full", "--quiet")
    closing = tokenizer.encode("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)
    rows = []
    with open(folder / "rows.jsonl", "w", encoding="utf-8") as f:
        for r in records(folder / "full"):
            task = r["task"].split("/")[-1]
            path = folder / "traces" / r["task"] / (r["sample_id"] + ".safetensors")
            ids = load_file(path)["tokens"].tolist()
            # a row wants some question; it is prefilled behind the context, as one text
            text = tokenizer.decode(ids, skip_special_tokens=False).split("<|im_start|>user\n")[-1]
            f.write(json.dumps({"context": text[:-20], "question": text[-20:], "answer_prefix": "", "answer": r["references"],
                                "task": task, "max_new_tokens": MAX_NEW}) + "\n")
            rows.append({"task": task, "ids": ids, "tail": closing, "references": r["references"]})
    return rows


def run_kveval(args, rows, folder):
    """{run: {time, cells: {(sha256, policy, budget): record}}}; bf16 twice, around f32, to show the drift."""
    out = {}
    for name, dtype in (("bf16", "bf16"), ("f32", "f32"), ("bf16 again", "bf16")):
        run = folder / name.replace(" ", "-")
        t = kveval(args, "eval", "--model", args.model, "--task", "ruler", "--data", folder / "rows.jsonl", "--policy",
                   ",".join(args.policies), "--budget", ",".join(map(str, args.budgets)), "--sink", 0, "--recent", 0,
                   "--dtype", dtype, "--threads", args.threads, "--out", run, "--quiet")
        cells = {(r["prompt_sha256"], r["policy"], r["budget"]): r for r in records(run)}
        for row in rows:
            row["sha256"] = sha256(row["ids"], row["tail"])
            assert any(k[0] == row["sha256"] for k in cells), f"{row['task']}: kveval saw other tokens"
        out[name] = {"time": t, "cells": cells}
        print(f"kveval {name}: {len(cells)} cells in {t.seconds:.1f} s, {t.cpu_seconds:.1f} processor s", flush=True)
    return out


def load_torch(args, dtype):
    from transformers import AutoModelForCausalLM
    path = pathlib.Path(args.model)
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype).eval()


def faster_model(args, row):
    """float32 or bfloat16, whichever prefills faster here: (model, name, processor seconds of one prefill of both)."""
    import torch
    torch.set_num_threads(args.threads)
    cost, models = {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).split(".")[-1]
        models[name] = load_torch(args, dtype)
        with Timer() as t, torch.no_grad():
            models[name].model(torch.tensor([row["ids"]]))
        cost[name] = t.cpu_seconds
        print(f"torch {name}: prefill of {len(row['ids'])} tokens {t.seconds:.2f} s, {t.cpu_seconds:.2f} processor s",
              flush=True)
    best = min(cost, key=cost.get)
    return models[best], best, cost


def run_kvpress(args, tokenizer, rows):
    import kvpress
    import torch
    presses = {"knorm": kvpress.KnormPress, "keydiff": kvpress.KeyDiffPress, "lagkv": kvpress.LagKVPress,
               "snapkv": kvpress.SnapKVPress, "tova": kvpress.TOVAPress, "streaming_llm": kvpress.StreamingLLMPress,
               "random": kvpress.RandomPress}
    model, dtype, prefill = faster_model(args, rows[0])
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(t) for t in ENDS]
    pipe = kvpress.KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
    cells = {}
    for row in rows:
        n = len(row["ids"])
        inputs = {"context_ids": torch.tensor([row["ids"]]), "questions_ids": [torch.tensor([row["tail"]])]}
        for policy in args.policies:
            for budget in args.kvpress_budgets or args.budgets:
                ratio = 1 - (budget + 0.5) / n
                assert int(n * (1 - ratio)) == budget
                with Timer() as t, torch.no_grad():
                    answer = pipe._forward(inputs, max_new_tokens=MAX_NEW, press=presses[policy](compression_ratio=ratio))[0]
                score = statistics.mean(ref.lower() in answer.lower() for ref in row["references"])
                cells[row["sha256"], policy, budget] = {"seconds": t.seconds, "cpu_seconds": t.cpu_seconds, "prediction": answer,
                                                       "score": score}
            print(f"kvpress {row['task']} {policy}: {t.seconds:.2f} s a cell, {t.cpu_seconds:.2f} processor s",
                  flush=True)
    return {"dtype": dtype, "prefill_cpu_seconds": prefill, "cells": cells}


def compare(ours, theirs):
    """Scores and answers of the cells that both ran, by policy."""
    out = {}
    for policy in sorted({k[1] for k in theirs}):
        keys = [k for k in theirs if k[1] == policy]
        same = sum(ours[k]["prediction"].strip() == theirs[k]["prediction"].strip() for k in keys)
        diff = [ours[k]["score"] - theirs[k]["score"] for k in keys]
        out[policy] = {"cells": len(keys), "same_answer": same, "kveval_score": statistics.mean(ours[k]["score"] for k in keys),
                       "kvpress_score": statistics.mean(theirs[k]["score"] for k in keys),
                       "mean_abs_difference": statistics.mean(map(abs, diff)), "largest_difference": max(map(abs, diff))}
        print(f"{policy:14s} {same:3d} of {len(keys)} answers equal; score {out[policy]['kveval_score']:.3f} (kveval) "
              f"{out[policy]['kvpress_score']:.3f} (kvpress), mean |difference| {out[policy]['mean_abs_difference']:.3f}")
    return out


def llama_copies(args, folder):
    import llama_cpp
    yield "as it is", args.model
    for name, kind in (("BF16", llama_cpp.LLAMA_FTYPE_MOSTLY_BF16), ("F16", llama_cpp.LLAMA_FTYPE_MOSTLY_F16)):
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = kind, True
        path = str(folder / f"{name}.gguf")
        if llama_cpp.llama_model_quantize(args.model.encode(), path.encode(), params) != 0:
            print(f"llama.cpp could not make {name}")
            continue
        yield name, path


def run_llama(args, folder):
    """Tokens per second, the median of 3: prompts of 512 and 4,096, then NEW generated tokens."""
    import llama_cpp
    rng = numpy.random.default_rng(1)
    out = []
    for name, path in llama_copies(args, folder):
        llm = llama_cpp.Llama(path, n_ctx=8192, n_batch=512, n_ubatch=512, n_threads=args.threads,
                              n_threads_batch=args.threads, verbose=False)
        for n in (512, 4096):
            ids, prompt, generation = rng.integers(0, llm.n_vocab(), n).tolist(), [], []
            for _ in range(3):
                llm.reset()
                start = time.perf_counter()
                llm.eval(ids)
                middle = time.perf_counter()
                for _ in range(NEW):
                    logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), (llm.n_vocab(),))
                    llm.eval([int(logits.argmax())])
                prompt.append(n / (middle - start))
                generation.append(NEW / (time.perf_counter() - middle))
            out.append({"weights": name, "length": n, "prefill_tok_s": statistics.median(prompt),
                        "decode_tok_s": statistics.median(generation), "prefill_samples": prompt,
                        "decode_samples": generation})
            print(f"llama.cpp {name}: prefill {n} {out[-1]['prefill_tok_s']:.0f} tok/s, decode after it "
                  f"{out[-1]['decode_tok_s']:.1f} tok/s", flush=True)
        llm.close()
    return out


def parse():
    words = lambda text: text.split(",")
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("kveval")
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--samples", type=int, default=1)
    p.add_argument("--tasks", type=words, default=["niah_single_1", "niah_single_2"])
    p.add_argument("--policies", type=words, default=["knorm", "keydiff", "lagkv", "snapkv", "tova", "streaming_llm", "random"])
    p.add_argument("--budgets", type=lambda t: [int(b) for b in t.split(",")], default=[64, 128, 256, 384, 512, 768])
    p.add_argument("--kvpress-budgets", type=lambda t: [int(b) for b in t.split(",")], default=None)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--no-llama", action="store_true")
    p.add_argument("--no-kvpress", action="store_true")
    return p.parse_args()


def run_cells(args, folder):
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar
    disable_progress_bar()
    path = pathlib.Path(args.model)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    rows = make_rows(args, tokenizer, folder)
    ours = run_kveval(args, rows, folder)
    theirs = run_kvpress(args, tokenizer, rows)
    cells = theirs["cells"].values()
    tasks = {r["sha256"]: r["task"] for r in rows}
    n_cells = len(ours["bf16"]["cells"])
    sweep = {"seconds": statistics.mean(c["seconds"] for c in cells) * n_cells,
             "cpu_seconds": statistics.mean(c["cpu_seconds"] for c in cells) * n_cells}
    for name, run in ours.items():
        t = run["time"]
        print(f"kvpress {theirs['dtype']}, {n_cells} cells (from {len(cells)}), against kveval {name}: "
              f"{sweep['seconds'] / t.seconds:.1f} times the seconds, {sweep['cpu_seconds'] / t.cpu_seconds:.1f} times the "
              "processor seconds")
    return {"length": args.length, "threads": args.threads, "budgets": args.budgets, "n_tokens": [len(r["ids"]) for r in rows],
            "n_cells": n_cells,
            "kveval": {k: {"seconds": v["time"].seconds, "cpu_seconds": v["time"].cpu_seconds} for k, v in ours.items()},
            "kvpress": {"dtype": theirs["dtype"], "prefill_cpu_seconds": theirs["prefill_cpu_seconds"], "cells_run": len(cells),
                        "sweep": sweep, "median_cell_seconds": statistics.median(c["seconds"] for c in cells),
                        "median_cell_cpu_seconds": statistics.median(c["cpu_seconds"] for c in cells)},
            "scores_f32": compare(ours["f32"]["cells"], theirs["cells"]),
            "cells": [{"task": tasks[k[0]], "policy": k[1], "budget": k[2], "kvpress_seconds": c["seconds"],
                       "kvpress_cpu_seconds": c["cpu_seconds"], "kvpress_score": c["score"],
                       "kveval_score": ours["f32"]["cells"][k]["score"],
                       "kveval_bf16_score": ours["bf16"]["cells"][k]["score"]} for k, c in theirs["cells"].items()]}


def main():
    args = parse()
    result = {}
    with tempfile.TemporaryDirectory() as temp:
        if not args.no_kvpress:
            result.update(run_cells(args, pathlib.Path(temp)))
        if not args.no_llama:
            result["llama_cpp"] = run_llama(args, pathlib.Path(temp))
    with open(args.out, "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
