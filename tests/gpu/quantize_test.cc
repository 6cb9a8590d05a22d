// SPDX-License-Identifier: Apache-2.0
// The GPU's quantization kernels on the simulator, against the reference quantizer with the vectors that they chose:
// equal codes but near ties, equal scales. The vectors themselves against means over all tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "cases/problem.h"
#include "cases/tolerances.h"
#include "gpu/quantize/channel_scale_kernel.h"
#include "gpu/quantize/exact_kernel.h"
#include "gpu/quantize/pack_kernel.h"
#include "gpu/quantize/statistics_kernel.h"
#include "reference/quantize.h"
#include "reference/smoothing.h"
#include "reference/unpack.h"
#include "sim/sim.h"

namespace clary::cases {

inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

namespace {

using gpu::QuantizeConfig;
using gpu::QuantizeParams;

template <class T, class Kernel>
void launch(int64_t blocks, const QuantizeParams& p) {
    sim::Options options;
    options.threads = 2;
    const sim::Report report = sim::launch<T>({static_cast<int>(blocks)}, Kernel::kThreads, Kernel::kSharedBytes,
                                              options, [&] { Kernel::run(p); });
    ASSERT_TRUE(report.ok()) << report.describe();
}

// What the host does on a GPU, see gpu/quantize/configs.h.
template <class T, QuantizeConfig kConfig>
void quantize_as(const QuantizeParams& p) {
    if (!p.desc.recipe.quantized()) return launch<T, gpu::ExactKernel<T, kConfig>>(pack_blocks(p), p);
    if (p.k_codes != nullptr) {
        launch<T, gpu::StatisticsKernel<T, kConfig>>(statistics_blocks(p), p);
        if (p.desc.recipe.v_scale == VScale::kChannel)
            launch<T, gpu::ChannelScaleKernel<T, kConfig>>(channel_blocks(p), p);
    }
    launch<T, gpu::PackKernel<T, kConfig>>(pack_blocks(p), p);
}

template <class T, int kIndex = 0>
void quantize(const QuantizeParams& p) {
    if constexpr (kIndex < static_cast<int>(std::size(gpu::kQuantizeConfigs))) {
        if (gpu::find_quantize_config(p.desc) == kIndex)
            quantize_as<T, gpu::kQuantizeConfigs[kIndex]>(p);
        else
            quantize<T, kIndex + 1>(p);
    }
}

// Packed buffers between canaries, poisoned before.
struct Packed {
    PackedLayout q_layout, kv_layout;
    Guarded q, kv;
    int64_t kv_capacity;

    explicit Packed(const AttentionDesc& desc, int64_t capacity = 0)
        : q_layout(packed_q_layout(desc, kMmaArrangement)),
          kv_layout(packed_kv_layout(desc, capacity, kMmaArrangement)),
          q(static_cast<size_t>(q_layout.bytes)),
          kv(static_cast<size_t>(kv_layout.bytes)),
          kv_capacity(capacity) {}
    QuantizeParams params(const AttentionDesc& desc) {
        return gpu::quantize_params(desc, kv_capacity, q.data(), kv.data(), nullptr);
    }
    const float* vectors(const char* name) const { return section<float>(kv_layout, kv.data(), name); }
};

TensorView view_of(const float* data, std::initializer_list<int64_t> shape, int64_t row) {
    TensorView view;
    view.data = const_cast<float*>(data);
    view.dtype = DType::kF32;
    view.ndim = static_cast<int32_t>(shape.size());
    int64_t stride = 1;
    for (int32_t axis = view.ndim; axis-- > 0;) {
        view.shape[axis] = shape.begin()[axis];
        view.stride[axis] = stride;
        stride *= axis == 2 ? row : shape.begin()[axis];
    }
    return view;
}

// The problem with the vectors that lie in the packed buffer.
AttentionDesc with_vectors(const AttentionDesc& desc, const Packed& packed) {
    AttentionDesc given = desc;
    const int64_t dim = padded_dim_mma(desc.head_dim);
    if (desc.recipe.smooth_k)
        given.c_k = view_of(packed.vectors("c_k"), {desc.batch, desc.kv_heads, desc.head_dim}, dim);
    if (desc.recipe.smooth_q)
        given.c_q = view_of(packed.vectors("c_q"), {desc.batch, desc.kv_heads, desc.head_dim}, dim);
    if (desc.recipe.key_bias()) given.q_base = view_of(packed.vectors("q_base"), {desc.batch, desc.kv_heads}, 0);
    return given;
}

struct Tally {
    int64_t codes = 0, differ = 0, far = 0;  // far: by more than one

    void add(const std::vector<float>& a, const std::vector<float>& b) {
        ASSERT_EQ(a.size(), b.size());
        for (size_t i = 0; i < a.size(); ++i) {
            ++codes;
            differ += a[i] != b[i];
            far += std::fabs(a[i] - b[i]) > 1;
        }
    }
    void judge(const char* name) const {
        EXPECT_EQ(far, 0) << name;
        EXPECT_LE(static_cast<double>(differ), 2 + kCodeFlipRate * static_cast<double>(codes)) << name;
    }
};

void expect_near(const char* what, const std::vector<float>& a, const std::vector<float>& b, double relative,
                 double absolute) {
    ASSERT_EQ(a.size(), b.size()) << what;
    for (size_t i = 0; i < a.size(); ++i)
        ASSERT_NEAR(a[i], b[i], relative * std::fabs(static_cast<double>(b[i])) + absolute) << what << " " << i;
}

template <class T>
void expect_as_reference(const Case& c, const char* recipe) {
    SCOPED_TRACE(c.name + " " + recipe + " on " + gpu::machine_name(T::kChip));
    Problem problem(c);
    const AttentionDesc desc = desc_of(problem.params, recipe);
    ASSERT_TRUE(gpu::quantizes(desc.recipe));
    Packed packed(desc);
    quantize<T>(packed.params(desc));
    if (testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(problem.damage(), "");
    EXPECT_TRUE(packed.q.canaries_intact() && packed.kv.canaries_intact());
    EXPECT_TRUE(check_header("q", desc, packed.q_layout, packed.q.data()).is_ok());
    EXPECT_TRUE(check_header("kv", desc, packed.kv_layout, packed.kv.data()).is_ok());
    if (!desc.recipe.quantized() && desc.kv_len == 0) return;

    const AttentionDesc given = with_vectors(desc, packed);
    const double mean_error = kMeanError * (c.values == Values::kLoudToken || c.values == Values::kHugeV ? 100 : 1);
    Tally q, k, v;
    int64_t units = 0, units_differ = 0, weights_differ = 0;
    for (int64_t b = 0; b < desc.batch; ++b)
        for (int64_t h = 0; h < desc.kv_heads; ++h) {
            const reference::HeadOperands expected = reference::quantize_head(given, b, h);
            reference::HeadOperands got;
            ASSERT_TRUE(reference::unpack_head(desc, 0, packed.q.data(), packed.kv.data(), b, h, &got, kMmaArrangement)
                            .is_ok());
            if (expected.q_len == 0) continue;  // nothing reads q_base, nor what follows from it
            EXPECT_EQ(got.kv_len, expected.kv_len);
            expect_near("v_mean", got.v_mean, expected.v_mean, kScaleError, mean_error);
            expect_near("q_scale", got.q_scale, expected.q_scale, kScaleError, 0);
            expect_near("k_scale", got.k_scale, expected.k_scale, kScaleError, mean_error / 127);
            expect_near("v_scale", got.v_scale, expected.v_scale, kScaleError, mean_error / 127);
            expect_near("q_shift", got.q_shift, expected.q_shift, 4 * kScaleError, mean_error);
            expect_near("tile_base", got.tile_base, expected.tile_base, 4 * kScaleError, 4 * mean_error);
            EXPECT_EQ(got.q_repeat, expected.q_repeat);
            q.add(got.q, expected.q);
            k.add(got.k, expected.k);
            v.add(got.v, expected.v);
            ASSERT_EQ(got.bias_units.size(), expected.bias_units.size());
            for (size_t j = 0; j < got.bias_units.size(); ++j) {
                ++units;
                units_differ += got.bias_units[j] != expected.bias_units[j];
                ASSERT_LE(std::abs(got.bias_units[j] - expected.bias_units[j]), 1) << "bias units of key " << j;
            }
            ASSERT_EQ(got.v_weight.size(), expected.v_weight.size());
            for (size_t j = 0; j < got.v_weight.size(); ++j) weights_differ += got.v_weight[j] != expected.v_weight[j];
        }
    q.judge("q codes");
    k.judge("k codes");
    v.judge("v codes");
    EXPECT_LE(static_cast<double>(units_differ), 2 + 0.01 * static_cast<double>(units)) << "bias units";
    EXPECT_LE(static_cast<double>(weights_differ), 0.001 * static_cast<double>(units)) << "V weights";
}

constexpr const char* kRecipes[] = {
    "int8_int8",
    "int8_int8:fast",
    "int8_fp16",
    "int8_int8+v_scale=channel_tile+smooth_v+tile=64",
    "int8_int8+tile=64+no_rotate_v+granularity=per_token",
    "int8_int8:fast+granularity=per_warp+rotate+no_smooth_k+smooth_v+rotate_v",
    "int8_bf16",
    "int8_fp16:sage2+smooth_v",
    "int8_fp16:fast+smooth_q+granularity=per_block+family=sm90",
    "int4_int8",
    "int4_fp16+tile=64",
    "fp16_fp16",
    "bf16_bf16+tile=64",
};

bool has_config(const Case& c) {
    AttentionDesc desc;
    desc.head_dim = c.dim;
    desc.head_dim_v = c.v_dim();
    return gpu::find_quantize_config(desc) >= 0;
}

// Every case with one recipe, every recipe with many cases.
class Quantize : public testing::TestWithParam<int> {};

TEST_P(Quantize, AsReference) {
    constexpr int kCount = static_cast<int>(std::size(kRecipes));
    int index = 0;
    for (const Case& c : all_cases()) {
        if (!has_config(c) || std::strcmp(c.topic, "masks") == 0 || std::strcmp(c.topic, "causal") == 0) continue;
        if (index++ % kCount != GetParam()) continue;
        expect_as_reference<sim::Sim<gpu::kSm80>>(c, kRecipes[(index / kCount + GetParam()) % kCount]);
        if (HasFatalFailure()) return;
    }
}
INSTANTIATE_TEST_SUITE_P(Share, Quantize, testing::Range(0, static_cast<int>(std::size(kRecipes))));

}  // namespace
}  // namespace clary::cases
