// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory that count arrivals and bytes, and the bulk copies that report to them (sm_90).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "gpu/target/target.h"

namespace clary::cuda::ptx {

// Shared-memory addresses are those of the PTX state space, 32 bits.
CLARY_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialized barriers visible to bulk copies.
CLARY_DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
CLARY_DEVICE void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// If so; without a branch.
CLARY_DEVICE void barrier_arrive_if(bool arrives, uint32_t barrier) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(barrier),
                 "r"(static_cast<int>(arrives))
                 : "memory");
}
// Arrives, and lets the phase end only after that many bytes have come.
CLARY_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Until the phase of that parity has ended.
CLARY_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
// Whether it has.
CLARY_DEVICE bool barrier_test(uint32_t barrier, uint32_t parity) {
    int done;
    asm volatile(
        "{.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.s32 %0, 1, 0, done;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
    return done != 0;
}

// Named barriers of some warps. Waits until kThreads have come; comes without waiting.
template <int kThreads>
CLARY_DEVICE void group_sync(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}
template <int kThreads>
CLARY_DEVICE void group_arrive(int barrier) {
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

// A box of a tensor to shared memory, first element at (x, y) or (x, y, z), x along rows. Outside of the tensor: zeros.
CLARY_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(x), "r"(y)
        : "memory");
}
CLARY_DEVICE void copy_box(uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}
// `bytes` and both addresses: multiples of 16.
CLARY_DEVICE void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

// A thread's stores to shared memory come before what wgmma reads behind the next barrier.
CLARY_DEVICE void stores_before_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers of a warpgroup's threads, from here on.
template <int kCount>
CLARY_DEVICE void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
CLARY_DEVICE void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace clary::cuda::ptx
