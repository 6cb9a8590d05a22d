// SPDX-License-Identifier: Apache-2.0
#include "cpu/run.h"

#include <cstring>

#include "core/types.h"

namespace clary::cases {

const std::vector<const char*>& tiers() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> found;
        for (int32_t i = 0; i < clary_kernel_count(); ++i) {
            clary_kernel_info info{};
            info.struct_size = sizeof(info);
            EXPECT_EQ(clary_kernel_get(i, &info), CLARY_OK);
            const std::string name = std::string(info.backend) + ":" + info.arch;
            if (std::strcmp(info.backend, "cpu") == 0 && info.usable && (found.empty() || found.back() != name))
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

const std::vector<const char*>& cpu_recipes() {
    static const std::vector<const char*> recipes = {
        "int8_int8",
        "int8_int8:fast",
        "int8_int8+v_scale=channel_tile+smooth_v+tile=64",
        "int8_int8:fast+granularity=per_warp+rotate+no_smooth_k+smooth_v+rotate_v",
        "int8_int8+tile=64+no_rotate_v+granularity=per_token",
        "int8_fp16",
        "int8_fp16:sage2+smooth_v",
        "int8_fp16:fast+smooth_q+granularity=per_block+family=sm90",
        "int8_bf16",
        "fp32_fp32",
        "fp32_fp32+tile=64",
    };
    return recipes;
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
    const clary_status status = clary_workspace_size(&params, 1, &bytes);
    if (status == CLARY_OK) return true;
    EXPECT_EQ(status, CLARY_UNSUPPORTED) << clary_last_error();
    EXPECT_STRNE(clary_last_error(), "");
    return false;
}

void run_one_shot(Problem* problem, clary_attention_params params) {
    size_t bytes = 0;
    ASSERT_EQ(clary_workspace_size(&params, 1, &bytes), CLARY_OK) << clary_last_error();
    Guarded workspace(bytes);
    params.workspace = workspace.data();
    params.workspace_size = bytes;
    problem->poison_outputs();
    ASSERT_EQ(clary_attention(&params), CLARY_OK) << clary_last_error();
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

Packed pack(const clary_attention_params& params, int64_t kv_capacity) {
    Packed packed;
    packed.q_layout.struct_size = packed.kv_layout.struct_size = sizeof(clary_packed_layout);
    packed.kv_capacity = kv_capacity;
    EXPECT_EQ(clary_packed_layouts(&params, kv_capacity, &packed.q_layout, &packed.kv_layout), CLARY_OK)
        << clary_last_error();
    packed.q = std::make_unique<Guarded>(static_cast<size_t>(packed.q_layout.bytes));
    packed.kv = std::make_unique<Guarded>(static_cast<size_t>(packed.kv_layout.bytes));
    size_t bytes = 0;
    EXPECT_EQ(clary_workspace_size(&params, 0, &bytes), CLARY_OK) << clary_last_error();
    Guarded workspace(bytes);
    clary_attention_params given = params;
    given.workspace = workspace.data();
    given.workspace_size = bytes;
    const clary_packed q = packed.q_buffer(), kv = packed.kv_buffer();
    EXPECT_EQ(clary_quantize(&given, &q, &kv, nullptr), CLARY_OK) << clary_last_error();
    EXPECT_TRUE(packed.q->canaries_intact()) << "packed Q overrun";
    EXPECT_TRUE(packed.kv->canaries_intact()) << "packed K and V overrun";
    EXPECT_TRUE(workspace.canaries_intact()) << "workspace overrun while quantizing";
    return packed;
}

void attend(Problem* problem, const clary_attention_params& params, const Packed& packed) {
    size_t bytes = 0;
    ASSERT_EQ(clary_workspace_size(&params, 0, &bytes), CLARY_OK) << clary_last_error();
    Guarded workspace(bytes);
    clary_attention_params given = params;
    given.q.data = given.k.data = given.v.data = nullptr;  // attend must not read them
    given.workspace = workspace.data();
    given.workspace_size = bytes;
    problem->poison_outputs();
    const clary_packed q = packed.q_buffer(), kv = packed.kv_buffer();
    ASSERT_EQ(clary_attend(&given, &q, &kv), CLARY_OK) << clary_last_error();
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

}  // namespace clary::cases
