// SPDX-License-Identifier: Apache-2.0
// The GPU's quantization kernels on the simulator: launches as a host does them, and packed buffers.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <iterator>

#include "cases/problem.h"
#include "gpu/quantize/advance_kernel.h"
#include "gpu/quantize/channel_scale_kernel.h"
#include "gpu/quantize/exact_kernel.h"
#include "gpu/quantize/pack_kernel.h"
#include "gpu/quantize/statistics_kernel.h"
#include "sim/sim.h"

namespace clary::cases {

inline void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name; }

using gpu::QuantizeConfig;
using gpu::QuantizeParams;

template <class T, class Kernel>
void launch(int64_t blocks, const QuantizeParams& p) {
    sim::Options options;
    options.threads = 2;
    const sim::Report report = sim::launch<T>({static_cast<int>(blocks)}, Kernel::kThreads, Kernel::kSharedBytes,
                                              options, [&] { Kernel::run(p); });
    ASSERT_TRUE(report.ok()) << report.describe();
}

// Runs of slabs that whole problems are packed in: long ones although no simulated problem is large.
inline constexpr int32_t kRun = 3;

template <class T, QuantizeConfig kConfig>
void pack_as(QuantizeParams p) {
    using Whole = gpu::PackKernel<T, kConfig, gpu::PackKind::kWhole>;
    if (Whole::kFits && gpu::whole(p)) {
        p.run = kRun;
        launch<T, Whole>(pack_blocks(p), p);
    } else {
        launch<T, gpu::PackKernel<T, kConfig>>(pack_blocks(p), p);
    }
}

// What the host does on a GPU, see gpu/quantize/configs.h.
template <class T, QuantizeConfig kConfig>
void quantize_as(const QuantizeParams& p) {
    if (!p.desc.recipe.quantized()) return launch<T, gpu::ExactKernel<T, kConfig>>(pack_blocks(p), p);
    if (p.k_codes != nullptr) {
        launch<T, gpu::StatisticsKernel<T, kConfig>>(statistics_blocks(p), p);
        if (p.desc.recipe.v_scale == VScale::kChannel)
            launch<T, gpu::ChannelScaleKernel<T, kConfig>>(channel_blocks(p), p);
    }
    if (spans_heads(p)) {
        QuantizeParams heads = p;
        heads.run = gpu::kWholeHead;
        launch<T, gpu::PackKernel<T, kConfig, gpu::PackKind::kMeasure>>(pack_blocks(heads), heads);
    }
    pack_as<T, kConfig>(p);
}
template <class T, QuantizeConfig kConfig>
void append_as(const QuantizeParams& p) {
    if (p.desc.recipe.quantized())
        launch<T, gpu::PackKernel<T, kConfig, gpu::PackKind::kAppend>>(pack_blocks(p), p);
    else
        launch<T, gpu::ExactKernel<T, kConfig>>(pack_blocks(p), p);
    launch<T, gpu::AdvanceKernel<T, kConfig>>(p.desc.batch, p);
}

template <class T, int kIndex = 0>
void quantize(const QuantizeParams& p) {
    if constexpr (kIndex < static_cast<int>(std::size(gpu::kQuantizeConfigs))) {
        if (gpu::find_quantize_config(p.desc) == kIndex)
            p.append ? append_as<T, gpu::kQuantizeConfigs[kIndex]>(p)
                     : quantize_as<T, gpu::kQuantizeConfigs[kIndex]>(p);
        else
            quantize<T, kIndex + 1>(p);
    }
}

// Packed buffers between canaries, poisoned before.
struct Packed {
    PackedLayout q_layout, kv_layout;
    Guarded q, kv;
    int64_t kv_capacity;
    const Arrangement& arrangement;

    explicit Packed(const AttentionDesc& desc, int64_t capacity = 0, const gpu::Machine& machine = gpu::kSm80)
        : q_layout(packed_q_layout(desc, gpu::arrangement_of(machine))),
          kv_layout(packed_kv_layout(desc, capacity, gpu::arrangement_of(machine))),
          q(static_cast<size_t>(q_layout.bytes)),
          kv(static_cast<size_t>(kv_layout.bytes)),
          kv_capacity(capacity),
          arrangement(gpu::arrangement_of(machine)) {}
    QuantizeParams params(const AttentionDesc& desc) {
        return gpu::quantize_params(desc, kv_capacity, q.data(), kv.data(), nullptr, arrangement);
    }
    QuantizeParams append_params(const AttentionDesc& desc) {
        return gpu::append_params(desc, kv_capacity, kv.data(), arrangement);
    }
    const float* vectors(const char* name) const { return section<float>(kv_layout, kv.data(), name); }
};

inline TensorView view_of(const float* data, std::initializer_list<int64_t> shape, int64_t row) {
    TensorView view;
    view.data = const_cast<float*>(data);
    view.dtype = DType::kF32;
    view.ndim = static_cast<int32_t>(shape.size());
    int64_t stride = 1;
    for (int32_t axis = view.ndim; axis-- > 0;) {
        view.shape[axis] = shape.begin()[axis];
        view.stride[axis] = stride;
        stride *= axis == 2 ? row : shape.begin()[axis];
    }
    return view;
}

// The problem with the vectors that lie in the packed buffer.
inline AttentionDesc with_vectors(const AttentionDesc& desc, const Packed& packed) {
    AttentionDesc given = desc;
    const int64_t dim = padded_dims_mma(desc).qk;
    if (desc.recipe.smooth_k)
        given.c_k = view_of(packed.vectors("c_k"), {desc.batch, desc.kv_heads, desc.head_dim}, dim);
    if (desc.recipe.smooth_q)
        given.c_q = view_of(packed.vectors("c_q"), {desc.batch, desc.kv_heads, desc.head_dim}, dim);
    if (desc.recipe.key_bias()) given.q_base = view_of(packed.vectors("q_base"), {desc.batch, desc.kv_heads}, 0);
    return given;
}

}  // namespace clary::cases
