// SPDX-License-Identifier: Apache-2.0
#include "maca/equal.h"

namespace clary::cases {
namespace {

TEST(Equal, Xcore1000) {
    for (const char* recipe : {"int8_int8", "int8_int8+granularity=per_tensor", "int4_int8"})
        expect_equal<gpu::kXcore1000, Format::kInt8, Format::kInt8, 64, 128, true>(recipe);
    expect_equal<gpu::kXcore1000, Format::kInt8, Format::kFp16, 96, 64, false>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1000, Format::kFp16, Format::kFp16, 32, 64, false>("fp16_fp16");
    expect_equal<gpu::kXcore1000, Format::kBf16, Format::kBf16, 64, 64, false>("bf16_bf16");
}

}  // namespace
}  // namespace clary::cases
