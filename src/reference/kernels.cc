// SPDX-License-Identifier: Apache-2.0
#include "reference/kernels.h"

#include <array>

#include "reference/oracle.h"

namespace clary::reference {
namespace {

std::string usable() { return ""; }

std::string supports(const AttentionDesc&) { return ""; }

Status attention(const Call& call) { return attend_recipe(call.desc, call.context.threads()); }

constexpr KernelRow row(const char* name, Format qk, Format pv) {
    KernelRow kernel{};  // one-shot: the members of two-phase kernels stay null
    kernel.name = name;
    kernel.backend = "reference";
    kernel.arch = "";
    kernel.qk = qk;
    kernel.pv = pv;
    kernel.usable = usable;
    kernel.supports = supports;
    kernel.attention = attention;
    return kernel;
}

constexpr std::array kKernels = {
    row("reference_int8_int8", Format::kInt8, Format::kInt8), row("reference_int8_fp16", Format::kInt8, Format::kFp16),
    row("reference_int8_bf16", Format::kInt8, Format::kBf16), row("reference_int8_fp8", Format::kInt8, Format::kFp8),
    row("reference_int4_int8", Format::kInt4, Format::kInt8), row("reference_int4_fp16", Format::kInt4, Format::kFp16),
    row("reference_int4_fp8", Format::kInt4, Format::kFp8),   row("reference_fp4_fp4", Format::kFp4, Format::kFp4),
    row("reference_fp16_fp16", Format::kFp16, Format::kFp16), row("reference_bf16_bf16", Format::kBf16, Format::kBf16),
    row("reference_fp32_fp32", Format::kFp32, Format::kFp32),
};
static_assert(kKernels.size() == std::size(kRecipes), "one row per recipe that exists");

}  // namespace

KernelTable kernels() { return kKernels; }

}  // namespace clary::reference
