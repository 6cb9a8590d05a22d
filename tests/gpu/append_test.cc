// SPDX-License-Identifier: Apache-2.0
// The GPU's append on the simulator: a cache filled in pieces holds the same bytes as one quantized at once with the same
// frozen vectors.
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "gpu/quantize.h"
#include "reference/unpack.h"

namespace clary::cases {
namespace {

constexpr int64_t kCapacity = 600;

// Tokens first .. first + count - 1 of K and V.
AttentionDesc slice(AttentionDesc desc, int64_t first, int64_t count) {
    for (Operand* operand : {&desc.k, &desc.v})
        operand->data = static_cast<char*>(operand->data) + first * operand->token_stride * dtype_size(operand->dtype);
    desc.kv_len = desc.kv_tokens = count;
    return desc;
}

int64_t bytes_of(const clary_section& s) {
    int64_t bytes = dtype_size(static_cast<DType>(s.dtype));
    for (int32_t axis = 0; axis < s.ndim; ++axis) bytes *= s.shape[axis];
    return bytes;
}

// Every section, but for what lies in the tail beyond the keys it keeps.
void expect_same(const Packed& a, const Packed& b, int64_t keys) {
    for (int32_t i = 0; i < a.kv_layout.section_count; ++i) {
        const clary_section& s = a.kv_layout.sections[i];
        const char* const at_a = section<char>(a.kv_layout, a.kv.data(), s.name);
        const char* const at_b = section<char>(b.kv_layout, b.kv.data(), s.name);
        if (std::strncmp(s.name, "tail_", 5) != 0) {
            EXPECT_EQ(std::memcmp(at_a, at_b, static_cast<size_t>(bytes_of(s))), 0) << s.name;
            continue;
        }
        const int64_t head = s.shape[2] * s.shape[3] * int64_t{sizeof(float)};
        for (int64_t h = 0; h < s.shape[0] * s.shape[1]; ++h)
            EXPECT_EQ(std::memcmp(at_a + h * head, at_b + h * head,
                                  static_cast<size_t>(keys % a.kv_layout.tile * s.shape[3]) * sizeof(float)),
                      0)
                << s.name << " of head " << h;
    }
}

constexpr const char* kRecipes[] = {
    "int8_int8",
    "int8_int8+v_scale=channel_tile+tile=64",
    "int8_int8+granularity=per_token+tile=64",
    "int8_fp16+tile=64",
    "int8_fp16+granularity=per_warp+family=sm90",
    "int8_bf16:fast",
    "fp16_fp16",
    "bf16_bf16+tile=64",
};

Case cache_case(int64_t keys) {
    Case c{.name = "cache", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 33, .dim = 24, .dim_v = 30};
    c.kv_len = keys;
    return c;
}

template <class T>
void check_pieces(const Case& c, const char* recipe, const std::vector<int64_t>& pieces) {
    SCOPED_TRACE(std::string(recipe) + " on " + gpu::machine_name(T::kChip));
    ASSERT_EQ(c.kv_len, std::accumulate(pieces.begin(), pieces.end(), int64_t{0}));
    Problem problem(c);
    const AttentionDesc desc = desc_of(problem.params, recipe);
    Packed cache(desc, kCapacity, T::kChip), whole(desc, kCapacity, T::kChip);
    quantize<T>(cache.params(slice(desc, 0, pieces[0])));
    if (testing::Test::HasFatalFailure()) return;
    quantize<T>(whole.params(with_vectors(desc, cache)));
    int64_t length = pieces[0];
    for (size_t i = 1; i < pieces.size(); ++i) {
        quantize<T>(cache.append_params(slice(desc, length, pieces[i])));
        if (testing::Test::HasFatalFailure()) return;
        length += pieces[i];
    }
    EXPECT_TRUE(cache.kv.canaries_intact());
    EXPECT_EQ(problem.damage(), "");
    expect_same(cache, whole, length);
}

void check_recipes(const std::vector<int64_t>& pieces) {
    const Case c = cache_case(std::accumulate(pieces.begin(), pieces.end(), int64_t{0}));
    for (const char* recipe : kRecipes) check_pieces<sim::Sim<gpu::kSm80>>(c, recipe, pieces);
}

TEST(GpuAppend, AtTileBoundaries) { check_recipes({64, 64, 128, 1, 127, 128}); }
TEST(GpuAppend, AcrossTileBoundaries) { check_recipes({100, 60, 3, 200}); }
TEST(GpuAppend, ManyAtOnce) { check_recipes({10, 300, 290}); }
TEST(GpuAppend, FromNothingAndNothing) { check_recipes({0, 5, 0, 130}); }
TEST(GpuAppend, OneAtATime) {
    std::vector<int64_t> pieces(12, 1);
    pieces[0] = 120;
    check_recipes(pieces);
}

TEST(GpuAppend, WavesOf64) {
    for (const char* recipe : {"int8_int8", "int8_int8+v_scale=channel_tile+tile=64", "int8_fp16+tile=64", "bf16_bf16"})
        check_pieces<sim::Sim<gpu::kXcore1000>>(cache_case(363), recipe, {100, 60, 3, 200});
}

TEST(GpuAppend, WholeRunsOfChannels) {
    for (const Layout layout : {Layout::kHnd, Layout::kNhd})
        for (const DType dtype : {DType::kBF16, DType::kF32}) {
            Case c{.name = "aligned", .q_heads = 2, .kv_heads = 2, .q_len = 20, .kv_len = 290, .dim = 64};
            c.k = c.v = dtype;
            c.kv_layout = layout;
            for (const char* recipe : {"int8_int8", "int8_fp16+tile=64", "fp16_fp16"})
                check_pieces<sim::Sim<gpu::kSm80>>(c, recipe, {100, 30, 160});
        }
}

using Sm80 = sim::Sim<gpu::kSm80>;

// kv_lengths are the new keys of each sequence; a full one takes none and stays as it is.
TEST(GpuAppend, SequencesGrowByTheirOwnLengths) {
    for (const char* recipe : kRecipes) {
        SCOPED_TRACE(recipe);
        Case c = cache_case(170);
        c.kv_lengths = {170, 40};
        Problem problem(c);
        const AttentionDesc desc = desc_of(problem.params, recipe);
        Packed cache(desc, kCapacity), whole(desc, kCapacity);
        AttentionDesc part = slice(desc, 0, 30);
        part.kv_lengths = {};
        quantize<Sm80>(cache.params(part));
        quantize<Sm80>(whole.params(with_vectors(desc, cache)));
        part = slice(desc, 30, 140);
        int32_t more[] = {140, 10};
        part.kv_lengths.data = more;
        part.kv_lengths.dtype = DType::kI32;
        quantize<Sm80>(cache.append_params(part));
        if (HasFatalFailure()) return;
        const auto* const lengths = section<int64_t>(cache.kv_layout, cache.kv.data(), "lengths");
        EXPECT_EQ(lengths[0], 170);
        EXPECT_EQ(lengths[1], 40);
        expect_same(cache, whole, 40);  // tails: 42 keys of the first sequence with tiles of 64 or 128
    }
}

// Sequence 1 overflows: no code of its changes but to NaN, and sequence 0 is as if it were alone.
TEST(GpuAppend, BeyondTheCapacityGivesNan) {
    for (const char* recipe : {"int8_int8", "int8_fp16+tile=64", "bf16_bf16"}) {
        SCOPED_TRACE(recipe);
        constexpr int64_t kSmall = 150;
        Case c = cache_case(260);
        Problem problem(c);
        const AttentionDesc desc = desc_of(problem.params, recipe);
        Packed cache(desc, kSmall), whole(desc, kSmall);
        quantize<Sm80>(cache.params(slice(desc, 0, 130)));
        AttentionDesc part = slice(desc, 130, 130);
        int32_t more[] = {20, 21};
        part.kv_lengths.data = more;
        part.kv_lengths.dtype = DType::kI32;
        part.kv_lengths.ndim = 1;
        part.kv_lengths.shape[0] = 2;
        part.kv_lengths.stride[0] = 1;
        AttentionDesc fits = slice(desc, 0, kSmall);
        quantize<Sm80>(whole.params(with_vectors(fits, cache)));
        for (int again = 0; again < 2; ++again) {
            quantize<Sm80>(cache.append_params(part));
            if (HasFatalFailure()) return;
            EXPECT_TRUE(cache.kv.canaries_intact());
            const auto* const lengths = section<int64_t>(cache.kv_layout, cache.kv.data(), "lengths");
            EXPECT_EQ(lengths[0], kSmall);
            EXPECT_EQ(lengths[1], kSmall);
            more[0] = 0;
            more[1] = 1;  // what has overflown stays so
        }
        const clary_section& k = *find_section(cache.kv_layout, "k_codes");
        const auto half = static_cast<size_t>(bytes_of(k) / 2);
        EXPECT_EQ(std::memcmp(section<char>(cache.kv_layout, cache.kv.data(), "k_codes"),
                              section<char>(whole.kv_layout, whole.kv.data(), "k_codes"), half),
                  0);
        reference::HeadOperands head;
        ASSERT_TRUE(reference::unpack_head(desc, kSmall, cache.q.data(), cache.kv.data(), 1, 1, &head, kMmaArrangement)
                        .is_ok());
        ASSERT_EQ(head.kv_len, kSmall);
        for (int64_t j = 0; j < kSmall; ++j) {
            const float poisoned = desc.recipe.quantized() ? head.tile_base[static_cast<size_t>(j / desc.recipe.tile)]
                                                           : head.k[static_cast<size_t>(j * head.dim)];
            EXPECT_TRUE(std::isnan(poisoned)) << "key " << j;
        }
    }
}

// A buffer that was packed as something else is left as it is.
TEST(GpuAppend, ForeignBuffersAreNotTouched) {
    const Case c = cache_case(100);
    Problem problem(c);
    AttentionDesc desc = desc_of(problem.params, "int8_int8");
    Packed cache(desc, kCapacity);
    quantize<Sm80>(cache.params(desc));
    const auto* const begin = static_cast<const unsigned char*>(cache.kv.data());
    const std::vector<unsigned char> before(begin, begin + cache.kv.size());
    desc.scale *= 2;
    quantize<Sm80>(cache.append_params(desc));
    EXPECT_EQ(std::memcmp(begin, before.data(), before.size()), 0);
}

}  // namespace
}  // namespace clary::cases
