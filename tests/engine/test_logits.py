"""The command `kveval logits`: its .npy file on a tiny model, and its values on the default model where that is found.
Usage: test_logits.py KVEVAL SOURCE_DIR"""
import array
import ast
import os
import subprocess
import sys
import tempfile

KVEVAL, SOURCE = sys.argv[1], sys.argv[2]
TINY = os.path.join(SOURCE, "tests/golden/models/llama")
TEXT = "the cat and the other man in a boat on the water " * 2
folder = tempfile.TemporaryDirectory(prefix="kveval-logits-")
work = folder.name


def logits(text, *flags, code=0):
    """The rows of the file that the command writes, as lists; None if it was to fail."""
    source, out = os.path.join(work, "text"), os.path.join(work, "out.npy")
    if os.path.exists(out):
        os.remove(out)
    with open(source, "wb") as f:
        f.write(text)
    done = subprocess.run([KVEVAL, "logits", "--prompt-file", source, "--out", out, *flags], capture_output=True, text=True)
    assert done.returncode == code, f"{flags}: exit {done.returncode} instead of {code}\n{done.stderr}"
    if code:
        assert done.stderr and not os.path.exists(out), f"{flags}: a failure without a word, or with a file: {done.stderr}"
        return None
    with open(out, "rb") as f:
        data = f.read()
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    start = 10 + int.from_bytes(data[8:10], "little")
    header = ast.literal_eval(data[10:start].decode("ascii"))
    assert start % 64 == 0 and data[start - 1:start] == b"\n" and header["descr"] == "<f4" and not header["fortran_order"]
    rows, columns = header["shape"]
    values = array.array("f", data[start:])
    assert len(values) == rows * columns, (len(values), header)
    return [values[r * columns:(r + 1) * columns] for r in range(rows)]


def check_tiny():
    text = TEXT.encode()
    tiny = ["--model", TINY]
    whole = logits(text, *tiny)
    assert len(whole) > 64 and len(whole[0]) == 272 and all(x == x for row in whole for x in row)
    assert logits(text, *tiny, "--chunk", "7", "--threads", "1") == whole, "chunks or threads change the file"
    few = logits(text, *tiny, "--last", "3")
    assert len(few) == 3
    top = max(abs(x) for row in whole for x in row)
    off = max(abs(a - b) for r, w in zip(few, whole[-3:]) for a, b in zip(r, w)) / top
    assert off < 1e-5, f"--last 3 is {off} away from the last three of all rows"
    assert len(logits(text, *tiny, "--last", "1000")) == len(whole)
    logits(b"", *tiny, code=2)
    logits(text * 10, *tiny, code=2)  # beyond the context
    logits(b"\xff", *tiny, code=4)
    logits(text, *tiny, "--out", os.path.join(work, "no", "such", "folder.npy"), code=4)
    print(f"tiny model: {len(whole)} rows")


def check_default_model():
    cache = os.environ.get("KVEVAL_CACHE") or os.path.expanduser("~/.cache/kveval")
    if not os.path.exists(os.path.join(cache, "SmolLM2-135M-Instruct.Q4_1.gguf")):
        print("skipped: the default model is not there; bash bench/fetch_model.sh fetches it")
        return
    with open(os.path.join(SOURCE, "tests/golden/smollm2/logits.txt")) as f:
        lines = [line.split() for line in f]
    at = lines.index(["prompt", "harbour"])
    got, worst = logits(bytes.fromhex(lines[at + 1][1])), 0
    assert len(got) == len(lines[at + 2]) - 1
    for line in lines[at + 4:at + 9]:
        assert line[0] == "row"
        pairs = [(int(i), float(v)) for i, v in zip(line[3::2], line[4::2])]
        top = max(abs(v) for _, v in pairs)
        for i, v in pairs:
            off = abs(got[int(line[1])][i] - v) / top
            assert off <= 1e-4, f"position {line[1]}, token {i}: {got[int(line[1])][i]} instead of {v}"
            worst = max(worst, off)
    print(f"default model: {len(got)} rows, worst relative error {worst:.2e}")


check_tiny()
check_default_model()
