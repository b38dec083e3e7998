#!/usr/bin/env python3
"""Checks the include directions of the layers (README, "How the code is laid out"): a file may include its own layer and those
listed below for it. Prints every offence and exits 1 if there is one."""
import pathlib
import re
import sys

ALLOWED = {
    "host/base": set(),
    "host/text": {"host/base"},
    "kernels": {"host/base"},
    "host/model": {"host/base", "host/text", "kernels", "host"},
    "host/engine": {"host/base", "host/text", "host/model", "kernels", "host"},
    "policies": {"host/base", "host/model", "host/engine", "kernels", "host"},
    "datasets": {"host/base"},
    "eval": {"host/base", "host/text", "host/model", "host/engine", "kernels", "policies", "datasets", "host"},
    "host/cli": None,  # the top floor may include everything
    "host": set(),     # shape.h
}


def layer(path: str) -> str:
    for name in sorted(ALLOWED, key=len, reverse=True):
        if path.startswith(name + "/"):
            return name
    return ""


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = seen = 0
    for top in ("host", "kernels", "policies", "datasets", "eval"):
        for file in sorted((root / top).rglob("*.[ch]")):
            rel = file.relative_to(root).as_posix()
            own, allowed = layer(rel), ALLOWED[layer(rel)]
            seen += 1
            for number, line in enumerate(file.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
                if not match:
                    continue
                target = layer(match.group(1))
                if not target:
                    print(f'{rel}:{number}: "{match.group(1)}" is not a path from the root; write the include as layer/file.h')
                    bad += 1
                elif allowed is not None and target != own and target not in allowed:
                    print(f"{rel}:{number}: {own} may not include {target} ({match.group(1)})")
                    bad += 1
    print(f"include directions: {seen} files, {bad} offences")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
