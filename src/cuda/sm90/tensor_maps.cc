// SPDX-License-Identifier: Apache-2.0
#include "cuda/sm90/tensor_maps.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "cuda/device.h"
#include "gpu/arrangement.h"
#include "numerics/digits.h"

namespace clary::cuda::sm90 {
namespace {

// Of the driver, found at run time: nothing links to it.
auto encode_tiled() {
    static const auto function = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
    }();
    return function;
}

struct Dim {
    int64_t size, stride;  // elements; bytes (of the first: 1)
    int64_t box;
};

// A tensor of bytes, fastest dimension first, read in boxes whose rows are swizzled.
template <size_t kDims>
Status encode(CUtensorMap& map, const void* data, const Dim (&dims)[kDims]) {
    const auto function = encode_tiled();
    if (function == nullptr) return Status(StatusCode::kDriverError, "cuTensorMapEncodeTiled: the driver has no such");
    cuuint64_t sizes[kDims], strides[kDims];
    cuuint32_t boxes[kDims], steps[kDims];
    for (size_t i = 0; i < kDims; ++i) {
        sizes[i] = static_cast<cuuint64_t>(dims[i].size);
        boxes[i] = static_cast<cuuint32_t>(dims[i].box);
        steps[i] = 1;
        if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(dims[i].stride);
    }
    const auto swizzle = dims[0].box == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                         : dims[0].box == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                             : CU_TENSOR_MAP_SWIZZLE_32B;
    const CUresult result = function(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, kDims, const_cast<void*>(data), sizes,
                                     strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) return Status::ok();
    return Status(StatusCode::kDriverError, fmt::format("cuTensorMapEncodeTiled: error {}", static_cast<int>(result)));
}

}  // namespace

Status prepare(Params& params, int processors, int64_t l2_bytes) {
    const gpu::AttentionParams& p = params.attention;
    const AttentionDesc& desc = p.desc;
    const auto [dim, dim_v] = padded_dims_mma(desc);
    const int64_t row_bytes = dim + (desc.recipe.key_bias() ? numerics::kDigitColumns : 0);
    const int64_t group = desc.q_heads_per_kv();
    const int64_t batches = p.kv_rows.varlen ? 1 : desc.batch;
    const int64_t kv_rows = batches * desc.kv_heads * p.kv_rows.rows;

    Schedule& s = params.schedule;
    s.tile_rows = static_cast<int>(kTileQ / group * group);
    s.q_tiles = static_cast<int>((desc.q_len * group + s.tile_rows - 1) / s.tile_rows);
    s.heads = static_cast<int>(desc.batch * desc.kv_heads);
    const int64_t value_bytes = gpu::element_bits(gpu::element_of(desc.recipe.pv)) / 8 * dim_v;
    const int64_t head_bytes = std::max<int64_t>(1, desc.kv_len * (row_bytes + value_bytes));
    s.chunk_heads = desc.causal == Causal::kNone
                        ? 1
                        : static_cast<int>(std::clamp<int64_t>(l2_bytes * 6 / 10 / head_bytes, 1, s.heads));
    s.items = s.q_tiles * s.heads;
    s.blocks = std::min(processors, s.items);
    s.chunk_items = s.q_tiles * s.chunk_heads;
    s.chunk_rounds = s.items;  // as if one chunk
    if (desc.causal != Causal::kNone && s.chunk_items >= s.blocks) {
        s.chunk_rounds = (s.chunk_items + s.blocks - 1) / s.blocks;
        s.chunk_items = s.chunk_rounds * s.blocks;
        s.items = (s.heads + s.chunk_heads - 1) / s.chunk_heads * s.chunk_items;
    }

    for (int byte = 0; byte < row_bytes;) {
        const RowBox box = row_box(static_cast<int>(row_bytes), byte);
        const Dim queries[] = {{row_bytes, 1, box.width()},
                               {batches * desc.q_heads, p.q_rows.rows * row_bytes, group},
                               {p.q_rows.rows, row_bytes, kTileQ / group}};
        CLARY_RETURN_IF_ERROR(encode(params.queries[box.kind], p.q_codes, queries));
        const Dim keys[] = {{row_bytes, 1, box.width()}, {kv_rows, row_bytes, kTileK}};
        CLARY_RETURN_IF_ERROR(encode(params.keys[box.kind], p.k_codes, keys));
        byte += box.width();
    }
    const Dim by_channel[] = {{kTileK, 1, kTileK}, {kv_rows / kTileK * dim_v, kTileK, dim_v}};
    const Dim by_key[] = {{value_bytes, 1, 128}, {kv_rows, value_bytes, kTileK}};
    return encode(params.values, p.v_codes, value_bytes == dim_v ? by_channel : by_key);
}

}  // namespace clary::cuda::sm90
