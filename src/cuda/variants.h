// SPDX-License-Identifier: Apache-2.0
// Which attention kernels (gpu/attention/configs.h) can be compiled for which machine.
#pragma once

#include "gpu/attention/config.h"
#include "gpu/target/machines.h"
#include "numerics/digits.h"

namespace clary::cuda {

// What AttentionKernel::kSharedBytes comes to, also where a machine has too little for it.
CLARY_HD constexpr uint32_t shared_bytes(const gpu::AttentionConfig& c) {
    const int qk_bytes = (c.head_dim + (c.key_bias ? numerics::kDigitColumns : 0)) * gpu::element_bits(c.qk) / 8;
    const int v_bytes = gpu::element_bits(c.v) / 8;
    const int vectors = (c.key_scales == gpu::KeyScales::kNone ? 0 : c.tile_k * 4) + (v_bytes == 1 ? c.tile_k : 0);
    return static_cast<uint32_t>(c.tile_q * qk_bytes +
                                 c.stages * (c.tile_k * (qk_bytes + c.head_dim_v * v_bytes) + vectors));
}

// Whether a kernel can be compiled for the machine at all.
CLARY_HD constexpr bool compiles(const gpu::Machine& machine, const gpu::AttentionConfig& c) {
    const bool bf16 = c.qk == gpu::Element::kBf16 || c.v == gpu::Element::kBf16;
    return shared_bytes(c) <= machine.shared_bytes && !(bf16 && machine.chip == gpu::Chip::kSm75);
}

}  // namespace clary::cuda
