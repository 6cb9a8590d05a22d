// SPDX-License-Identifier: Apache-2.0
// Speed of Hopper's attention kernels alone, on random packed operands, each result compared with that of the mma.sync
// kernel, for bytes of P bit by bit: a program that compiles in seconds, for trying variants of the kernel.
//
//   bench_sm90_attention [S ..]      default: 1024 4096 16384; B S = 32768 tokens, H D = 2048; TOPS of 2 B H S S (D + D of V)
//                                    (causal half) operations, median of 5 rounds
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/archs.h"
#include "cuda/sm90/attention_kernel.cuh"
#include "cuda/sm90/tensor_maps.h"
#include "gpu/attention/attention_kernel.h"
#include "gpu/attention/configs.h"

namespace {

using namespace clary;
namespace sm90 = clary::cuda::sm90;

// The two kernels of a config. (nvcc cannot name __global__ templates over a struct's values.)
template <gpu::Element kV, int kHeadDim, int kHeadDimV, bool kKeyBias>
struct Case {
    static constexpr sm90::Config kConfig{kV, kHeadDim, kHeadDimV, kKeyBias, false};
    static constexpr gpu::AttentionConfig kPlainConfig =
        gpu::config_for({gpu::Element::kS8, kV, kHeadDim, kHeadDimV, sm90::kTileK, kKeyBias,
                         kConfig.scales_keys() ? gpu::KeyScales::kKey : gpu::KeyScales::kLane, false});
    using Kernel = sm90::Attention<kConfig>;
    using Plain = gpu::AttentionKernel<gpu::Nvidia<cuda::machine_of(90)>, kPlainConfig>;
};
template <class C>
__global__ void __launch_bounds__(sm90::kThreads, 1) wgmma_kernel(const __grid_constant__ sm90::Params params) {
    C::Kernel::run(params);
}
template <class C>
__global__ void __launch_bounds__(C::kPlainConfig.waves * 32, C::kPlainConfig.blocks)
    mma_kernel(const __grid_constant__ gpu::AttentionParams params) {
    C::Plain::run(params);
}

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

// A problem on the device, its packed operands full of random codes and plausible scales.
class Problem {
  public:
    Problem(const sm90::Config& config, int64_t length, bool causal) {
        const int64_t dim = config.head_dim, dim_v = config.head_dim_v, heads = 2048 / dim, batch = 32768 / length;
        AttentionDesc& d = desc_;
        d.batch = batch;
        d.q_heads = d.kv_heads = heads;
        d.q_len = d.kv_len = d.q_tokens = d.kv_tokens = length;
        d.head_dim = dim;
        d.head_dim_v = dim_v;
        d.scale = 1 / std::sqrt(static_cast<double>(dim));
        d.causal = causal ? Causal::kBottomRight : Causal::kNone;
        Recipe& r = d.recipe;
        r.qk = Format::kInt8;
        r.pv = config.v == gpu::Element::kS8    ? Format::kInt8
               : config.fp8()                   ? Format::kFp8
               : config.v == gpu::Element::kF16 ? Format::kFp16
                                                : Format::kBf16;
        r.smooth_k = r.smooth_q = r.rotate_qk = config.key_bias;
        r.rotate_v = config.key_bias && config.v == gpu::Element::kS8;
        r.tile = sm90::kTileK;
        r.v_scale = config.direct() ? VScale::kNone : r.rotate_v ? VScale::kToken : VScale::kChannel;
        r.granularity = config.scales_keys() ? numerics::Granularity::kPerToken : numerics::Granularity::kFine;

        out_bytes_ = batch * length * heads * dim_v * 2;
        check(cudaMalloc(&out_, out_bytes_), "cudaMalloc");
        d.out = {out_, DType::kBF16, heads * length * dim_v, length * dim_v, dim_v, 1};
        q_ = upload(packed_q_layout(d, kMmaArrangement), dim);
        kv_ = upload(packed_kv_layout(d, 0, kMmaArrangement), dim);
        params_ = gpu::attention_params(d, 0, q_, kv_);
    }
    ~Problem() {
        for (void* memory : {q_, kv_, out_}) cudaFree(memory);
    }
    Problem(const Problem&) = delete;

    const gpu::AttentionParams& params() const { return params_; }
    void poison() const { check(cudaMemset(out_, 0xff, out_bytes_), "cudaMemset"); }
    std::vector<uint16_t> result() const {
        std::vector<uint16_t> bits(out_bytes_ / 2);
        check(cudaMemcpy(bits.data(), out_, out_bytes_, cudaMemcpyDeviceToHost), "cudaMemcpy");
        return bits;
    }
    double operations() const {
        const AttentionDesc& d = desc_;
        return (d.causal == Causal::kNone ? 2.0 : 1.0) * static_cast<double>(d.batch * d.q_heads) *
               static_cast<double>(d.q_len * d.kv_len * (d.head_dim + d.head_dim_v));
    }

  private:
    void* upload(const PackedLayout& layout, int64_t dim) {
        std::vector<char> host(static_cast<size_t>(layout.bytes));
        for (int32_t i = 0; i < layout.section_count; ++i) fill(layout.sections[i], host.data(), dim);
        write_header(desc_, layout, host.data(), 0);
        void* device = nullptr;
        check(cudaMalloc(&device, host.size()), "cudaMalloc");
        check(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
        return device;
    }
    void fill(const clary_section& section, char* buffer, int64_t dim) {
        int64_t count = 1;
        for (int i = 0; i < section.ndim; ++i) count *= section.shape[i];
        const std::string name = section.name;
        char* const at = buffer + section.offset;
        if (name == "v_codes" && desc_.recipe.pv == Format::kFp8) {
            for (int64_t i = 0; i < count; ++i)
                at[i] = static_cast<char>(
                    numerics::E4m3::from_float(2 * static_cast<float>(codes_[generator_() % codes_.size()])).bits);
        } else if (name == "v_codes" && desc_.recipe.pv != Format::kInt8) {
            std::vector<uint16_t> values;
            for (const char code : codes_) {
                const float value = static_cast<float>(code) / 32;
                values.push_back(desc_.recipe.pv == Format::kFp16 ? numerics::Fp16::from_float(value).bits
                                                                  : numerics::Bf16::from_float(value).bits);
            }
            for (int64_t i = 0; i < count; ++i)
                reinterpret_cast<uint16_t*>(at)[i] = values[generator_() % values.size()];
        } else if (name == "v_scale" && desc_.recipe.v_scale == VScale::kNone) {
            for (int64_t i = 0; i < count; ++i) reinterpret_cast<float*>(at)[i] = 1;
        } else if (name == "q_codes" || name == "k_codes" || name == "v_codes") {
            const int64_t columns = name == "v_codes" ? sm90::kTileK : section.shape[section.ndim - 1];
            for (int64_t i = 0; i < count; ++i)
                at[i] = i % columns < dim || name == "v_codes" ? codes_[generator_() % codes_.size()]
                        : name == "q_codes"                    ? 60
                                                               : static_cast<char>(i / columns % 9 - 4);
        } else if (name == "q_repeat") {
            std::memset(at, 60, static_cast<size_t>(count));
        } else if (name == "v_weight") {
            for (int64_t i = 0; i < count; ++i) at[i] = static_cast<char>(15 + generator_() % 20);
        } else if (name == "lengths") {
            for (int64_t i = 0; i < count; ++i) reinterpret_cast<int64_t*>(at)[i] = desc_.kv_len;
        } else if (name != "header") {
            auto* const x = reinterpret_cast<float*>(at);
            for (int64_t i = 0; i < count; ++i) {
                x[i] = (0.8f + 0.4f * static_cast<float>(generator_() % 1000) / 1000) / 32;
                // Keys of a group (numerics/scale_groups.h) have the scale of its first.
                if (name == "k_scale" && desc_.recipe.granularity == numerics::Granularity::kFine)
                    x[i] = x[i / 64 * 64 + i % 8 / 2 * 2];
            }
        }
    }

    AttentionDesc desc_;
    gpu::AttentionParams params_;
    void *q_ = nullptr, *kv_ = nullptr, *out_ = nullptr;
    size_t out_bytes_ = 0;
    std::minstd_rand generator_{1};
    std::vector<char> codes_ = [] {
        std::minstd_rand generator(2);
        std::normal_distribution<float> normal(0, 32);
        std::vector<char> codes(1 << 16);
        for (char& code : codes) code = static_cast<char>(std::clamp(std::lround(normal(generator)), -127l, 127l));
        return codes;
    }();
};

template <class Run>
double median_ms(const Run& run, int calls) {
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    std::vector<float> times;
    for (int round = 0; round < 6; ++round) {  // the first to warm up
        check(cudaEventRecord(begin), "cudaEventRecord");
        for (int i = 0; i < calls; ++i) run();
        check(cudaEventRecord(end), "cudaEventRecord");
        check(cudaEventSynchronize(end), "kernel");
        float ms = 0;
        check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
        if (round > 0) times.push_back(ms / static_cast<float>(calls));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

float value_of(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

template <class C>
bool measure(const std::vector<int64_t>& lengths) {
    using Kernel = typename C::Kernel;
    using Plain = typename C::Plain;
    constexpr sm90::Config kConfig = C::kConfig;
    const auto allow = [](const void* kernel, uint32_t bytes) {
        check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
              "cudaFuncSetAttribute");
    };
    allow(reinterpret_cast<const void*>(wgmma_kernel<C>), Kernel::kSharedBytes);
    allow(reinterpret_cast<const void*>(mma_kernel<C>), Plain::kSharedBytes);
    cudaDeviceProp device;
    check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    bool same = true;
    const char* const recipe = kConfig.v == gpu::Element::kS8    ? "int8_int8"
                               : kConfig.fp8()                   ? "int8_fp8"
                               : kConfig.v == gpu::Element::kF16 ? "int8_fp16"
                                                                 : "int8_bf16";
    std::printf("%s D %3d %3d %-8s", recipe, kConfig.head_dim, kConfig.head_dim_v,
                kConfig.key_bias ? "accurate" : "fast");
    for (const int64_t length : lengths)
        for (const bool causal : {false, true}) {
            const Problem problem(kConfig, length, causal);
            sm90::Params params;
            params.attention = problem.params();
            if (const Status status = sm90::prepare(params, device.multiProcessorCount, device.l2CacheSize);
                !status.is_ok()) {
                std::fprintf(stderr, "%s\n", status.text().c_str());
                std::exit(1);
            }
            const auto run = [&] {
                wgmma_kernel<C><<<params.schedule.blocks, sm90::kThreads, Kernel::kSharedBytes>>>(params);
            };
            problem.poison();
            run();
            const std::vector<uint16_t> bits = problem.result();
            problem.poison();
            mma_kernel<C><<<static_cast<unsigned>(gpu::attention_blocks(params.attention.desc, Plain::kTileQ)),
                            Plain::kThreads, Plain::kSharedBytes>>>(params.attention);
            const std::vector<uint16_t> expected = problem.result();
            float highest = 0;
            for (const uint16_t x : expected) highest = std::max(highest, std::fabs(value_of(x)));
            bool agrees = true;  // other P: but for roundings to bf16; NaN does not
            for (size_t i = 0; i < bits.size(); ++i)
                agrees = agrees && (kConfig.v == gpu::Element::kS8
                                        ? bits[i] == expected[i]
                                        : std::fabs(value_of(bits[i]) - value_of(expected[i])) <= highest / 64);
            same = same && agrees;
            const double tops = problem.operations() / median_ms(run, length > 4096 ? 4 : 10) / 1e9;
            std::printf("  S %lld%s %.0f%s", static_cast<long long>(length), causal ? " causal" : "", tops,
                        agrees ? "" : " (differs)");
            std::fflush(stdout);
        }
    std::printf("\n");
    return same;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<int64_t> lengths;
    for (int i = 1; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
    if (lengths.empty()) lengths = {1024, 4096, 16384};
    using enum gpu::Element;
    bool same = true;
    const auto both = [&]<gpu::Element kV, int kHeadDim, int kHeadDimV = kHeadDim>() {
        same &= measure<Case<kV, kHeadDim, kHeadDimV, true>>(lengths);
        same &= measure<Case<kV, kHeadDim, kHeadDimV, false>>(lengths);
    };
    both.operator()<kS8, 64>();
    both.operator()<kS8, 96>();
    both.operator()<kS8, 128>();
    both.operator()<kS8, 192, 128>();
    both.operator()<kS8, 192>();
    both.operator()<kS8, 256>();
    both.operator()<kE4m3, 64>();
    both.operator()<kE4m3, 96>();
    both.operator()<kE4m3, 128>();
    both.operator()<kE4m3, 192, 128>();
    both.operator()<kE4m3, 192>();
    both.operator()<kE4m3, 256>();
    both.operator()<kF16, 64>();
    both.operator()<kF16, 96>();
    both.operator()<kF16, 128>();
    return same ? 0 : 1;
}
