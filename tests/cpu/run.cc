// SPDX-License-Identifier: Apache-2.0
#include "cpu/run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cases/tolerances.h"
#include "core/types.h"
#include "reference/unpack.h"

namespace clary::cases {

const std::vector<const char*>& tiers() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> found;
        for (int32_t i = 0; i < clary_kernel_count(); ++i) {
            clary_kernel_info info{};
            info.struct_size = sizeof(info);
            EXPECT_EQ(clary_kernel_get(i, &info), CLARY_OK);
            const std::string name = std::string(info.backend) + ":" + info.arch;
            if (std::strcmp(info.backend, device_under_test().backend()) == 0 && info.usable &&
                (found.empty() || found.back() != name))
                found.push_back(name);
        }
        return found;
    }();
    static const std::vector<const char*> pointers = [] {
        std::vector<const char*> all;
        for (const std::string& name : names) all.push_back(name.c_str());
        return all;
    }();
    return pointers;
}

namespace {

std::vector<clary_tensor*> tensors_of(clary_attention_params* params) {
    clary_attention_params& p = *params;
    return {&p.q,
            &p.k,
            &p.v,
            &p.out,
            &p.lse,
            &p.mask,
            &p.kv_lengths,
            &p.alibi_slopes,
            &p.sinks,
            &p.cu_seqlens_q,
            &p.cu_seqlens_k,
            &p.block_table,
            &p.causal_offsets,
            &p.c_k,
            &p.c_q,
            &p.q_base};
}

// As tensors on the device under test, for questions about shapes.
clary_attention_params on_device(clary_attention_params params) {
    for (clary_tensor* tensor : tensors_of(&params)) tensor->device = device_under_test().type();
    return params;
}

std::vector<Guarded*> with_memory(std::vector<Guarded*> memory, std::initializer_list<Guarded*> more) {
    memory.insert(memory.end(), more);
    return memory;
}

class Host : public Device {
  public:
    const char* backend() const override { return "cpu"; }
    const Arrangement& arrangement() const override { return kCpuArrangement; }
    clary_device type() const override { return CLARY_CPU; }
    void* upload(const void* host, size_t) override { return const_cast<void*>(host); }
    void download(void*, void*, size_t) override {}
    const std::vector<const char*>& recipes() const override {
        static const std::vector<const char*> all = quantized_recipes({"fp32_fp32", "fp32_fp32+tile=64"});
        return all;
    }
};

}  // namespace

std::vector<const char*> quantized_recipes(std::initializer_list<const char*> more) {
    std::vector<const char*> all = {
        "int8_int8",
        "int8_int8:fast",
        "int8_int8+v_scale=channel_tile+smooth_v+tile=64",
        "int8_int8:fast+granularity=per_warp+rotate+no_smooth_k+smooth_v+rotate_v",
        "int8_int8+tile=64+no_rotate_v+granularity=per_token",
        "int8_fp16",
        "int8_fp16:sage2+smooth_v",
        "int8_fp16:fast+smooth_q+granularity=per_block+family=sm90",
        "int8_bf16",
    };
    all.insert(all.end(), more);
    return all;
}

Device& host_device() {
    static Host host;
    return host;
}

OnDevice::OnDevice(std::vector<Guarded*> memory) {
    for (Guarded* guarded : memory)
        copies_.emplace_back(guarded,
                             static_cast<char*>(device_under_test().upload(guarded->whole(), guarded->whole_size())));
}

OnDevice::~OnDevice() { finish(); }

void OnDevice::finish() {
    for (const auto& [guarded, copy] : copies_)
        device_under_test().download(copy, guarded->whole(), guarded->whole_size());
    copies_.clear();
}

void* OnDevice::at(const void* host) const {
    if (host == nullptr) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(host);
    for (const auto& [guarded, copy] : copies_) {
        const auto begin = reinterpret_cast<uintptr_t>(guarded->whole());
        if (address >= begin && address < begin + guarded->whole_size()) return copy + (address - begin);
    }
    if (device_under_test().type() != CLARY_CPU) ADD_FAILURE() << "memory that the device has no copy of";
    return const_cast<void*>(host);
}

clary_attention_params OnDevice::at(clary_attention_params params) const {
    for (clary_tensor* tensor : tensors_of(&params)) {
        tensor->data = at(tensor->data);
        tensor->device = device_under_test().type();
    }
    params.workspace = at(params.workspace);
    return params;
}

clary_packed OnDevice::at(clary_packed packed) const {
    packed.data = at(packed.data);
    packed.device = device_under_test().type();
    return packed;
}

clary_context* two_threads() {
    static const ContextOf* const shared = new ContextOf(2);
    return shared->context;
}

clary_attention_params with(const Problem& problem, const char* recipe, const char* tier, clary_context* context) {
    clary_attention_params params = problem.params;
    params.recipe = recipe;
    params.backend = tier;
    params.context = context;
    return params;
}

bool takes(const clary_attention_params& params) {
    size_t bytes = 0;
    const clary_attention_params asked = on_device(params);
    const clary_status status = clary_workspace_size(&asked, 1, &bytes);
    if (status == CLARY_OK) return true;
    EXPECT_EQ(status, CLARY_UNSUPPORTED) << clary_last_error();
    EXPECT_STRNE(clary_last_error(), "");
    return false;
}

void run_one_shot(Problem* problem, clary_attention_params params) {
    const clary_attention_params asked = on_device(params);
    size_t bytes = 0;
    ASSERT_EQ(clary_workspace_size(&asked, 1, &bytes), CLARY_OK) << clary_last_error();
    Guarded workspace(bytes);
    params.workspace = workspace.data();
    params.workspace_size = bytes;
    problem->poison_outputs();
    OnDevice device(with_memory(problem->memory(), {&workspace}));
    const clary_attention_params given = device.at(params);
    ASSERT_EQ(clary_attention(&given), CLARY_OK) << clary_last_error();
    device.finish();
    EXPECT_TRUE(workspace.canaries_intact()) << "workspace of " << bytes << " bytes overrun";
    EXPECT_EQ(problem->damage(), "");
}

clary_packed buffer_of(const Guarded& memory, int64_t kv_capacity) {
    clary_packed buffer{};
    buffer.struct_size = sizeof(buffer);
    buffer.data = const_cast<void*>(static_cast<const void*>(memory.data()));
    buffer.bytes = memory.size();
    buffer.kv_capacity = kv_capacity;
    return buffer;
}

Packed pack(Problem* problem, const clary_attention_params& params, int64_t kv_capacity) {
    Packed packed;
    packed.q_layout.struct_size = packed.kv_layout.struct_size = sizeof(clary_packed_layout);
    packed.kv_capacity = kv_capacity;
    const clary_attention_params asked = on_device(params);
    EXPECT_EQ(clary_packed_layouts(&asked, kv_capacity, &packed.q_layout, &packed.kv_layout), CLARY_OK)
        << clary_last_error();
    packed.q = std::make_unique<Guarded>(static_cast<size_t>(packed.q_layout.bytes));
    packed.kv = std::make_unique<Guarded>(static_cast<size_t>(packed.kv_layout.bytes));
    size_t bytes = 0;
    EXPECT_EQ(clary_workspace_size(&asked, 0, &bytes), CLARY_OK) << clary_last_error();
    Guarded workspace(bytes);
    clary_attention_params given = params;
    given.workspace = workspace.data();
    given.workspace_size = bytes;
    OnDevice device(with_memory(problem != nullptr ? problem->memory() : std::vector<Guarded*>(),
                                {packed.q.get(), packed.kv.get(), &workspace}));
    const clary_packed q = device.at(packed.q_buffer()), kv = device.at(packed.kv_buffer());
    given = device.at(given);
    EXPECT_EQ(clary_quantize(&given, &q, &kv, nullptr), CLARY_OK) << clary_last_error();
    device.finish();
    EXPECT_TRUE(packed.q->canaries_intact()) << "packed Q overrun";
    EXPECT_TRUE(packed.kv->canaries_intact()) << "packed K and V overrun";
    EXPECT_TRUE(workspace.canaries_intact()) << "workspace overrun while quantizing";
    return packed;
}

void attend(Problem* problem, const clary_attention_params& params, const Packed& packed) {
    const clary_attention_params asked = on_device(params);
    size_t bytes = 0;
    ASSERT_EQ(clary_workspace_size(&asked, 0, &bytes), CLARY_OK) << clary_last_error();
    Guarded workspace(bytes);
    clary_attention_params given = params;
    given.q.data = given.k.data = given.v.data = nullptr;  // attend must not read them
    given.workspace = workspace.data();
    given.workspace_size = bytes;
    problem->poison_outputs();
    OnDevice device(with_memory(problem->memory(), {packed.q.get(), packed.kv.get(), &workspace}));
    const clary_packed q = device.at(packed.q_buffer()), kv = device.at(packed.kv_buffer());
    given = device.at(given);
    ASSERT_EQ(clary_attend(&given, &q, &kv), CLARY_OK) << clary_last_error();
    device.finish();
    EXPECT_TRUE(workspace.canaries_intact()) << "workspace overrun while attending";
    EXPECT_EQ(problem->damage(), "");
}

std::vector<unsigned char> section_bytes(const clary_packed_layout& layout, const Guarded& buffer) {
    std::vector<unsigned char> bytes;
    for (int32_t i = 0; i < layout.section_count; ++i) {
        const clary_section& s = layout.sections[i];
        int64_t size = dtype_size(static_cast<DType>(s.dtype));
        for (int32_t axis = 0; axis < s.ndim; ++axis) size *= s.shape[axis];
        const auto* from = static_cast<const unsigned char*>(buffer.data()) + s.offset;
        bytes.insert(bytes.end(), from, from + size);
    }
    return bytes;
}

namespace {

// (d) LSE: infinities at the same places, the rest within the tolerance.
void expect_lse(const std::vector<float>& lse, const std::vector<float>& expected, const AttentionDesc& desc) {
    ASSERT_EQ(lse.size(), expected.size());
    double largest = 0;
    for (size_t i = 0; i < lse.size(); ++i) {
        if (std::isfinite(expected[i])) {
            largest =
                std::max(largest, std::abs(static_cast<double>(lse[i]) - static_cast<double>(expected[i])) -
                                      lse_rounding(expected[i]) -
                                      lse_cut(desc.recipe, device_under_test().backend(), desc.head_dim, expected[i]));
            continue;
        }
        ASSERT_TRUE(lse[i] == expected[i] || (std::isnan(lse[i]) && std::isnan(expected[i])))
            << "lse[" << i << "] is " << lse[i] << ", expected " << expected[i];
    }
    EXPECT_LE(largest, kLse) << "lse";
}

// Rows that see no key are zero to the bit, not nearly.
void expect_empty_rows(const Output& result, const Output& expected, int64_t dim) {
    for (size_t i = 0; i < expected.out.size(); i += static_cast<size_t>(dim)) {
        const auto row = expected.out.begin() + static_cast<std::ptrdiff_t>(i);
        if (!std::all_of(row, row + dim, [](float x) { return x == 0; })) continue;
        for (size_t d = 0; d < static_cast<size_t>(dim); ++d) ASSERT_EQ(result.out[i + d], 0.0f) << "element " << i + d;
    }
}

}  // namespace

void check(Problem* problem, const Output& expected, const char* recipe, const char* tier, Output* result) {
    const Case& c = problem->spec();
    const clary_attention_params params = with(*problem, recipe, tier);
    const AttentionDesc desc = desc_of(params, recipe);
    const double rounding = output_rounding(c.out);

    run_one_shot(problem, params);
    *result = problem->output();
    const std::vector<unsigned char> bytes = problem->output_bytes();
    for (const float x : result->out) ASSERT_TRUE(std::isfinite(x));

    // Two phases give the same bits.
    const Packed packed = pack(problem, params);
    attend(problem, params, packed);
    ASSERT_EQ(problem->output_bytes(), bytes) << "two phases differ from one shot";

    // Against exact attention.
    if (c.score_gain > 0) {
        EXPECT_LE(relative_l1(result->out, expected.out), error_against_exact(desc.recipe, c) + rounding);
    }
    if (c.values != Values::kZeroV) expect_empty_rows(*result, expected, c.v_dim());

    // Against the oracle, from the same packed buffers.
    Output oracle;
    const AttentionDesc to = redirect(desc, params, &oracle);
    ASSERT_TRUE(
        reference::attend_packed(to, 0, packed.q->data(), packed.kv->data(), 1, device_under_test().arrangement())
            .is_ok());
    EXPECT_LE(relative_l1(result->out, oracle.out),
              attend_l1(desc.recipe, c) + cut_sums(desc.recipe, device_under_test().backend()) + rounding);
    const double largest = largest_magnitude(oracle.out);
    EXPECT_LE(largest_difference(result->out, oracle.out), (attend_max(desc.recipe, c) + rounding) * largest + 1e-30);
    if (c.lse) expect_lse(result->lse, oracle.lse, desc);
}

}  // namespace clary::cases
