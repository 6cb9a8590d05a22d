// SPDX-License-Identifier: Apache-2.0
// What a scheduler of Hopper issues: cycles of one warp for an instruction that P is made of, and for all of a tile's, by one, two
// or three warps of a scheduler, alone and while a warpgroup multiplies without pause. (Products take register ports that others
// then miss: docs/kernels/sm90.md.)
//
//   bench_instruction_rates       a few seconds; in brackets cycles of a product of 64 x 128 x 32 then (64 x 64 x 32 with A in
//                                 registers), which alone takes 64 (32)
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cuda/ptx/copies.cuh"
#include "cuda/ptx/wgmma.cuh"

namespace {

using namespace clary::cuda;

enum class Products { kNone, kShared, kRegisters };  // where A lies

constexpr int kChains = 16;   // independent of each other
constexpr int kRounds = 800;  // of a kernel
constexpr int kWarps = 3;     // of a scheduler, at most; a fourth multiplies
constexpr uint32_t kOperands = 32 * 1024, kBytes = kOperands + kWarps * 128 * 16 * 4;

__device__ float ex2(float x) {
    asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
__device__ void fma(float& x, float a, float b) {
    asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(a), "f"(b));
}
__device__ float to_float(int x) {
    float y;
    asm volatile("cvt.rn.f32.s32 %0, %1;" : "=f"(y) : "r"(x));
    return y;
}
// Two floats to bytes, in front of two others.
__device__ uint32_t pack2(float a, float b, uint32_t others) {
    uint32_t word;
    int x, y;
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(x) : "f"(a));
    asm("cvt.rni.s32.f32 %0, %1;" : "=r"(y) : "f"(b));
    asm volatile("cvt.pack.sat.u8.s32.b32 %0, %2, %1, %3;" : "=r"(word) : "r"(x), "r"(y), "r"(others));
    return word;
}

struct Lane {
    float f[kChains];
    int i[kChains];
    float a, b;  // known to nobody before
    int m, n;
    uint32_t scores;  // in shared memory

    // 16 scores or sums, as products would leave them.
    __device__ void load() {
        for (int j = 0; j < kChains; j += 4)
            asm volatile("ld.volatile.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(i[j]), "=r"(i[j + 1]), "=r"(i[j + 2]), "=r"(i[j + 3])
                         : "r"(scores + static_cast<uint32_t>(j * 512)));
    }
};

// Each kOps instructions in a round, or what a quarter of a tile of 128 keys takes.
struct Mufu {
    static constexpr const char* kName = "MUFU.EX2";
    static constexpr double kOps = kChains;
    __device__ static void run(Lane& l) {
        for (float& x : l.f) x = ex2(x);
    }
};
struct ToFloat {
    static constexpr const char* kName = "I2FP";
    static constexpr double kOps = kChains;
    __device__ static void run(Lane& l) {
        for (int& x : l.i) x = __float_as_int(to_float(x));
    }
};
struct ToBytes {
    static constexpr const char* kName = "F2IP";
    static constexpr double kOps = kChains;
    __device__ static void run(Lane& l) {
        for (float& x : l.f) x = __uint_as_float(pack2(l.a, x, static_cast<uint32_t>(l.m)));
    }
};
struct Maximum {
    static constexpr const char* kName = "VIMNMX3";
    static constexpr double kOps = kChains;
    __device__ static void run(Lane& l) {
        for (int& x : l.i) {
            x = max(max(x, l.m), l.n);
            asm volatile("" : "+r"(x));
        }
    }
};
struct Dot {
    static constexpr const char* kName = "IDP.4A";
    static constexpr double kOps = kChains;
    __device__ static void run(Lane& l) {
        for (int& x : l.i) {
            x = __dp4a(l.m, l.n, x);
            asm volatile("" : "+r"(x));
        }
    }
};
struct Fma {
    static constexpr const char* kName = "FFMA";
    static constexpr double kOps = kChains;
    __device__ static void run(Lane& l) {
        for (float& x : l.f) fma(x, l.a, l.b);
    }
};
// Scores to bytes of P, their sums, and the scores' maximum.
template <int kSoft>
struct Weights {
    static constexpr const char* kName = kSoft == 0   ? "P, 64 of a lane"
                                         : kSoft == 8 ? "P, 1 of 8 by FMA"
                                                      : "P, 1 of 4 by FMA";
    static constexpr double kOps = 0.25;
    // 2^(32 x - 24) of x in 0 .. 1, in seven instructions.
    __device__ static float soft(float x) {
        constexpr float kMagic = 12582912.0f - 24.0f;
        float t = x;
        fma(t, 32.0f, kMagic);
        const float whole = t - kMagic;
        fma(x, 32.0f, -whole);
        float p = x;
        fma(p, 0x1.c3f760p-5f, 0x1.f0de1ap-3f);
        p = __fmaf_rn(p, x, 0x1.62f31ap-1f);
        p = __fmaf_rn(p, x, 0x1.fff692p-1f);
        return __int_as_float(__float_as_int(p) + (__float_as_int(t) << 23));
    }
    __device__ static void run(Lane& l) {
        l.load();
        int top = l.m;
        for (int j = 0; j < kChains; j += 2) top = max(max(top, l.i[j]), l.i[j + 1]);
        float e[kChains];
        for (int j = 0; j < kChains; ++j) {
            e[j] = static_cast<float>(l.i[j]);
            fma(e[j], l.a, l.b);
        }
        for (int j = 0; j < kChains; ++j) e[j] = kSoft != 0 && j % kSoft == kSoft - 1 ? soft(e[j]) : ex2(e[j]);
        int sum = 0;
        for (int j = 0; j < kChains; j += 4) {
            const uint32_t word = pack2(e[j], e[j + 1], pack2(e[j + 2], e[j + 3], 0));
            sum = __dp4a(static_cast<int>(word), l.n, sum);
            l.f[j] = __uint_as_float(word);
            asm volatile("" : "+f"(l.f[j]));
        }
        l.m = top + sum;
    }
};
// O takes sums of a tile.
struct Flush {
    static constexpr const char* kName = "O += T, 64 of a lane";
    static constexpr double kOps = 0.25;
    __device__ static void run(Lane& l) {
        l.load();
        for (int j = 0; j < kChains; ++j)
            asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(l.f[j]) : "f"(static_cast<float>(l.i[j])), "f"(l.a));
    }
};

template <class Work, Products kProducts>
__global__ void __launch_bounds__((kWarps + 1) * 128, 1)
    measure(float* sink, long long* cycles, int warps, float4 unknown) {
    extern __shared__ __align__(1024) char memory[];
    __shared__ volatile float own[4];
    __shared__ int ended;
    __shared__ volatile int stop;
    const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0);
    const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    if (threadIdx.x == 0) {
        ended = 0;
        own[0] = unknown.x, own[1] = unknown.y, own[2] = unknown.z, own[3] = unknown.w;
    }
    __syncthreads();
    if (kProducts != Products::kNone && group == kWarps) {
        constexpr int kResults = kProducts == Products::kShared ? 64 : 32;
        int32_t d[kResults];
        for (int32_t& x : d) x = 0;
        ptx::pin(d);
        const uint32_t a[4] = {1, 2, 3, 4};
        const long long begin = clock64();
        int count = 0;
        for (bool more = true; more;) {
            for (int batch = 0; batch < 4; ++batch, count += 8) {
                ptx::wgmma_fence();
                for (int k = 0; k < 8; ++k) {
                    const ptx::Matrix b = ptx::matrix<128>(base + kOperands / 2) + 32 * (k % 4);
                    if constexpr (kProducts == Products::kShared)
                        ptx::multiply_s8<true>(d, ptx::matrix<128>(base) + 32 * (k % 4), b);
                    else
                        ptx::multiply_u8<true>(d, a, b);
                }
                ptx::wgmma_commit();
                ptx::wgmma_wait<0>();
                ptx::pin(d);
            }
            // All warps end together: a product is of four.
            if (threadIdx.x == kWarps * 128) stop = *const_cast<volatile int*>(&ended) >= warps;
            ptx::group_sync<128>(1);
            more = stop == 0;
            ptx::group_sync<128>(1);
        }
        int sum = 0;
        for (const int32_t x : d) sum += x;
        sink[threadIdx.x] = static_cast<float>(sum);
        if (blockIdx.x == 0 && threadIdx.x == kWarps * 128) cycles[1] = (clock64() - begin) / count;
    } else if (group < warps) {
        Lane l;
        l.a = own[0], l.b = own[1];
        l.m = __float_as_int(own[2]), l.n = __float_as_int(own[3]);
        l.scores = base + kOperands + threadIdx.x * 16;
        for (int j = 0; j < kChains; ++j) {
            l.f[j] = l.a * static_cast<float>(j);
            l.i[j] = l.m * j;
        }
        const long long begin = clock64();
#pragma unroll 1
        for (int round = 0; round < kRounds; round += 4) {
            Work::run(l);
            Work::run(l);
            Work::run(l);
            Work::run(l);
        }
        const long long end = clock64();
        float sum = static_cast<float>(l.m);
        for (int j = 0; j < kChains; ++j) sum += l.f[j] + static_cast<float>(l.i[j]);
        sink[threadIdx.x] = sum;
        if (threadIdx.x % 128 == 0) atomicAdd(&ended, 1);
        if (blockIdx.x == 0 && threadIdx.x == 0) cycles[0] = end - begin;
    }
}

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

template <class Work, Products kProducts>
void print(float* sink, long long* cycles, int blocks) {
    check(cudaFuncSetAttribute(measure<Work, kProducts>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "cudaFuncSetAttribute");
    for (int warps = 1; warps <= kWarps; ++warps) {
        for (int i = 0; i < 2; ++i)  // the first to warm up
            measure<Work, kProducts><<<blocks, (kWarps + 1) * 128, kBytes>>>(sink, cycles, warps, {0.01f, 0.5f, 3, 5});
        check(cudaDeviceSynchronize(), "kernel");
        std::printf(" %7.2f", static_cast<double>(cycles[0]) / (kRounds * Work::kOps * warps));
    }
    if (kProducts != Products::kNone) std::printf(" (%lld)", cycles[1]);
}
template <class Work>
void print(float* sink, long long* cycles, int blocks) {
    std::printf("%-20s", Work::kName);
    print<Work, Products::kNone>(sink, cycles, blocks);
    std::printf("  |");
    print<Work, Products::kShared>(sink, cycles, blocks);
    std::printf("  |");
    print<Work, Products::kRegisters>(sink, cycles, blocks);
    std::printf("\n");
}

}  // namespace

int main() {
    float* sink = nullptr;
    long long* cycles = nullptr;
    cudaDeviceProp device;
    check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    check(cudaMalloc(&sink, (kWarps + 1) * 128 * sizeof(float)), "cudaMalloc");
    check(cudaMallocManaged(&cycles, 2 * sizeof(long long)), "cudaMallocManaged");
    const auto all = [&]<class... Work>() { (print<Work>(sink, cycles, device.multiProcessorCount), ...); };
    std::printf("cycles; 1, 2, 3 warps alone | beside products | beside products with A in registers\n");
    all.operator()<Mufu, ToFloat, ToBytes, Maximum, Dot, Fma, Weights<0>, Weights<8>, Weights<4>, Flush>();
    return 0;
}
