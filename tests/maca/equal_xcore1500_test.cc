// SPDX-License-Identifier: Apache-2.0
#include "maca/equal.h"

namespace clary::cases {
namespace {

TEST(Equal, Xcore1500) {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<gpu::kXcore1500, Element::kS8, Element::kS8, 64, 4>(recipe);
    expect_equal<gpu::kXcore1500, Element::kS8, Element::kE4m3, 64, 4>("int8_fp8");
    expect_equal<gpu::kXcore1500, Element::kS8, Element::kF16, 64, 1>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1500, Element::kBf16, Element::kBf16, 96, 0>("bf16_bf16");
}

}  // namespace
}  // namespace clary::cases
