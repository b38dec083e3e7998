#!/usr/bin/env python3
"""Writes the seeds of the fuzz targets but fuzz_gguf's (seeds_gguf does those) into DIR/TARGET/. Usage: seeds.py DIR"""
import json
import pathlib
import struct
import sys
import zlib

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
MODELS = sorted((GOLDEN / "models").glob("*/config.json"))


ODD = [None, True, -1, 1, 0.5, 1e300, 1e-300, 2**53, 2**24 - 1, "", "x", [], [1], {}, {"a": 1}]
REMOVED = object()


def texts(*parts):
    return b"\0".join(p.encode() if isinstance(p, str) else p for p in parts)


def variants(value):
    """The JSON value with one of its parts at a time replaced by each of ODD, wrapped in a list, or left out. Bytes are
    mutated by libFuzzer; what it rarely finds is another type in the right place."""
    yield from ODD
    yield [value]
    if isinstance(value, dict):
        for key in value:
            for other in [REMOVED, *variants(value[key])]:
                yield {k: (other if k == key else v) for k, v in value.items() if k != key or other is not REMOVED}
    elif isinstance(value, list) and value:
        for other in variants(value[0]):
            yield [other, *value[1:]]


def dumped(value):
    for other in [value, *variants(value)]:
        yield json.dumps(other).encode()


def pack(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors(tensors, meta=None, dtype="F32"):
    """tensors: {name: shape}; the values are 1."""
    one = {"F32": struct.pack("<f", 1), "BF16": b"\x80\x3f", "F16": b"\x00\x3c", "I64": struct.pack("<q", 1)}[dtype]
    header, data = ({"__metadata__": meta} if meta else {}), b""
    for name, shape in tensors.items():
        n = 1
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + n * len(one)]}
        data += n * one
    return pack(header, data)


def safetensors_seeds():
    layer = "model.layers.0."
    tiny = {"model.embed_tokens.weight": [3, 4], "model.norm.weight": [4], layer + "input_layernorm.weight": [4],
            layer + "self_attn.q_proj.weight": [4, 4], layer + "self_attn.k_proj.weight": [2, 4],
            layer + "self_attn.v_proj.weight": [2, 4], layer + "self_attn.o_proj.weight": [4, 4],
            layer + "post_attention_layernorm.weight": [4], layer + "mlp.gate_proj.weight": [3, 4],
            layer + "mlp.up_proj.weight": [3, 4], layer + "mlp.down_proj.weight": [4, 3]}
    yield safetensors({})
    yield safetensors({"x": [2, 3], "scalar": [], "none": [0, 5]}, {"format": "pt", "n": "3"})
    for header in dumped({"__metadata__": {"format": "pt"}, "x": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}):
        yield pack(header, bytes(8))
    yield safetensors({"i": [2]}, dtype="I64")
    yield safetensors({"h": [1, 2, 3]}, dtype="F16")
    yield safetensors(tiny, {"format": "pt"})
    yield safetensors({**tiny, "lm_head.weight": [3, 4], layer + "self_attn.rotary_emb.inv_freq": [1]}, dtype="BF16")


def kvp_seeds():
    meta = {"format": "kveval-kvp-1", "layers": "1", "kv_heads": "1", "head_dim": "16", "width": "16", "position_width": "16",
            "inputs": "kvpos", "position": "analytic", "model": "m", "model_sha256": "0" * 64, "objective": "rl", "recipe": "{}",
            "data_sha256": "1" * 64, "seed": "42", "step": "7"}
    count = 1792  # kve_kvp_count of 16, 16, 16
    yield safetensors({"weights": [1, 1, count]}, meta, "F16")
    yield safetensors({"weights": [1, 1, count]}, {**meta, "inputs": "k"})
    yield safetensors({"weights": [1, 1, count], "table": [1, 5, 16]}, {**meta, "position": "table"})
    for key in meta:
        for value in ("", "0", "-1", "17", "9" * 20, "\u0000x"):
            yield safetensors({"weights": [1, 1, count]}, {**meta, key: value}, "F16")
        yield safetensors({"weights": [1, 1, count]}, {k: v for k, v in meta.items() if k != key}, "F16")


def json_seeds():
    yield b'{"n": -1.5e+3, "s": "\\u00e9\\ud83d\\ude00\\n\\"\\\\", "b": [true, false, null], "o": {"": {}}, "i": 9007199254740993}'
    yield b'[[[[[[]]]]], "\xc3\xa9", 0, 1E9, 0.1]'
    yield b'\xef\xbb\xbf "text" \r\n\t'
    yield b'{"a": 1, "a": 2}'
    yield b'["\\u0000", "\\ud800", 01, 1e999, "\x01"]'


SMALL_BPE = {
    "added_tokens": [{"id": 5, "content": "<|x|>", "special": True, "lstrip": True, "rstrip": True, "normalized": False,
                      "single_word": True}, {"id": 6, "content": "cab", "special": False}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|[^\\s]+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]},
    "post_processor": {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<|x|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
    "model": {"type": "BPE", "unk_token": "b", "ignore_merges": True,
              "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3, "\u0120": 4}, "merges": ["a b"]}}
SMALL_SPM = {
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
    "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True,
              "vocab": {"<unk>": 0, "<0x0A>": 1, "\u2581": 2, "a": 3, "\u2581a": 4}, "merges": [["\u2581", "a"]]}}
PATTERNS = ["", "a*", "\\K", "(?=ab\\K)", "(?(DEFINE)(?<x>a\\K))(?=(?&x))", "\\C", "(a|aa)+$", "(?R)", "(?<=a)b|^", "[^\\P{L}]+\\b"]
CONFIG = {"bos_token": {"content": "<|x|>"}, "eos_token": "b", "add_bos_token": True, "add_eos_token": False,
          "chat_template": [{"name": "default", "template": "<|im_start|>"}]}


def tokenizer_seeds():
    text = " ab<|x|> cab\n 12\u00e9  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"
    for small in (SMALL_BPE, SMALL_SPM):
        yield from (texts(t, text, json.dumps(CONFIG)) for t in dumped(small))
    yield from (texts(json.dumps(SMALL_BPE), text, c) for c in dumped(CONFIG))
    for pattern in PATTERNS:
        steps = [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}] * 2
        steps.append({"type": "ByteLevel", "add_prefix_space": False})
        yield texts(json.dumps({**SMALL_BPE, "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}}), text)
    for path in sorted((GOLDEN / "tokenizer").glob("*.json")):
        yield texts(path.read_bytes(), "It's a caf\u00e9, 42 <|im_start|>\n\n  x", b'{"chat_template": "<|im_start|>"}')


READ = ("model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "eos_token_id",
        "num_hidden_layers", "intermediate_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
        "rope_parameters", "tie_word_embeddings", "bos_token_id", "sliding_window", "partial_rotary_factor")


def config_seeds():
    for path in MODELS:
        yield path.read_bytes()
    for name in ("llama", "phi3"):
        model = json.loads((GOLDEN / "models" / name / "config.json").read_text())
        for rope in ("rope_scaling", "rope_parameters"):
            if rope in model:
                model[rope]["attention_factor"] = 1.1
        yield from dumped({k: v for k, v in model.items() if k in READ})
    base = json.loads(MODELS[0].read_text())
    for rope in ({"type": "linear", "factor": 2}, {"rope_type": "yarn", "factor": 1}, {"rope_type": "default"}):
        yield json.dumps({**base, "rope_scaling": rope}).encode()
    yield json.dumps({**base, "model_type": "mistral", "sliding_window": 64, "layer_types": ["full_attention"] * 2,
                      "eos_token_id": 3}).encode()


def rows_seeds():
    yield (b'{"index": 4, "input": "Some text.\\nWhat is the special magic number for a-b mentioned in the provided text?'
           b' The special magic number for a-b", "outputs": ["12"], "length": 40}\n'
           b'{"index": 5, "input": "T.\\nWhat are all the special magic numbers?", "answer_prefix": " A", "outputs": ["1"]}')
    yield b'{"index": 0, "input": "D.\\nQuestion: who? Answer:", "outputs": ["x", "y"]}\r\n'
    yield from dumped({"index": 0, "input": "D.\nQuestion: who? Answer:", "outputs": ["x"], "length": 3, "task": "qa_1"})
    yield from dumped({"context": "c", "question": "q", "answer_prefix": "p", "answer": ["a"], "task": "vt", "max_new_tokens": 30})
    yield (b'{"context": "c", "question": "q", "answer_prefix": "p", "answer": ["a"], "task": "vt", "max_new_tokens": 30}\n'
           b'{"context": "c", "question": "q", "answer": "a", "task": "qa-1", "index": 3}\n')


def qa_seeds():
    answers = [{"text": "x", "answer_start": 0}, {"text": "x"}, {"text": "y"}]
    yield from dumped({"version": "v2.0", "data": [{"title": "t", "paragraphs": [
        {"context": "one", "qas": [{"question": "q?", "id": "1", "answers": answers, "is_impossible": False}]},
        {"context": "two", "qas": [{"question": "r?", "answers": [], "is_impossible": True}]}]}]})
    yield from dumped([{"question": "q?", "answer": "a", "supporting_facts": [["T", 0]],
                        "context": [["T", ["s one.", " s two."]], ["U", []]]}])
    yield json.dumps({"text": "One sentence. \"Another one!\"\n\nA third? yes"}).encode()
    yield "A plain essay. With (stops.) and\n\nempty lines".encode()


# Rows of the six tasks from files, in each official layout; the words are this project's own.
BOOLQ = {"question": "is it wet", "answer": True, "passage": "Rain is wet."}
ARC = {"id": "q1", "question": "What falls?", "choices": {"text": ["rain", "a hat", "up"], "label": ["A", "B", "C"]},
       "answerKey": "A"}
ARC_OWN = {"id": "q1", "question": {"stem": "What falls?", "choices": [
    {"text": "rain", "label": "1"}, {"text": "a hat", "label": "2"}]}, "answerKey": "2"}
MMLU = {"question": " Two and two? ", "subject": "small_sums", "choices": ["1", "2", "3", "4"], "answer": 3}
HELLASWAG = {"ind": 1, "activity_label": "Rain", "ctx_a": "It [x] is  wet [title].", "ctx_b": "the man", "ctx": "It is",
             "endings": ["runs", "sits [y]", "sings", "sleeps"], "label": "1"}
LONGBENCH = {"input": "", "context": "A long report.", "answers": ["It is long."], "length": 3, "dataset": "gov_report",
             "_id": "r1"}
SUMMARY = {"id": "r2", "report": "A long report.", "summary": "It is long."}
MESSAGE = {"message_id": "m1", "parent_id": None, "text": "How wet is the rain?", "role": "prompter", "lang": "en",
           "deleted": False, "review_result": True, "tree_state": "ready_for_export"}
REPLY = {**MESSAGE, "message_id": "m2", "parent_id": "m1", "text": "It is wet, as all rain is in this place.",
         "role": "assistant", "rank": 0}
TREE = {"message_tree_id": "m1", "tree_state": "ready_for_export",
        "prompt": {**MESSAGE, "replies": [{**REPLY, "replies": []}, {**REPLY, "message_id": "m3", "rank": 1, "replies": None}]}}
CSV_ROWS = ['a,b,c,d,e,A\n', '"a, ""b""\nc",1,2,3,4,D\r\n', 'a,b,c,d,e,B\n"q",1,2,3,4,C', 'a,b,c,d,e\n', '"open,1,2,3,4,A\n']


def tasks_seeds():
    for row in (BOOLQ, ARC, ARC_OWN, MMLU, HELLASWAG, LONGBENCH, SUMMARY, TREE):
        yield from dumped(row)
        yield b"\xef\xbb\xbf" + json.dumps(row).encode() + b"\r\n" + json.dumps(row).encode() + b"\n\n"
    yield from (json.dumps(MESSAGE).encode() + b"\n" + reply for reply in dumped(REPLY))
    yield json.dumps({"question": "is it", "passage": "Rain.", "idx": 1, "label": 0}).encode()
    yield from (row.encode() for row in CSV_ROWS)
    yield b"PAR1"
    yield b"\x1f\x8b"


TEMPLATES = [
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nBe \\'big\\'<|im_end|>\\n' }}{% endif %}{{ bos_token }}",
    "<|im_start|>system<|im_sep|>", "<|start_header_id|>Cutting Knowledge Date{%- set date_string = \"1 Jan 2020\" %}bos_token",
    "<|end|><|assistant|>", "[INST] <<SYS>>bos_token", "{{ bos_token }} [/INST][INST]"]


def chat_seeds():
    for t in TEMPLATES:
        yield texts(t, "<s>", "sBe brief. ", "u Hello ", "aHi", "uBye")
        yield texts(t, "", "uHello")


def record(**more):
    return json.dumps({**RECORD, **more})


RECORD = {"sample_id": "vt-1", "task": "ruler-4k/vt", "policy": "knorm", "budget": 64, "status": "ok", "info": "attention-free",
          "metric": "ruler_all", "score": 50.0, "references": ["a", "b"], "n_context": 4000, "kept_min": 64, "kept_max": 64,
          "kv_bytes": 6400, "reward_heads": [0.5, None], "attempt": 1, "unix_time": 1, "question_in_prefill": False}


def record_lines():
    full = {"policy": "full", "budget": None, "info": "none", "score": 100.0}
    some = [record(sample_id=f"vt-{i}", **p) for i in range(3)
            for p in (full, {}, {"policy": "tova", "score": i, "reward_lost": 0.25, "reward_norm": 1.5})]
    yield some
    yield [record(), record(attempt=2), record(status="failed", reason="why", score=None), record(sample_id="vt-01")]
    yield [record(metric="nll", score=3.5, nll_sum=12.5, n_scored=10, task="text", decode_us=100, decode_forks=2, prefill_us=7,
                  n_generated=3, **p) for p in ({}, {"policy": "full", "budget": None})]


def record_seeds():
    for line in dumped(RECORD):
        yield line + b"\n" + record(policy="full", budget=None).encode() + b"\n"
    for lines in record_lines():
        yield "\n".join(lines).encode() + b"\n"


def segment_seeds():
    yield from record_seeds()
    yield b"".join(b"%08x %s\n" % (zlib.crc32(t), t) for t in (s.encode() for s in next(record_lines())))


SEEDS = {"safetensors": safetensors_seeds, "kvp": kvp_seeds, "json": json_seeds, "tokenizer": tokenizer_seeds, "config": config_seeds,
         "rows": rows_seeds, "qa": qa_seeds, "tasks": tasks_seeds, "chat": chat_seeds, "record": segment_seeds, "report": record_seeds}


def main() -> int:
    for target, seeds in SEEDS.items():
        folder = pathlib.Path(sys.argv[1]) / target
        folder.mkdir(parents=True, exist_ok=True)
        for i, seed in enumerate(seeds()):
            (folder / f"seed{i}").write_bytes(seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
