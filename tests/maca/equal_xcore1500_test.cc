// SPDX-License-Identifier: Apache-2.0
#include "maca/equal.h"

namespace clary::cases {
namespace {

TEST(Equal, Xcore1500) {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<gpu::kXcore1500, Format::kInt8, Format::kInt8, 64, 128, true>(recipe);
    expect_equal<gpu::kXcore1500, Format::kInt8, Format::kFp8, 64, 128, true>("int8_fp8");
    expect_equal<gpu::kXcore1500, Format::kInt8, Format::kFp16, 64, 64, false>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1500, Format::kBf16, Format::kBf16, 96, 64, false>("bf16_bf16");
}

}  // namespace
}  // namespace clary::cases
