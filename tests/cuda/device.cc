// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as the device under test: host memory is copied to the GPU for each call, canaries and all.
#include <string>

#include "cpu/run.h"
#include "cuda/gpu.h"

namespace clary::cases {
namespace {

class Gpu : public Device {
  public:
    const char* backend() const override { return "cuda"; }
    const Arrangement& arrangement() const override { return kMmaArrangement; }
    clary_device type() const override { return CLARY_CUDA; }
    void* upload(const void* host, size_t bytes) override {
        void* data = nullptr;
        EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess) << bytes << " bytes";
        EXPECT_EQ(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice), cudaSuccess);
        return data;
    }
    void download(void* device, void* host, size_t bytes) override {
        EXPECT_EQ(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), cudaSuccess)
            << cudaGetErrorString(cudaGetLastError());
        EXPECT_EQ(cudaFree(device), cudaSuccess);
    }
    const std::vector<const char*>& recipes() const override {
        static const std::vector<const char*> all =
            quantized_recipes({"int8_fp16+tile=64", "int8_fp8", "int8_fp8:fast", "int8_fp8:fast+accum=fp32_fp16",
                               "int8_fp16+accum=fp16", "int8_fp16+accum=fp16_fp32+tile=64", "int4_int8",
                               "int4_fp16+tile=64", "int4_fp8", "fp16_fp16", "bf16_bf16"});
        return all;
    }
};

}  // namespace

Device& device_under_test() {
    static Gpu gpu;
    return gpu;
}

const char* no_gpu_here() {
    static const std::string reason = [] {
        std::string last = "this build has no CUDA kernels";
        for (int32_t i = 0; i < clary_kernel_count(); ++i) {
            clary_kernel_info info{};
            info.struct_size = sizeof(info);
            EXPECT_EQ(clary_kernel_get(i, &info), CLARY_OK);
            if (std::string(info.backend) != "cuda") continue;
            if (info.usable) return std::string();
            // What a kernel of this build says, rather than one that was not built.
            if (std::string(info.reason).find("this build") == std::string::npos) last = info.reason;
        }
        return last;
    }();
    return reason.c_str();
}

}  // namespace clary::cases
