// SPDX-License-Identifier: Apache-2.0
#include "maca/equal.h"

namespace clary::cases {
namespace {

TEST(Equal, Xcore1500) {
    expect_equal_bytes<gpu::kXcore1500>();
    expect_equal<gpu::kXcore1500, Format::kInt8, Format::kFp8, 64, 128, true>("int8_fp8");
    expect_equal<gpu::kXcore1500, Format::kInt8, Format::kFp16, 64, 64, false>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1500, Format::kBf16, Format::kBf16, 96, 64, false>("bf16_bf16");
}

}  // namespace
}  // namespace clary::cases
