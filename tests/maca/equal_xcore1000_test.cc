// SPDX-License-Identifier: Apache-2.0
#include "maca/equal.h"

namespace clary::cases {
namespace {

TEST(Equal, Xcore1000) {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<gpu::kXcore1000, Element::kS8, Element::kS8, 64, 4>(recipe);
    expect_equal<gpu::kXcore1000, Element::kS8, Element::kF16, 96, 1>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1000, Element::kF16, Element::kF16, 32, 0>("fp16_fp16");
    expect_equal<gpu::kXcore1000, Element::kBf16, Element::kBf16, 64, 0>("bf16_bf16");
}

}  // namespace
}  // namespace clary::cases
