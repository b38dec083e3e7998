"""Makes tests/golden/tokenizer: four small tokenizers trained on the text below, and the reference library's ids.

Usage: python make_tokenizer.py OUT_DIR   (needs the `tokenizers` package)
ids.txt: for each case three lines: "<tokenizer> <specials 0|1>", the text in hex, the ids separated by spaces.
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = """The cache keeps the keys and the values of every token that came before. When it is full, something has to go.
She sold 1,204 tickets in 2023; they'll sell more. It's what we've seen, isn't it? I'd say so, I'm sure you're right.
def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)

for (int i = 0; i < count; ++i) {
\tsum += values[i] * 0.5f; // running total
}
Der Fluß fließt über die Brücke. L'été à la plage, où es-tu? El niño comió piñas. Москва не сразу строилась.
我们在北京吃了很好吃的饺子。 東京は夜の七時。 안녕하세요 세계. مرحبا بالعالم. नमस्ते दुनिया
\U0001F600 \U0001F680 \U0001F469\u200d\U0001F4BB \u2764\ufe0f
{"name": "value", "list": [1, 2, 3], "nested": {"true": false}}
"""
HARD = ["", " ", "  ", "   a", "a   ", "\n", "\n\n", "\n \n", " \n  x", "\r\n\r\n", "\t\tx = 1\n", "a\u00a0b", "a\u3000\u3000b",
        "a\u180eb", "a \u180e b", "a\u2003 \u2028b\u0085c", "it's IT'S It'Ll we'VE 'tis", "1234567890", "3.14159e-10",
        "x1y22z333", "\u0664\u0665\u0666 \u00b2\u00bd \u2163", "____init__", "!!!???...", "a.b,c;d:e", "\u0000x\u0001",
        "e\u0301", "\U0001F469\u200d\U0001F469\u200d\U0001F467", "\U0001F1E9\U0001F1EA", "<|im_start|>user\nHi<|im_end|>\n",
        "<|im_start|><|im_start|>", "<|im_star", "<<|im_end|>>", " <|endoftext|> ", "a<|endoftext|>", "\ufeffbom",
        "\uffff \U0010ffff", "a" * 300, " " * 300, "ab" * 100, "\u4e2d" * 50, "\n" * 70, "'s't'm", "can't  won't\t'll"]


def texts():
    rng = random.Random(7)
    out = list(HARD)
    chunks = CORPUS.split(" ") + [" ", "  ", "\n", "\t", "42", "007", "'s", "\U0001F600", "\u3000", "<|im_end|>", "Zz", "~"]
    while len(out) < 130:
        out.append("".join(rng.choice(["", " ", " "]) + rng.choice(chunks) for _ in range(rng.randint(1, 9))))
    return out


def byte_bpe(pre, normalizer=None):
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    return tok


def spm_bpe():
    tok = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                     decoders.Strip(" ", 1, 0)])
    tok.train_from_iterator(CORPUS.replace("\n", " \n").split(" "), trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)],
        limit_alphabet=90, show_progress=False))
    doc = json.loads(tok.to_str())  # the byte tokens are ordinary entries of the vocabulary, not special ones
    doc["added_tokens"] = doc["added_tokens"][:3]
    tok = Tokenizer.from_str(json.dumps(doc))
    tok.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    return tok


def main(out_dir):
    split = pre_tokenizers.Split(Regex(QWEN), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made = {
        "gpt2": byte_bpe(gpt2),
        "qwen2": byte_bpe(pre_tokenizers.Sequence([split, level])),
        "smollm": byte_bpe(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])),
        "spm": spm_bpe(),
    }
    os.makedirs(out_dir, exist_ok=True)
    with open(os.path.join(out_dir, "ids.txt"), "w", encoding="ascii") as f:
        for name, tok in made.items():
            tok.save(os.path.join(out_dir, name + ".json"), pretty=False)
            for text in texts():
                for specials in (1, 0):
                    tok.encode_special_tokens = not specials
                    if not specials and "<|" not in text:
                        continue
                    ids = tok.encode(text, add_special_tokens=False).ids
                    f.write(f"{name} {specials}\n{text.encode().hex()}\n{' '.join(map(str, ids))}\n")


if __name__ == "__main__":
    main(sys.argv[1])
