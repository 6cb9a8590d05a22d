#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and charts of docs/performance.md from the records in bench/results/*.json: no figure is copied by hand.

    python3 bench/results_table.py            prints the tables
    python3 bench/results_table.py --write    puts them into docs/performance.md, the charts into docs/figures
    python3 bench/results_table.py --check    exit code 1 where those files are not what would be written

Records are those of bench/gpu_bench.py and bench/compare_torch.py; of several with the same machine and problem the
last file by name counts.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from results_chart import chart

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
FIGURES = ROOT / "docs" / "figures"
BEGIN, END = "<!-- written by bench/results_table.py -->", "<!-- end of what it writes -->"
PEAKS = {"vnni_tops": "512-bit VPDPBUSD", "amx_tops": "AMX's TDPBSSD"}  # fields of records
WHAT = {"kernel": "kernel", "call": "whole call"}


def records():
    """(machine, protocol) -> records, and the name of the last file that has some."""
    groups, names = {}, {}
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        for record in json.loads(path.read_text(encoding="utf-8")):
            group = record["machine"], record["protocol"]
            groups.setdefault(group, {})[key_of(record)] = record
            names[group] = path.stem
    return {group: (list(by_key.values()), names[group]) for group, by_key in groups.items()}


def key_of(record):
    names = ("what", "recipe", "batch", "q_heads", "q_len", "kv_len", "head_dim", "causal")
    return tuple(record[name] for name in names)


def rows(header, body):
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for cells in body:
        yield "| " + " | ".join(cells) + " |"


def rate(tops):
    return f"{tops:.0f}" if tops >= 10 else f"{tops:.2f}"


def attention_table(group):
    shapes = sorted({(r["head_dim"], r["q_len"], r["causal"]) for r in group})
    names = []  # (recipe, what), in the order of the records
    for r in group:
        if (r["recipe"], r["what"]) not in names and r["recipe"] != r["baseline"]:
            names.append((r["recipe"], r["what"]))
    found = {(r["head_dim"], r["q_len"], r["causal"], r["recipe"], r["what"]): r for r in group}
    header = ["D", "tokens", "mask", f"T: {group[0]['baseline']}, ms"]
    header += [f"`{recipe}`" + ("" if what == "kernel" else f", {WHAT[what]}") for recipe, what in names]

    def cells(shape):
        dim, tokens, causal = shape
        base = next(r["baseline_ms"] for r in group if (r["head_dim"], r["q_len"], r["causal"]) == shape)
        line = [str(dim), str(tokens), "causal" if causal else "none", f"{base:.3f}"]
        for name in names:
            record = found.get((*shape, *name))
            line.append(f"{record['ratio']:.2f} T ({rate(record['tops'])})" if record else "-")
        return line

    yield from rows(header, map(cells, shapes))


def quantize_table(group):
    header = ["recipe", "B x H x tokens x D", "ms", "GB/s at 13 bytes a (token, channel)", "of a device copy"]
    yield from rows(header, (
        [f"`{r['recipe']}`", f"{r['batch']} x {r['q_heads']} x {r['q_len']} x {r['head_dim']}", f"{r['ms']:.4f}",
         f"{r['gb_per_s']:.0f}", f"{r['ratio']:.2f}"] for r in group))  # fmt: skip


def decode_table(group):
    header = ["recipe", "B x H / Hkv x keys x D", "ms", "GB/s of K and V", "of reading alone"]
    yield from rows(header, (
        [f"`{r['recipe']}`", f"{r['batch']} x {r['q_heads']} / {r['kv_heads']} x {r['kv_len']} x {r['head_dim']}",
         f"{r['ms']:.4f}", f"{r['gb_per_s']:.0f}", f"{r['ratio']:.2f}"] for r in group))  # fmt: skip


def written():
    """What is to be written: the page's part, and each chart by its file's name."""
    lines, charts = [BEGIN, ""], {}
    groups = records()
    if not groups:
        lines += ["No record lies in `bench/results`.", ""]
    for (machine, protocol), (group, name) in groups.items():
        commits = sorted({f"{r['commit']} ({r['date']})" for r in group})
        lines += [f"### {machine}", "", f"{protocol}. Commit {', '.join(commits)}.", ""]
        attention = [r for r in group if r["what"] in WHAT]
        quantize = [r for r in group if r["what"] == "quantize"]
        if attention:
            dates = sorted({r["date"] for r in attention})
            charts[f"{name}.svg"] = chart(attention, machine, dates[-1])
            lines += [f"![Kernels beside {attention[0]['baseline']}](figures/{name}.svg)", ""]
            lines += [*attention_table(attention), ""]
        for key, what in PEAKS.items():
            if peaks := [r[key] for r in attention if r.get(key)]:
                lines += [f"{what} alone, between those calls: {rate(statistics.median(peaks))} (median).", ""]
        if quantize:
            lines += ["Quantization of Q, K and V:", "", *quantize_table(quantize), ""]
        if decode := [r for r in group if r["what"] == "decode"]:
            lines += ["Decode steps, one query:", "", *decode_table(decode), ""]
    return "\n".join([*lines, END]), charts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true")
    choice.add_argument("--check", action="store_true")
    args = parser.parse_args()
    tables, charts = written()
    if not (args.write or args.check):
        print(tables)
        return 0
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN, 1)
    wanted = {PAGE: before + tables + rest.split(END, 1)[1], **{FIGURES / name: svg for name, svg in charts.items()}}
    stale = [path for path in FIGURES.glob("*.svg") if path not in wanted]
    if args.write:
        FIGURES.mkdir(exist_ok=True)
        for path, content in wanted.items():
            path.write_text(content, encoding="utf-8")
        for path in stale:
            path.unlink()
        return 0
    stale += [p for p, content in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != content]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: not up to date: python3 bench/results_table.py --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
