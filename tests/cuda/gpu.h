// SPDX-License-Identifier: Apache-2.0
// Device memory and streams for the tests of the CUDA backend.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "clary/clary.h"

namespace clary::cases {

// Why the tests cannot run here, "" where they can.
const char* no_gpu_here();

#define CLARY_SKIP_WITHOUT_GPU() \
    if (*::clary::cases::no_gpu_here() != '\0') GTEST_SKIP() << ::clary::cases::no_gpu_here()

#define CLARY_CUDA_OK(call) ASSERT_EQ((call), cudaSuccess) << cudaGetErrorString(cudaGetLastError())

// All bytes 0xff, NaN in every float type.
class GpuMemory {
  public:
    explicit GpuMemory(size_t bytes) : bytes_(bytes) {
        EXPECT_EQ(cudaMalloc(&data_, bytes + 1), cudaSuccess) << bytes << " bytes";
        EXPECT_EQ(cudaMemset(data_, 0xff, bytes), cudaSuccess);
    }
    ~GpuMemory() { cudaFree(data_); }
    GpuMemory(const GpuMemory&) = delete;
    GpuMemory& operator=(const GpuMemory&) = delete;

    void* data() const { return data_; }
    size_t size() const { return bytes_; }
    template <typename T>
    void write(const std::vector<T>& from) {
        EXPECT_EQ(cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
    }
    template <typename T>
    std::vector<T> read(size_t count) const {
        std::vector<T> to(count);
        EXPECT_EQ(cudaMemcpy(to.data(), data_, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
        return to;
    }

  private:
    void* data_ = nullptr;
    size_t bytes_;
};

class Stream {
  public:
    Stream() { EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess); }
    ~Stream() { cudaStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    cudaStream_t get() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

// What a call queued on a stream, to be launched again and again.
class Graph {
  public:
    template <class Call>
    Graph(const Stream& stream, const Call& call) : stream_(stream.get()) {
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        const clary_status status = call();
        EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
        EXPECT_EQ(status, CLARY_OK) << clary_last_error();
        EXPECT_EQ(cudaGraphInstantiate(&executable_, graph, 0), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    ~Graph() { EXPECT_EQ(cudaGraphExecDestroy(executable_), cudaSuccess); }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    // And waits for its end.
    void replay() const {
        CLARY_CUDA_OK(cudaGraphLaunch(executable_, stream_));
        CLARY_CUDA_OK(cudaStreamSynchronize(stream_));
    }

  private:
    cudaStream_t stream_;
    cudaGraphExec_t executable_ = nullptr;
};

// [batch, heads, tokens, dim] in device memory with the given strides (the last is 1).
inline clary_tensor gpu_view(void* data, clary_dtype dtype, const std::vector<int64_t>& shape,
                             const std::vector<int64_t>& stride) {
    clary_tensor t{};
    t.data = data;
    t.dtype = dtype;
    t.device = CLARY_CUDA;
    t.ndim = static_cast<int32_t>(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) {
        t.shape[i] = shape[i];
        t.stride[i] = stride[i];
    }
    return t;
}

// Uniform in -1.7..1.7 (variance about 1) and the same on every machine: from the element's index alone.
inline float value_at(uint64_t index, uint64_t seed) {
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<float>(static_cast<double>((x ^ (x >> 31)) >> 40) * 0x1p-24 * 3.4 - 1.7);
}

}  // namespace clary::cases
