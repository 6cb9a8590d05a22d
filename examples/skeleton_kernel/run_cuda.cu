// SPDX-License-Identifier: Apache-2.0
// Runs the skeleton kernel on an NVIDIA GPU and compares with plain loops: the same kernel text as in run_simulated.cc.
//
//   nvcc -std=c++20 -O3 -I src -gencode arch=compute_90a,code=sm_90a -cudart static
//        examples/skeleton_kernel/run_cuda.cu -o skeleton_cuda && ./skeleton_cuda
#include <cstdio>

#include "gpu/target/nvidia.h"
#include "problem.h"
#include "skeleton_kernel.h"

namespace {

using namespace clary;
using examples::SkeletonConfig;

template <class Kernel>
__global__ void skeleton(examples::SkeletonParams params) {
    Kernel::run(params);
}

bool check(cudaError_t error) {
    if (error != cudaSuccess) std::printf("CUDA: %s\n", cudaGetErrorString(error));
    return error == cudaSuccess;
}

// Device copy of a vector, filled with NaN where there is nothing to copy.
template <typename T>
struct OnDevice {
    T* data = nullptr;
    explicit OnDevice(const std::vector<T>& from) {
        check(cudaMalloc(&data, from.size() * sizeof(T)));
        check(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    explicit OnDevice(size_t count) {
        check(cudaMalloc(&data, count * sizeof(T)));
        check(cudaMemset(data, 0xff, count * sizeof(T)));
    }
    ~OnDevice() { cudaFree(data); }
    std::vector<T> read(size_t count) const {
        std::vector<T> to(count);
        check(cudaMemcpy(to.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return to;
    }
};

template <gpu::Machine kMachine, SkeletonConfig kConfig>
bool verify(int q_len, int k_len) {
    using Kernel = examples::SkeletonKernel<gpu::Nvidia<kMachine>, kConfig>;
    const examples::Problem problem(q_len, k_len, kConfig.head_dim);
    const OnDevice<examples::Bytes> q(problem.q), k(problem.k);
    const OnDevice<float> q_scale(problem.q_scale), k_scale(problem.k_scale), s(problem.expected_s.size()),
        row_max(problem.expected_max.size());
    const examples::SkeletonParams params{q.data->byte, k.data->byte,  q_scale.data, k_scale.data,
                                          s.data,       row_max.data, q_len,        k_len};
    bool ok = check(cudaFuncSetAttribute(skeleton<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(Kernel::kSharedBytes)));
    const int blocks = (q_len + kConfig.tile_q - 1) / kConfig.tile_q;
    skeleton<Kernel><<<blocks, Kernel::kThreads, Kernel::kSharedBytes>>>(params);
    ok = check(cudaGetLastError()) && check(cudaDeviceSynchronize()) && ok;
    const std::string difference =
        problem.difference(s.read(problem.expected_s.size()), row_max.read(problem.expected_max.size()));
    std::printf("%-6s head_dim %3d, %4d x %4d: %s\n", gpu::machine_name(kMachine), kConfig.head_dim, q_len, k_len,
                difference.empty() ? "ok" : difference.c_str());
    return ok && difference.empty();
}

template <gpu::Machine kMachine>
bool verify_machine() {
    bool right = true;
    for (const auto& [q_len, k_len] : {std::pair{150, 333}, {1, 1}, {64, 64}, {65, 63}, {1000, 1111}}) {
        right = verify<kMachine, SkeletonConfig{64, 64, 128, 4}>(q_len, k_len) && right;
        right = verify<kMachine, SkeletonConfig{64, 64, 64, 4}>(q_len, k_len) && right;
        right = verify<kMachine, SkeletonConfig{64, 32, 96, 2}>(q_len, k_len) && right;
        right = verify<kMachine, SkeletonConfig{64, 32, 256, 4}>(q_len, k_len) && right;
    }
    return right;
}

}  // namespace

// sm75's and sm80's kernels run on every later chip.
int main() {
    bool right = verify_machine<gpu::kSm75>();
    right = verify_machine<gpu::kSm80>() && right;
    std::printf("%s\n", right ? "all right" : "WRONG");
    return right ? 0 : 1;
}
