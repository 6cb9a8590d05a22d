# SPDX-License-Identifier: Apache-2.0
"""clary.patch on real models of transformers and diffusers, small and with random weights."""

import pytest

torch = pytest.importorskip("torch")

import clary  # noqa: E402

pytestmark = pytest.mark.usefixtures("unchanged_sdpa")


def close(out, reference, limit=0.05):
    assert (out - reference).abs().mean() <= limit * reference.abs().mean()


def llama(layers=3):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=layers,
        vocab_size=500,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
    )
    return transformers.LlamaForCausalLM(config).eval()


def test_a_language_model_with_padding_and_cache():
    model = llama()
    ids = torch.randint(0, 500, (2, 40))
    padding = torch.ones(2, 40, dtype=torch.long)
    padding[0, :13] = 0  # left padding, as for generation
    plain, padded = model(ids).logits, model(ids, attention_mask=padding).logits
    text = model.generate(ids, attention_mask=padding, max_new_tokens=8, do_sample=False)
    patched = clary.patch(model, policy="raise")
    assert model.config._attn_implementation == "clary"
    close(model(ids).logits, plain)
    close(model(ids, attention_mask=padding).logits[padding.bool()], padded[padding.bool()])
    assert patched.calls == {"auto": 6}
    again = model.generate(ids, attention_mask=padding, max_new_tokens=8, do_sample=False)
    assert again.shape == text.shape and (again == text).float().mean() > 0.9
    patched.undo()
    assert model.config._attn_implementation == "sdpa" and torch.equal(model(ids).logits, plain)


def test_recipes_by_layer_of_a_language_model():
    model = llama()
    ids = torch.randint(0, 500, (1, 40))
    plain = model(ids).logits
    with clary.patch(model, {"default": "exact"}) as patched:
        assert torch.equal(model(ids).logits, plain)
    assert patched.calls == {"exact": 3}
    with clary.patch(
        model, {"default": "int8_int8", "layers": {"model.layers.0": "exact", "*.1.self_attn": "int8_fp16"}}
    ) as p:
        close(model(ids).logits, plain)
    assert p.calls == {"exact": 1, "int8_fp16": 1, "int8_int8": 1}
    with pytest.raises(clary.InvalidArgument, match="no module of the model is called 'layers.0'"):
        clary.patch(model, {"layers": {"layers.0": "exact"}})


def test_training_and_dropout_go_the_exact_way():
    model = llama(1).train()
    ids = torch.randint(0, 500, (1, 20))
    with clary.patch(model) as patched, torch.enable_grad():
        model(ids, labels=ids).loss.backward()
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None
    assert patched.calls == {"exact: a gradient is required": 1}


def test_capped_scores_go_an_exact_way_of_their_own():
    """Gemma 2's, which PyTorch's own attention does not have either."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Gemma2Config(hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=100,
                                       num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=8,
                                       query_pre_attn_scalar=1, attn_logit_softcapping=2.0, initializer_range=0.2,
                                       attn_implementation="eager")  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).eval()
    ids, padding = torch.randint(5, 90, (2, 40)), torch.ones(2, 40, dtype=torch.long)
    padding[0, :9] = 0
    for options in ({}, {"attention_mask": padding}):
        before = model(ids, **options).logits
        with clary.patch(model) as patched:
            out = model(ids, **options).logits
        seen = padding.bool() if options else torch.ones_like(padding).bool()
        assert torch.allclose(out[seen], before[seen], atol=1e-4)
        assert patched.calls == {"exact: scores are capped (softcap)": 2}
    with clary.patch(model, policy="raise"), pytest.raises(clary.Unsupported, match="capped"):
        model(ids)


def test_models_that_are_not_entered_by_forward():
    diffusers = pytest.importorskip("diffusers")
    vae = diffusers.AutoencoderKL(block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
                                  up_block_types=("UpDecoderBlock2D",) * 2, norm_num_groups=8).eval()  # fmt: skip
    image = torch.randn(1, 3, 32, 32)
    for call in (lambda: vae.encode(image).latent_dist.mean, lambda: vae(image).sample):
        before = call()
        with clary.patch(vae, "int8_int8") as patched:
            out = call()
        assert patched.calls["int8_int8"] >= 1
        close(out, before)
    with clary.patch(vae, {"layers": {"encoder.mid_block": "exact"}}) as patched:
        vae(image)
    assert patched.calls == {"exact": 1, "auto": 1}


def test_one_patch_at_a_time():
    model = llama(1)
    with clary.patch(model):
        with pytest.raises(clary.InvalidArgument, match="model: is patched already; allowed: after undo"):
            clary.patch(model, "int8_fp16")
        model(torch.randint(0, 500, (1, 9)))
    clary.patch(model).undo()


def test_attention_sinks_of_gpt_oss():
    transformers = pytest.importorskip("transformers")
    config = transformers.GptOssConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, vocab_size=300,
                                       num_attention_heads=4, num_key_value_heads=2, head_dim=32, num_local_experts=2,
                                       num_experts_per_tok=1, sliding_window=16, layer_types=None)  # fmt: skip
    model = transformers.GptOssForCausalLM(config).eval()
    model.set_attn_implementation("eager")
    for layer in model.model.layers:
        layer.self_attn.sinks.data.normal_(2.0)
    ids = torch.randint(0, 300, (1, 40))
    plain = model(ids).logits
    with clary.patch(model, policy="raise") as patched:
        close(model(ids).logits, plain)
    assert patched.calls == {"auto": 2}


def test_compiled_language_model():
    if not hasattr(torch.library, "opcheck"):
        pytest.skip("torch.compile as of PyTorch 2.4")
    torch._dynamo.reset()
    model = llama(2)
    ids = torch.randint(0, 500, (1, 40))
    with clary.patch(model):
        expected = model(ids, use_cache=False).logits
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(ids, use_cache=False).logits, expected)


@pytest.mark.parametrize("backend", [None, "native"])
def test_a_diffusion_transformer(backend):
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.FluxTransformer2DModel(in_channels=8, num_layers=1, num_single_layers=2, attention_head_dim=16,
                                             num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16,
                                             axes_dims_rope=(4, 4, 8)).eval()  # fmt: skip
    if backend:
        model.set_attention_backend(backend)
    inputs = dict(hidden_states=torch.randn(1, 48, 8), encoder_hidden_states=torch.randn(1, 20, 32),
                  pooled_projections=torch.randn(1, 16), timestep=torch.tensor([0.5]), img_ids=torch.randn(48, 3),
                  txt_ids=torch.zeros(20, 3), guidance=None)  # fmt: skip
    plain = model(**inputs).sample
    recipes = {"default": "int8_int8", "layers": {"single_transformer_blocks.0": "exact"}}
    with clary.patch(model, recipes, policy="raise") as patched:
        close(model(**inputs).sample, plain)
    assert patched.calls == {"int8_int8": 2, "exact": 1}
    assert torch.equal(model(**inputs).sample, plain)


def test_an_image_unet_with_cross_attention():
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()
    sample, text = torch.randn(2, 4, 16, 16), torch.randn(2, 77, 32)
    plain = model(sample, 3, text).sample
    with clary.patch(model, {"default": "exact", "layers": {"*.attn2": "int8_int8"}}, policy="raise") as patched:
        close(model(sample, 3, text).sample, plain)
    assert set(patched.calls) == {"exact", "int8_int8"} and patched.calls["exact"] == patched.calls["int8_int8"]


def test_what_is_no_module():
    with pytest.raises(clary.InvalidArgument, match="model: a dict; allowed: a torch.nn.Module"):
        clary.patch({})
