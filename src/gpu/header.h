// SPDX-License-Identifier: Apache-2.0
// Headers of packed buffers (core/packed.h) on a GPU: written by the kernels that pack, checked by those that read, because
// the host cannot look into device memory without waiting. See docs/decisions/0008-packed-buffers-on-a-gpu.md.
#pragma once

#include "core/packed.h"
#include "gpu/target/target.h"

namespace clary::gpu {

// Of a packed Q and a packed K and V. Null: not of this call.
struct Headers {
    PackedHeader expected_q{}, expected_kv{};  // expected_header() of the layouts
    PackedHeader* q = nullptr;
    PackedHeader* kv = nullptr;
};

// By one thread of the grid, where the buffers are packed.
CLARY_DEVICE void write_headers(const Headers& headers, const AttentionDesc& desc) {
    const uint64_t sequences = sequences_id(desc);
    if (headers.q != nullptr) {
        *headers.q = headers.expected_q;
        headers.q->sequences = sequences;
    }
    if (headers.kv != nullptr) {
        *headers.kv = headers.expected_kv;
        headers.kv->sequences = sequences;
    }
}

CLARY_DEVICE bool is_packed_as(const PackedHeader& header, const PackedHeader& expected) {
    return header.format == expected.format && header.layout == expected.layout && header.scale == expected.scale;
}

// Whether the buffers were packed for this call, and for the same sequences. Where not, every row of the result is NaN.
CLARY_DEVICE bool headers_match(const Headers& headers) {
    return is_packed_as(*headers.q, headers.expected_q) && is_packed_as(*headers.kv, headers.expected_kv) &&
           headers.q->sequences == headers.kv->sequences;
}

}  // namespace clary::gpu
