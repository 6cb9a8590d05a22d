// SPDX-License-Identifier: Apache-2.0
// MetaX's header, and what it has no spelling for that a host without the SDK could take over: where the block's shared
// memory is, and what the runtime calls a kernel. Such a host's own mc_runtime.h gives these instead.
#pragma once

#include <mc_runtime.h>

#include <cstdint>

#ifdef __MACACC__
#include <maca_fp16.h>

namespace clary::maca {

// Dynamic shared memory of the block; a SharedAddress counts from here.
extern __shared__ __align__(1024) unsigned char clary_shared_memory[];

template <typename V>
using SharedPointer = V*;
template <typename V>
__device__ __forceinline__ SharedPointer<V> shared_pointer(uint32_t byte) {
    return reinterpret_cast<V*>(clary_shared_memory + byte);
}

// A kernel of one parameter as the runtime knows it.
template <class Params>
const void* kernel_symbol(void (*kernel)(Params)) {
    return reinterpret_cast<const void*>(kernel);
}

}  // namespace clary::maca
#endif
