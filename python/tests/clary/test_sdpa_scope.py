# SPDX-License-Identifier: Apache-2.0
"""clary.sdpa: scaled_dot_product_attention replaced for a while."""

import json
import logging

import pytest

torch = pytest.importorskip("torch")

import clary  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchanged_sdpa")
F = torch.nn.functional
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
NEW = hasattr(torch.library, "opcheck")  # PyTorch 2.4 and later


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def close(out, reference, limit=0.025):
    assert out.shape == reference.shape and out.dtype == reference.dtype
    assert (out.double() - reference.double()).abs().sum() <= limit * reference.double().abs().sum()


class Block(torch.nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.qkv, self.heads = torch.nn.Linear(width, 3 * width), heads

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def net(device="cpu"):
    return torch.nn.Sequential(*[Block() for _ in range(3)]).eval().to(device)


def test_everything_that_pytorch_takes_is_honoured(device):
    q, k, v = (torch.randn(2, 4, 70, 64, device=device) for _ in range(3))
    mask = torch.rand(70, 70, device=device) < 0.8
    calls = [{}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": torch.randn(2, 1, 1, 70, device=device)}]
    if hasattr(torch, "compiler"):
        calls.append({"scale": 0.5})
    expected = [F.scaled_dot_product_attention(q, k, v, **options) for options in calls]
    with clary.sdpa(policy="raise") as report:
        for options, reference in zip(calls, expected):
            close(F.scaled_dot_product_attention(q, k, v, **options), reference)
        close(F.scaled_dot_product_attention(q, k, v, mask, 0.0, False), expected[2])  # by position
        close(F.scaled_dot_product_attention(q[0], k[0], v[0]), expected[0][0])
        out = F.scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True)
    close(out, F.scaled_dot_product_attention(q, *[t[:, :2].repeat_interleave(2, 1) for t in (k, v)]))
    assert report.calls == {"auto": len(calls) + 3}


def test_what_is_not_served_runs_exactly_or_raises(caplog):
    q, k, v = (torch.randn(2, 4, 20, 64) for _ in range(3))
    d = [t.double() for t in (q, k, v)]
    with caplog.at_level(logging.WARNING, "clary"), clary.sdpa() as report:
        for _ in range(3):
            torch.manual_seed(1)
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
            assert F.scaled_dot_product_attention(*d).dtype == torch.float64
        with torch.enable_grad():
            grown = q.clone().requires_grad_()
            F.scaled_dot_product_attention(grown, k, v).sum().backward()
        assert grown.grad is not None
        with pytest.raises(RuntimeError):  # PyTorch's own refusals stay
            F.scaled_dot_product_attention(q, k[:, :2], v[:, :2])
    assert len(caplog.records) == 4 and "dropout is on" in caplog.text and "a gradient is required" in caplog.text
    assert report.calls["exact: dropout is on"] == 3
    with clary.sdpa(policy="raise"), pytest.raises(clary.Unsupported, match="dtype is torch.float64"):
        F.scaled_dot_product_attention(*d)


def test_head_dims_without_kernel(caplog):
    q = torch.randn(1, 2, 20, 512)
    expected = F.scaled_dot_product_attention(q, q, q)
    with clary.sdpa("int8_int8") as report:
        close(F.scaled_dot_product_attention(q, q, q), expected, 1e-6)
    assert list(report.calls) and "head_dim" in str(report.calls)
    with clary.sdpa("auto") as report:
        close(F.scaled_dot_product_attention(q, q, q), expected, 1e-5)
    assert report.calls == {"auto": 1}


def test_few_queries_stay_with_pytorch():
    q, k = torch.randn(1, 2, 1, 64), torch.randn(1, 2, 50, 64)
    with clary.sdpa(min_q_len=16) as report:
        F.scaled_dot_product_attention(q, k, k)
        F.scaled_dot_product_attention(k, k, k)
    assert report.calls == {"exact: there are fewer than 16 queries": 1, "auto": 1}


def test_recipes_by_layer(tmp_path, device):
    model, x = net(device), torch.randn(2, 40, 64, device=device)
    expected = model(x)
    recipes = {"default": "int8_int8", "layers": {"1": "exact", "[2-9]": "int8_fp16"}}
    with clary.sdpa(recipes, model=model, policy="raise") as report:
        close(model(x), expected)
        other = torch.randn(1, 1, 4, 16, device=device)
        F.scaled_dot_product_attention(other, other, other)  # outside the model
    assert report.calls == {"int8_int8": 1, "exact": 1, "int8_fp16": 1}
    assert not model[0]._forward_hooks and not model._forward_pre_hooks
    path = tmp_path / "map.json"
    path.write_text(json.dumps(recipes))
    with clary.sdpa(path, model=model) as again:
        model(x)
    assert again.calls == report.calls
    clary.RecipeMap("int8_int8", {"0": "exact"}).save(path)
    assert json.loads(path.read_text()) == {"default": "int8_int8", "layers": {"0": "exact"}}


def test_a_module_that_raises_leaves_nothing_behind(device):
    model = net(device)
    with clary.sdpa(model=model) as report:
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 40, 63, device=device))
        x = torch.randn(1, 2, 9, 16, device=device)
        F.scaled_dot_product_attention(x, x, x)
    if NEW:
        assert report.calls == {}


def test_scopes_nest():
    q = torch.randn(1, 2, 30, 64)
    with clary.sdpa("int8_fp16") as outer, clary.sdpa("int8_int8") as inner:
        F.scaled_dot_product_attention(q, q, q)
        inner.undo()
        F.scaled_dot_product_attention(q, q, q)
    assert (outer.calls, inner.calls) == ({"int8_fp16": 1}, {"int8_int8": 1})


def test_wrong_maps(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for recipe, options, text in [
        ("int8_int9", {}, "unknown name 'int8_int9'"),
        ({"layers": {"0": "exact"}}, {}, "'layers' needs the model"),
        ({"layers": {"9": "exact"}}, {"model": net()}, "no module of the model is called '9'"),
        ({"layers": {"0": "exakt"}}, {"model": net()}, "unknown name 'exakt'"),
        ({"layers": {"0": 8}}, {"model": net()}, "'0' is 8; allowed: a recipe's text, or 'exact'"),
        ({"recipes": {}}, {}, "allowed: a recipe's text, a .json file"),
        (broken, {}, "is no JSON"),
        ("auto", {"policy": "ignore"}, "policy: 'ignore'; allowed: 'exact', 'raise'"),
    ]:
        with pytest.raises(clary.InvalidArgument, match=text):
            with clary.sdpa(recipe, **options):
                pass


def test_models_in_several_threads_keep_their_recipes():
    """And calls outside of a scope's model stay exact."""
    import threading
    import time

    class Model(torch.nn.Module):
        def forward(self, x):
            time.sleep(0.001)  # others run
            return F.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 2, 20, 64)
    models = [Model(), Model()]
    exact = F.scaled_dot_product_attention(x, x, x)
    plain = []

    def work(function):
        with torch.no_grad():
            for _ in range(20):
                plain.append(function(x))

    scopes = [clary.sdpa(recipe, model=model) for recipe, model in zip(("int8_int8", "exact"), models)]
    with scopes[0], scopes[1]:
        for jobs in (models, (models[0], lambda x: (time.sleep(0.001), F.scaled_dot_product_attention(x, x, x))[1])):
            plain.clear()
            threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sum(torch.equal(out, exact) for out in plain) == 20
    assert (scopes[0].calls, scopes[1].calls) == ({"int8_int8": 40}, {"exact": 20})


@pytest.mark.skipif(not NEW, reason="torch.compile as of PyTorch 2.4")
@pytest.mark.parametrize("limited", [False, True])
def test_compiled_inside_a_scope(limited, device):
    torch._dynamo.reset()
    model, x = net(device), torch.randn(2, 40, 64, device=device)
    plain = model(x)
    options = {"recipe": {"layers": {"1": "exact"}}, "model": model} if limited else {}
    with clary.sdpa(**options):
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), expected) and not torch.equal(expected, plain)
    assert torch.equal(compiled(x), plain)
