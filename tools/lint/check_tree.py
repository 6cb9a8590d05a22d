#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks rules of the source tree that no compiler checks. Prints `file:line: what is wrong`; exit code 1 if any.

Rules, for the files that git tracks:
- the first line (the second after a shebang) names the licence;
- Python, JSON and bash files parse;
- links in Markdown files lead to files and headings that exist;
- no text names a package registry (packages come from wherever a machine is set up to get them) or a path that leads
  out of the tree into a neighbouring `shared` folder;
- text files end with a newline and no line ends in white space.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LICENCE = "SPDX-License-Identifier: Apache-2.0"
LICENSED_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".py", ".sh", ".cmake", ".in", ".map"}
LICENSED_NAMES = {"CMakeLists.txt", "dev", "run", ".clang-format", ".clang-tidy", ".editorconfig", "Doxyfile"}
BINARY_SUFFIXES = {".safetensors", ".npy", ".npz", ".png", ".bin", ".gz"}
RAW_FOLDERS = ("tests/fuzz/corpus/",)  # fuzzing seeds: any bytes
# Written in two parts, so that this file passes its own check.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("crates", "io"), ("debian", "org"),
        ("ubuntu", "com"), ("anaconda", "org"), ("golang", "org"), ("ghcr", "io"), ("docker", "io"),
        ("docker", "com"), ("rubygems", "org"), ("pytorch", "org/whl"),
    )
]  # fmt: skip
FORBIDDEN = re.compile("|".join(map(re.escape, REGISTRIES)) + r"|\.\./[s]hared\b", re.IGNORECASE)
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
FENCE = re.compile(r"^ {0,3}(```|~~~)")


def tracked_files():
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    paths = [ROOT / name for name in listing.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]


def outside_fences(text):
    """(line number, line) of Markdown text that is not in a code block."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            inside = not inside
        elif not inside:
            yield number, re.sub(r"`[^`]*`", "``", line) if "](" not in line else line


def anchors(path):
    """The #names that a Markdown file's headings get."""
    names = set()
    for _, line in outside_fences(path.read_text(encoding="utf-8")):
        if heading := re.match(r"#{1,6}\s+(.*)", line):
            name = re.sub(r"[^\w\- ]", "", heading.group(1).strip().lower()).replace(" ", "-")
            names.add(name)
    return names


def check_licence(path, lines):
    if path.suffix not in LICENSED_SUFFIXES and path.name not in LICENSED_NAMES:
        return
    where = 1 if lines and lines[0].startswith("#!") else 0
    if len(lines) <= where or LICENCE not in lines[where]:
        yield where + 1, f"expected '{LICENCE}' here"


def check_syntax(path, text):
    try:
        if path.suffix == ".py":
            compile(text, str(path), "exec")
        elif path.suffix == ".json":
            json.loads(text)
        elif text.startswith("#!") and "bash" in text.split("\n", 1)[0]:
            result = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
            if result.returncode:
                yield 1, result.stderr.strip()
    except (SyntaxError, ValueError) as error:
        yield getattr(error, "lineno", None) or 1, f"does not parse: {error}"


def check_links(path, text):
    if path.suffix != ".md":
        return
    for number, line in outside_fences(text):
        for target in LINK.findall(line):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            file = (path.parent / name).resolve() if name else path
            if not file.exists():
                yield number, f"link to {target}: no such file"
            elif not file.is_relative_to(ROOT):
                yield number, f"link to {target} leads out of the tree"
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                yield number, f"link to {target}: no such heading"


def check_text(path, text, lines):
    for number, line in enumerate(lines, 1):
        if found := FORBIDDEN.search(line):
            yield number, f"must not name {found.group(0)}"
        if line != line.rstrip():
            yield number, "white space at the end of the line"
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"


def problems(path):
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        yield 1, "is not UTF-8 text; if it is meant to be binary, add its suffix to BINARY_SUFFIXES"
        return
    lines = text.split("\n")[: -1 if text.endswith("\n") else None]
    yield from check_licence(path, lines)
    yield from check_syntax(path, text)
    yield from check_links(path, text)
    yield from check_text(path, text, lines)


def main():
    count = 0
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in BINARY_SUFFIXES or name.startswith(RAW_FOLDERS):
            continue
        for number, what in problems(path):
            count += 1
            print(f"{name}:{number}: {what}")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
