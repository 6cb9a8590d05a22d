// SPDX-License-Identifier: Apache-2.0
// The MXMACA backend as the device under test: host memory is copied to the GPU for each call, canaries and all.
#include <mc_runtime.h>

#include <cstdlib>

#include "cpu/run.h"
#include "gpu/arrangement.h"

namespace clary::cases {
namespace {

// One card at a time, the first if nobody says which: with more of them tensors would lie on one and kernels of all be asked.
[[maybe_unused]] const int one_card = setenv("MACA_VISIBLE_DEVICES", "0", 0);

class Gpu : public Device {
  public:
    const char* backend() const override { return "maca"; }
    // Of the one card that is tested at a time.
    const Arrangement& arrangement() const override {
        mcDeviceProp_t properties{};
        EXPECT_EQ(mcGetDeviceProperties(&properties, 0), mcSuccess);
        return gpu::arrangement_of(properties.major == 15 ? gpu::kXcore1500 : gpu::kXcore1000);
    }
    clary_device type() const override { return CLARY_MACA; }
    void* upload(const void* host, size_t bytes) override {
        void* data = nullptr;
        EXPECT_EQ(mcMalloc(&data, bytes), mcSuccess) << bytes << " bytes";
        EXPECT_EQ(mcMemcpy(data, host, bytes, mcMemcpyHostToDevice), mcSuccess);
        return data;
    }
    void download(void* device, void* host, size_t bytes) override {
        EXPECT_EQ(mcMemcpy(host, device, bytes, mcMemcpyDeviceToHost), mcSuccess) << mcGetErrorString(mcGetLastError());
        EXPECT_EQ(mcFree(device), mcSuccess);
    }
    const std::vector<const char*>& recipes() const override {
        static const std::vector<const char*> all = quantized_recipes(
            {"int8_fp16+tile=64", "fp16_fp16", "bf16_bf16", "int8_int8+granularity=per_tensor+tile=64",
             "int8_fp16:fast+granularity=per_tensor+smooth_q", "int4_int8+tile=64", "int4_fp16+tile=64", "int8_fp8",
             "int8_fp8:fast+v_scale=channel_tile+smooth_v+tile=64", "int4_fp8"});
        return all;
    }
};

}  // namespace

Device& device_under_test() {
    static Gpu gpu;
    return gpu;
}

}  // namespace clary::cases
