// SPDX-License-Identifier: Apache-2.0
#include "maca/equal.h"

namespace clary::cases {
namespace {

TEST(Equal, Xcore1000) {
    expect_equal_bytes<gpu::kXcore1000>();
    expect_equal<gpu::kXcore1000, Format::kInt8, Format::kFp16, 96, 64, false>("int8_fp16:fast+tile=64");
    expect_equal<gpu::kXcore1000, Format::kFp16, Format::kFp16, 32, 64, false>("fp16_fp16");
    expect_equal<gpu::kXcore1000, Format::kBf16, Format::kBf16, 64, 64, false>("bf16_bf16");
}

}  // namespace
}  // namespace clary::cases
