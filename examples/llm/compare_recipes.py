#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What recipes do to a whole language model: SmolLM2-135M on a text, every layer's attention by each recipe.

Each row is one forward pass inside `clary.sdpa(recipe)`, compared with one of PyTorch's own attention:

    perplexity  of the text, and how much it moved; blunt: single tokens move it more than all the rest
    mean KL     Kullback-Leibler divergence, in nats, of the next-token distribution from that of exact attention
    top-1       share of positions where the likeliest next token is the same
    greedy      new tokens until the greedy text first differs from exact attention's, of those that were asked for

Recipes without a CPU kernel run as their oracle, a slow program (seconds per layer) with the same quantization decisions.

    compare_recipes.py                                     # the recipes that have a CPU kernel, a minute or two
    compare_recipes.py --recipe all --docs docs/llm.md     # everything, and the table into the page
    compare_recipes.py --recipe int8_int8,int8_fp8:sage2 --check
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "capture"))

import torch
import torch.nn.functional as F
from capture_smollm2 import DEFAULT_TEXT, CaptureError, first_tokens, load_model, model_folder, read_text

import clary

PRESETS = ("accurate", "fast", "sage2")
PROMPT = "Software freedom means that"
# What --check asks of the default recipe: mean KL, and its share of SageAttention2's FP8 kernel on Hopper.
OURS, UPSTREAM, LARGEST_KL, LARGEST_SHARE = "int8_int8:accurate", "int8_fp8:sage2", 6e-4, 0.4
BEGIN, END = "<!-- written by examples/llm/compare_recipes.py -->", "<!-- end -->"


@dataclass
class Run:
    """What one way of attention gives."""

    log_probs: torch.Tensor  # fp32 [tokens - 1, vocabulary]: of the next token, at each position
    loss: float  # mean negative log likelihood of the text, in nats
    greedy: list[int]


@dataclass
class Row:
    """One line of the table."""

    recipe: str
    backend: str
    perplexity: float
    moved: float  # relative
    kl: float
    top1: float
    greedy: int


def run(model, token_ids: torch.Tensor, prompt: torch.Tensor, new_tokens: int) -> Run:
    with torch.inference_mode():
        log_probs = model(token_ids).logits[0, :-1].log_softmax(-1)
        loss = F.nll_loss(log_probs, token_ids[0, 1:]).item()
        made = model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new_tokens, do_sample=False
        )
    return Run(log_probs, loss, made[0, prompt.shape[1] :].tolist())


def backend_of(recipe: str) -> str:
    """Where a recipe runs here: "cpu", or else "reference". Raises clary.InvalidArgument for what is no recipe."""
    if clary.explain((1, 1, 64, 64), recipe=recipe, backend="cpu")["kernel"]:
        return "cpu"
    return "reference"


def every_recipe(with_kernel: bool) -> list[str]:
    """Each name with each preset that it has (formats without quantization: one); `with_kernel`: those of the CPU."""
    found = []
    for name, backends in clary.recipes().items():
        if with_kernel and "cpu" not in backends:
            continue
        quantized = name.startswith(("int", "fp4"))
        for preset in PRESETS if quantized else PRESETS[:1]:
            try:
                backend_of(f"{name}:{preset}")
            except clary.InvalidArgument:
                continue
            found.append(f"{name}:{preset}")
    return found


def run_recipe(model, recipe: str, *inputs) -> tuple[Run, str]:
    """The run and its backend. A call that the recipe does not serve is an error."""
    backend = backend_of(recipe)
    with clary.sdpa(recipe, policy="raise", backend=backend) as report:
        found = run(model, *inputs)
    if set(report.calls) != {recipe}:
        raise CaptureError(f"{recipe}: attention ran otherwise: {dict(report.calls)}")
    return found, backend


def compare(recipe: str, backend: str, found: Run, exact: Run) -> Row:
    total = 0.0
    for mine, truth in zip(found.log_probs.split(128), exact.log_probs.split(128)):
        total += F.kl_div(mine.double(), truth.double(), reduction="sum", log_target=True).item()
    equal = [a == b for a, b in zip(found.greedy, exact.greedy)]
    perplexity = torch.tensor([found.loss, exact.loss], dtype=torch.float64).exp()
    return Row(
        recipe,
        backend,
        perplexity[0].item(),
        (perplexity[0] / perplexity[1] - 1).item(),
        total / len(exact.log_probs),
        (found.log_probs.argmax(-1) == exact.log_probs.argmax(-1)).double().mean().item(),
        equal.index(False) if False in equal else len(equal),
    )


def table(exact: Run, rows: list[Row], new_tokens: int) -> str:
    lines = [
        "| attention | run by | perplexity | moved | mean KL | equal top-1 | equal greedy tokens |",
        "|---|---|---|---|---|---|---|",
        f"| exact | PyTorch | {torch.tensor(exact.loss).exp():.3f} | | | | {new_tokens} |",
    ]
    for row in rows:
        by = "CPU kernel" if row.backend == "cpu" else "oracle"
        lines.append(
            f"| `{row.recipe}` | {by} | {row.perplexity:.3f} | {row.moved:+.2%} | {row.kl:.1e} | {row.top1:.3f} "
            f"| {row.greedy} |"
        )
    return "\n".join(lines) + "\n"


def write_into(path: Path, made: str) -> None:
    """Puts the table between the two marks of a page."""
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise CaptureError(f"--docs {path}: has no lines '{BEGIN}' and '{END}'")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{made}{END}{after}", encoding="utf-8")


def holds(rows: list[Row]) -> bool:
    """What --check asks; prints both figures."""
    kl = {row.recipe: row.kl for row in rows}
    if OURS not in kl or UPSTREAM not in kl:
        raise CaptureError(f"--check: needs the recipes {OURS} and {UPSTREAM}")
    share = kl[OURS] / kl[UPSTREAM]
    ok = kl[OURS] <= LARGEST_KL and share <= LARGEST_SHARE
    print(
        f"check: {OURS} mean KL {kl[OURS]:.2e} (at most {LARGEST_KL:.0e}), {share:.2f} of {UPSTREAM}'s (at most "
        f"{LARGEST_SHARE}): {'ok' if ok else 'FAILED'}"
    )
    return ok


def work(args: argparse.Namespace) -> bool:
    if args.recipe in ("all", "kernels"):
        recipes = every_recipe(with_kernel=args.recipe == "kernels")
    else:
        recipes = args.recipe.split(",")
    recipes = [recipe if ":" in recipe or "+" in recipe else f"{recipe}:accurate" for recipe in recipes]
    text = read_text(args.text)
    tokenizer, model = load_model(model_folder())
    inputs = (
        first_tokens(tokenizer, text, args.tokens, args.text),
        tokenizer(args.prompt, return_tensors="pt").input_ids,
        args.new_tokens,
    )
    exact = run(model, *inputs)
    print(f"greedy text of exact attention: {args.prompt + tokenizer.decode(exact.greedy)!r}\n")
    rows = []
    for recipe in recipes:
        found, backend = run_recipe(model, recipe, *inputs)
        rows.append(compare(recipe, backend, found, exact))
        print(f"{recipe}: mean KL {rows[-1].kl:.2e}, top-1 {rows[-1].top1:.3f}", file=sys.stderr, flush=True)
    made = table(exact, rows, args.new_tokens)
    print(made)
    if args.docs:
        write_into(args.docs, made)
    return holds(rows) if args.check else True


def main() -> int:
    """Exit code: 0 ok, 1 --check failed, 2 bad usage or input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--recipe", default="kernels", help="'kernels' (default), 'all', or recipes with commas between"
    )
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help=f"UTF-8 text file (default: {DEFAULT_TEXT})")
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prefix of the text (default: 2048)")
    parser.add_argument("--prompt", default=PROMPT, help=f"begin of the greedy text (default: {PROMPT!r})")
    parser.add_argument("--new-tokens", type=int, default=64, help="length of the greedy text (default: 64)")
    parser.add_argument("--docs", type=Path, help="page to write the table into")
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 unless the default recipe is as close as promised"
    )
    args = parser.parse_args()
    try:
        return 0 if work(args) else 1
    except (CaptureError, clary.Error) as error:
        print(f"compare_recipes: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
