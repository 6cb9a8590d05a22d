// SPDX-License-Identifier: Apache-2.0
// A cache filled in pieces holds the same bytes as one quantized at once with the same frozen vectors.
#include <cstring>
#include <numeric>

#include "core/packed.h"
#include "cpu/run.h"

namespace clary::cases {
namespace {

constexpr int64_t kCapacity = 600;

// A slice of K and V: tokens first .. first + count - 1.
clary_attention_params slice(const clary_attention_params& params, int64_t first, int64_t count) {
    clary_attention_params part = params;
    for (clary_tensor* t : {&part.k, &part.v}) {
        t->data = static_cast<float*>(t->data) + first * t->stride[2];
        t->shape[2] = count;
    }
    return part;
}

// c_k, c_q and q_base as a packed buffer holds them, given back as the frozen vectors of another call.
void freeze(const Packed& from, clary_attention_params* params) {
    const auto give = [&](const char* name, clary_tensor* tensor) {
        for (int32_t i = 0; i < from.kv_layout.section_count; ++i) {
            const clary_section& s = from.kv_layout.sections[i];
            if (std::strcmp(s.name, name) != 0) continue;
            tensor->data = static_cast<char*>(from.kv->data()) + s.offset;
            tensor->dtype = s.dtype;
            tensor->ndim = s.ndim;
            int64_t stride = 1;
            for (int32_t axis = s.ndim; axis-- > 0;) {
                tensor->shape[axis] = s.shape[axis];
                tensor->stride[axis] = stride;
                stride *= s.shape[axis];
            }
            if (s.ndim == 3) tensor->shape[2] = params->k.shape[3];
        }
    };
    Recipe recipe;
    ASSERT_TRUE(parse_recipe(params->recipe, &recipe).is_ok());
    if (recipe.smooth_k) give("c_k", &params->c_k);
    if (recipe.smooth_q) give("c_q", &params->c_q);
    if (recipe.key_bias()) give("q_base", &params->q_base);
}

const char* const kRecipes[] = {"int8_int8",
                                "int8_int8+v_scale=channel_tile+tile=64",
                                "int8_int8+granularity=per_token",
                                "int8_int8+granularity=per_warp+family=sm90",
                                "int8_fp16",
                                "int8_bf16:fast",
                                "fp32_fp32"};

void check_pieces(const std::vector<int64_t>& pieces) {
    const int64_t total = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
    Case c{.name = "cache", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 33, .dim = 24, .dim_v = 40};
    c.kv_len = total;
    Problem problem(c);
    for (const char* recipe : kRecipes)
        for (const char* tier : tiers()) {
            SCOPED_TRACE(std::string(recipe) + " on " + tier);
            const clary_attention_params params = with(problem, recipe, tier);
            const Packed prefill = pack(slice(params, 0, pieces[0]), kCapacity);
            clary_attention_params frozen = params;
            freeze(prefill, &frozen);
            const Packed whole = pack(frozen, kCapacity);
            int64_t length = pieces[0];
            for (size_t i = 1; i < pieces.size(); ++i) {
                const clary_attention_params part = slice(params, length, pieces[i]);
                const clary_packed kv = prefill.kv_buffer();
                ASSERT_EQ(clary_append_kv(&part, &kv), CLARY_OK) << clary_last_error();
                length += pieces[i];
            }
            EXPECT_TRUE(prefill.kv->canaries_intact());

            // Every section, but for what lies in the tail beyond the tokens it keeps.
            const int32_t tile = whole.kv_layout.tile;
            for (int32_t i = 0; i < whole.kv_layout.section_count; ++i) {
                const clary_section& s = whole.kv_layout.sections[i];
                const char* const a = static_cast<const char*>(prefill.kv->data()) + s.offset;
                const char* const b = static_cast<const char*>(whole.kv->data()) + s.offset;
                int64_t bytes = dtype_size(static_cast<DType>(s.dtype));
                for (int32_t axis = 0; axis < s.ndim; ++axis) bytes *= s.shape[axis];
                if (std::strncmp(s.name, "tail_", 5) != 0) {
                    EXPECT_EQ(std::memcmp(a, b, static_cast<size_t>(bytes)), 0) << s.name;
                    continue;
                }
                const int64_t head = s.shape[2] * s.shape[3] * int64_t{sizeof(float)};
                for (int64_t h = 0; h < s.shape[0] * s.shape[1]; ++h)
                    EXPECT_EQ(std::memcmp(a + h * head, b + h * head,
                                          static_cast<size_t>(total % tile * s.shape[3]) * sizeof(float)),
                              0)
                        << s.name;
            }

            // And so attending from it gives the same bits.
            attend(&problem, params, whole);
            const std::vector<unsigned char> expected = problem.output_bytes();
            attend(&problem, params, prefill);
            EXPECT_EQ(problem.output_bytes(), expected);
        }
}

TEST(Append, AtTileBoundaries) { check_pieces({64, 64, 128, 1, 127, 128}); }
TEST(Append, AcrossTileBoundaries) { check_pieces({100, 60, 3, 200}); }
TEST(Append, OneTokenAtATime) {
    std::vector<int64_t> pieces(140, 1);
    pieces[0] = 120;
    check_pieces(pieces);
}
TEST(Append, ThreeHundredAtOnce) { check_pieces({10, 300, 290}); }
TEST(Append, NothingChangesNothing) { check_pieces({50, 0, 7}); }

TEST(Append, BeyondTheCapacityFailsAndChangesNothing) {
    Case c{.name = "full", .q_heads = 2, .q_len = 20, .kv_len = 100, .dim = 16};
    c.kv_heads = 1;
    Problem problem(c);
    for (const char* recipe : {"int8_int8", "fp32_fp32"}) {
        const clary_attention_params params = with(problem, recipe, "cpu");
        const Packed cache = pack(params, 150);
        const std::vector<unsigned char> before = section_bytes(cache.kv_layout, *cache.kv);
        const clary_packed kv = cache.kv_buffer();
        EXPECT_EQ(clary_append_kv(&params, &kv), CLARY_INVALID_ARGUMENT) << recipe;
        EXPECT_NE(std::string(clary_last_error()).find("100"), std::string::npos) << clary_last_error();
        EXPECT_EQ(section_bytes(cache.kv_layout, *cache.kv), before);
    }
}

TEST(Append, ChannelScalesCannotGrow) {
    Case c{.name = "channel", .q_heads = 1, .q_len = 20, .kv_len = 20, .dim = 16};
    Problem problem(c);
    const clary_attention_params params = with(problem, "int8_int8:fast", "cpu");
    const Packed cache = pack(params, 100);
    const clary_packed kv = cache.kv_buffer();
    EXPECT_EQ(clary_append_kv(&params, &kv), CLARY_UNSUPPORTED);
    EXPECT_NE(std::string(clary_last_error()).find("v_scale=channel"), std::string::npos);
}

// Decode: Q packed alone against the vectors of the ready cache is what both in one call give.
TEST(Append, QueriesAgainstAReadyCache) {
    Case c{.name = "decode", .batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 40, .kv_len = 200, .dim = 32};
    Problem problem(c);
    for (const char* recipe : kRecipes) {
        const clary_attention_params params = with(problem, recipe, "cpu");
        const Packed both = pack(params, kCapacity);
        Guarded q(both.q->size());
        const clary_packed q_buffer = buffer_of(q, kCapacity), kv_buffer = both.kv_buffer();
        ASSERT_EQ(clary_quantize(&params, &q_buffer, nullptr, &kv_buffer), CLARY_OK) << clary_last_error();
        EXPECT_EQ(section_bytes(both.q_layout, q), section_bytes(both.q_layout, *both.q)) << recipe;
    }
}

}  // namespace
}  // namespace clary::cases
