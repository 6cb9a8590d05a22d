// SPDX-License-Identifier: Apache-2.0
// The orders of V's keys that MetaX's chips want.
#include <gtest/gtest.h>

#include "cases/problem.h"
#include "gpu/quantize.h"

namespace clary::cases {
namespace {

// V for products of depth 32 holds the bytes, sums and weights of that for depth 16, in runs of 32 (numerics/permutation.h).
TEST(Equal, OrdersOfV) {
    for (const int64_t dim : {32, 96, 128, 192, 256})
        for (const char* recipe : {"int8_int8", "int8_int8+tile=64", "int8_int8:fast+v_scale=channel_tile"}) {
            SCOPED_TRACE(std::string(recipe) + ", head dim " + std::to_string(dim));
            const Problem problem({.name = "orders", .kv_len = 150, .dim = dim});
            const AttentionDesc desc = desc_of(problem.params, recipe);
            Packed k16(desc, 0, gpu::kXcore1000), k32(desc, 0, gpu::kXcore1500);
            quantize<sim::Sim<gpu::kXcore1000>>(k16.params(desc));
            quantize<sim::Sim<gpu::kXcore1500>>(k32.params(desc));
            const auto bytes = [](const Packed& packed, const char* name) {
                return section<uint8_t>(packed.kv_layout, packed.kv.data(), name);
            };
            const int64_t tile = desc.recipe.tile, tiles = packed_kv_rows(desc, 0).rows / tile;
            for (int64_t row = 0; row < tiles * dim; ++row)  // of a channel in a tile
                for (int64_t key = 0; key < tile; ++key)
                    ASSERT_EQ(bytes(k32, "v_codes")[row * tile + kMetaxK32Arrangement.v_place(key)],
                              bytes(k16, "v_codes")[row * tile + key])
                        << row << ", " << key;
            for (int64_t i = 0; i < tiles * dim * 4; ++i)
                ASSERT_EQ(bytes(k32, "v_sum")[i], bytes(k16, "v_sum")[i]) << i;
            if (find_section(k16.kv_layout, "v_weight") == nullptr) continue;
            for (int64_t i = 0; i < tiles * tile; ++i)
                ASSERT_EQ(bytes(k32, "v_weight")[i / tile * tile + kMetaxK32Arrangement.v_place(i % tile)],
                          bytes(k16, "v_weight")[i]);
        }
}

}  // namespace
}  // namespace clary::cases
