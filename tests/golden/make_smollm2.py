"""Makes tests/golden/smollm2: the reference library's tokens, logits and greedy answers of the default model.

Usage: python make_smollm2.py MODEL.gguf OUT_DIR   (needs torch, transformers, tokenizers, gguf, numpy)
The weights are dequantised to f32 by the reference library and computed in f32. Text format, after lines that begin
with '#' and say how the file was made; for each prompt:
  prompt NAME
  text HEX                  the prompt's UTF-8 bytes
  ids ID ...                its tokens; no BOS, no chat template
  next ID ...               the greedy answer, up to 32 tokens; ends before an end token
  row POSITION LSE ID VALUE ID VALUE ...   the 32 largest logits, largest first, then 64 others drawn by chance;
                            LSE is the logarithm of the sum of the exponentials of the whole row
A prompt whose choices are close (see GAP) is refused: another summation order could choose differently there.
"""
import hashlib
import os
import pathlib
import sys

import gguf
import numpy
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers.utils.logging import disable_progress_bar

TOP, RANDOM, MIDDLE, NEW, GAP = 32, 64, 4, 32, 1e-3
ENDS = ("<|im_end|>", "<|endoftext|>")
LONG = "Pump log, station seven.\n" + "".join(
    f"{1 + i % 28:02d} March, {6 + 5 * i % 13}:{(17 * i) % 60:02d}: pressure {20 + 7 * i % 19}.{3 * i % 10} bar, "
    f"{['no leak', 'a small leak at the valve', 'the filter was changed', 'motor warm'][i * i % 7 % 4]}.\n" for i in range(12))
PROMPTS = {
    "capital": "The capital of France is",
    "harbour": "The harbour was empty when the first boats came back. Nets hung over the rails, and nobody on the quay said a "
               "word. Old Marta counted the masts twice, because one was missing, and then she walked slowly down to",
    "science": "Water expands when it freezes, which is unusual among liquids. The reason is the shape of its molecules:",
    "two_tokens": "Once upon",
    "letter": "Dear Mr. Alvarez,\n\nthank you for your letter of May 3rd. I am sorry to tell you that the bicycle you ordered",
    "python": "def is_prime(n):\n    \"\"\"True if n is a prime number.\"\"\"\n    if n < 2:\n        return False\n    for d in",
    "c": "#include <stdio.h>\n\nint main(void)\n{\n\tint sum = 0;\n\tfor (int i = 1; i <= 10; i++) {\n\t\tsum += i * i;\n\t}\n\tprintf(",
    "sql": "CREATE TABLE books (id INTEGER PRIMARY KEY, title TEXT, year INTEGER);\nSELECT title FROM books WHERE year >",
    "json": "{\"city\": \"Oslo\", \"temperature\": -4.5, \"wind\": {\"speed\": 12, \"direction\": \"NW\"}, \"forecast\": [",
    "html": "<ul>\n  <li>bread</li>\n  <li>butter</li>\n  <li>",
    "shopping": "Things to buy for the weekend:\n1. Milk\n2. Eggs\n3. Flour\n4.",
    "colours": "red, green, blue, yellow, orange,",
    "question": "Question: Why do leaves change their colour in autumn?\nAnswer: Leaves change their colour because",
    "quiz": "Q: How many legs does a spider have?\nA: Eight.\nQ: How many sides does a hexagon have?\nA: Six.\nQ: How many days are "
            "in a week?\nA:",
    "counting": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,",
    "sums": "12 + 7 = 19\n30 + 14 = 44\n25 + 25 = 50\n18 + 21 =",
    "table": "| name  | age | town    |\n|-------|-----|---------|\n| Anna  | 31  | Leeds   |\n| Bilal | 27  | Cardiff |\n|",
    "spaces": "   Chapter  One\n\n\n\t\tIt   was  raining ...   and\u00a0the  road",
    "long": LONG,
    "foreign": "Le café était fermé; 東京は夜の七時。 Der Fluß fließt über Köln \U0001F600\U0001F680. In English, that means",
}


def tokenizer_of(fields: dict) -> Tokenizer:
    """Byte-level BPE over single digits and GPT-2's pattern, from the file's vocabulary."""
    assert fields["tokenizer.ggml.pre"].contents() == "smollm"
    texts, merges = fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.merges"].contents()
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=[tuple(m.split(" ")) for m in merges]))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"].contents()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(texts, types) if kind == 3])
    return tok


def load(path: pathlib.Path) -> transformers.PreTrainedModel:
    disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    torch.set_float32_matmul_precision("highest")
    return model


def clear_choice(name: str, where: str, logits: torch.Tensor) -> None:
    best = logits.topk(2).values
    if not best[0] - best[1] > GAP:
        sys.exit(f"prompt '{name}', {where}: the two best logits are {best.tolist()}; choose another prompt")


def row_line(logits: torch.Tensor, position: int, rng: numpy.random.Generator) -> str:
    top = logits.topk(TOP).indices.tolist()
    others = rng.choice(numpy.setdiff1d(numpy.arange(len(logits)), top), RANDOM, replace=False).tolist()
    pairs = " ".join(f"{i} {logits[i].numpy()!s}" for i in top + others)  # numpy's shortest text that reads back
    return f"row {position} {torch.logsumexp(logits.double(), 0).item()!r} {pairs}"


def answer(model: transformers.PreTrainedModel, name: str, ids: list, ends: list) -> list:
    out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), do_sample=False,
                         max_new_tokens=NEW, eos_token_id=ends, return_dict_in_generate=True, output_logits=True)
    for step, logits in enumerate(out.logits):
        clear_choice(name, f"step {step} of the answer", logits[0])
    new = out.sequences[0, len(ids):].tolist()
    return new[:-1] if new[-1] in ends else new


def main() -> int:
    path, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    model, tok = load(path), tokenizer_of(gguf.GGUFReader(path).fields)
    ends = [tok.token_to_id(t) for t in ENDS]
    rng = numpy.random.default_rng(11)
    lines = [f"# Made by tests/golden/{os.path.basename(__file__)}: f32 weights and arithmetic, eager attention",
             f"# model {path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}",
             f"# transformers {transformers.__version__}, torch {torch.__version__}, gguf dequantisation, "
             f"tokenizers {tokenizers.__version__}, numpy {numpy.__version__}"]
    for name, text in PROMPTS.items():
        ids = tok.encode(text, add_special_tokens=False).ids
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0]
        new = answer(model, name, ids, ends)
        n = len(ids)
        positions = sorted(rng.choice(n - 1, min(MIDDLE, n - 1), replace=False).tolist()) + [n - 1]
        for p in positions:
            clear_choice(name, f"position {p}", logits[p])
        lines += [f"prompt {name}", "text " + text.encode().hex(), " ".join(map(str, ["ids", *ids])), " ".join(map(str, ["next", *new]))]
        lines += [row_line(logits[p], p, rng) for p in positions]
        print(f"{name}: {n} tokens, rows {positions}, {len(new)} new: {tok.decode(new)!r}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / "logits.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
