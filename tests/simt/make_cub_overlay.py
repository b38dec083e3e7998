#!/usr/bin/env python3
"""Makes a few of the installed CUB headers compile for the host: their inline PTX becomes calls of tests/simt/cub.h. The
copies go into the build folder and are found before the originals; nothing of CUB is kept in the project.

    make_cub_overlay.py <folder that holds cub/> <folder to write>

Every edit must find what it edits: another version of CUB that looks different stops the script, and with it the tests
that need CUB."""
import pathlib
import re
import sys

HEADER = '#include "tests/simt/cub.h"\n'
ASM = re.compile(r"\basm\s*(?:volatile\s*)?\(")

# file -> (what stands in the asm statement, the statement that replaces it)
STATEMENTS = {
    "cub/util_ptx.cuh": [
        ("bfe.u32", "bits = simt::cub::bit_field(static_cast<unsigned>(source), bit_start, num_bits);"),
        ("shfl.sync.up", "word = simt::cub::shuffle_up(word, src_offset, flags, member_mask);"),
        ("shfl.sync.down", "word = simt::cub::shuffle_down(word, src_offset, flags, member_mask);"),
        ("exit;", "simt::cub::no_exit();"),
        ("vote.ballot", "mask = simt::cub::same_bit(label, current_bit);"),
        ("shl.b32", "ret = num_bits < 32 ? val << num_bits : 0;"),
        ("shr.b32", "ret = num_bits < 32 ? val >> num_bits : 0;"),
    ],
    "cub/thread/thread_load.cuh": [("ld.", "retval = *ptr;")],
    "cub/thread/thread_store.cuh": [("st.", "*ptr = val;")],
    "cub/thread/thread_operators.cuh": [("mov.b32", "tmp = a_uint16 | static_cast<unsigned>(b_uint16) << 16;")],
}
# file -> the function whose overloads in PTX are dropped: a template without PTX does the same
OVERLOADS = {
    "cub/warp/specializations/warp_reduce_shfl.cuh": "ReduceStep",
    "cub/warp/specializations/warp_scan_shfl.cuh": "InclusiveScanStep",
}


def closing(text: str, start: int, opening: str, close: str) -> int:
    """The place after the bracket that closes the one at `start`; brackets in string literals don't count."""
    depth, quoted, i = 0, False, start
    while True:
        c = text[i]
        if c == "\\":
            i += 1
        elif c == '"':
            quoted = not quoted
        elif not quoted and c == opening:
            depth += 1
        elif not quoted and c == close:
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1


def replace_statements(name: str, text: str, rules: list) -> str:
    used = set()
    while match := ASM.search(text):
        end = text.index(";", closing(text, match.end() - 1, "(", ")")) + 1
        found = [rule for rule in rules if rule[0] in text[match.start():end]]
        if len(found) != 1:
            sys.exit(f"{name}: this PTX is not known here: {text[match.start():end][:200]}")
        used.add(found[0])
        text = text[:match.start()] + found[0][1] + text[end:]
    missing = [rule[0] for rule in rules if rule not in used]
    if missing:
        sys.exit(f"{name}: no PTX with {missing[0]} is left to replace")
    return text


def drop_overloads(name: str, text: str, function: str) -> str:
    head = re.compile(r"\n  _CCCL_DEVICE _CCCL_FORCEINLINE [\w ]+\s+" + function + r"\(")
    kept, at, dropped = "", 0, 0
    for match in head.finditer(text):
        end = closing(text, text.index("{", closing(text, match.end() - 1, "(", ")")), "{", "}")
        if ASM.search(text[match.start():end]):
            kept, at, dropped = kept + text[at:match.start()], end, dropped + 1
    kept += text[at:]
    if dropped == 0 or ASM.search(kept):
        sys.exit(f"{name}: {dropped} overloads of {function} were dropped, and PTX is {'' if ASM.search(kept) else 'not '}left")
    return kept


def main() -> None:
    source, target = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for name in [*STATEMENTS, *OVERLOADS]:
        if not (source / name).exists():
            sys.exit(f"{name} is not installed")
        text = (source / name).read_text()
        if name in STATEMENTS:
            text = replace_statements(name, text, STATEMENTS[name])
        else:
            text = drop_overloads(name, text, OVERLOADS[name])
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(HEADER + text)


if __name__ == "__main__":
    main()
