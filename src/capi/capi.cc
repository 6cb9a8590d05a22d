// SPDX-License-Identifier: Apache-2.0
// The ABI's edge: validates once, catches everything, sets the error text. No logic of its own.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "capi/edge.h"
#include "capi/tables.h"
#include "clary/clary.h"
#include "core/dispatch.h"
#include "core/log.h"
#include "core/merge.h"
#include "core/validate.h"

using clary::at_edge;
using clary::AttentionDesc;
using clary::Call;
using clary::Choice;
using clary::Context;
using clary::null_argument;
using clary::Purpose;
using clary::Status;
using clary::StatusCode;

struct clary_context {
    Context impl;
};

namespace {

thread_local std::string last_json;
thread_local const char* last_kernel = "";

// A checked problem and the kernel that will run it.
struct Plan {
    AttentionDesc desc;
    Choice choice;
    Context* context = nullptr;
    std::string_view backend;
};

Status plan_for(const clary_attention_params* params, Purpose purpose, Plan* plan) {
    if (params == nullptr) return null_argument("params");
    bool recipe_is_auto = false;
    CLARY_RETURN_IF_ERROR(clary::validate(*params, purpose, &plan->desc, &recipe_is_auto));
    plan->backend = params->backend ? params->backend : "auto";
    plan->context = params->context ? &params->context->impl : &Context::default_context();
    return clary::choose_kernel(clary::kernel_tables(), plan->backend, recipe_is_auto, &plan->desc, &plan->choice);
}

Status require_kernel(const Plan& plan, bool two_phase) {
    if (plan.choice.row == nullptr) return clary::no_kernel(plan.desc, plan.backend, plan.choice);
    if (two_phase && plan.choice.row->attention != nullptr)
        return clary::unsupported(fmt::format("backend: {} has no packed format; allowed here: cpu",
                                              plan.choice.row->backend));
    return Status::ok();
}

Status check_capacity(const AttentionDesc& desc, int64_t kv_capacity) {
    constexpr int64_t kMax = int64_t{1} << 40;
    if (kv_capacity < 0 || kv_capacity > kMax)
        return clary::invalid_argument(fmt::format("kv_capacity: {}; allowed: 0..2^40", kv_capacity));
    if (kv_capacity > 0 && desc.varlen())
        return clary::invalid_argument(fmt::format("kv_capacity: {}; allowed with cu_seqlens_k: 0", kv_capacity));
    if (kv_capacity > 0 && kv_capacity < desc.kv_len)
        return clary::invalid_argument(fmt::format("kv_capacity: {}; allowed: 0, or at least the {} keys of k",
                                                   kv_capacity, desc.kv_len));
    return Status::ok();
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// The caller's workspace, or one from the heap for the duration of the call.
class Workspace {
  public:
    Status get(const clary_attention_params& params, int64_t bytes) {
        if (params.workspace != nullptr) {
            if (static_cast<int64_t>(params.workspace_size) < bytes)
                return {StatusCode::kWorkspaceTooSmall,
                        fmt::format("workspace_size: {}; allowed: at least {}", params.workspace_size, bytes)};
            if (reinterpret_cast<uintptr_t>(params.workspace) % 64 != 0)
                return clary::invalid_argument("workspace: not aligned; allowed: a multiple of 64 bytes");
            data_ = params.workspace;
            return Status::ok();
        }
        owned_.reset(std::aligned_alloc(64, static_cast<size_t>(clary::round_up(std::max<int64_t>(bytes, 64), 64))));
        if (owned_ == nullptr)
            return {StatusCode::kOutOfMemory, fmt::format("out of memory: a workspace of {} bytes", bytes)};
        data_ = owned_.get();
        return Status::ok();
    }
    void* data() const { return data_; }

  private:
    std::unique_ptr<void, Free> owned_;
    void* data_ = nullptr;
};

void ran(const Plan& plan, const char* what) {
    last_kernel = plan.choice.row->name;
    if (clary::log_enabled())
        clary::log_line(fmt::format("{} kernel={} recipe={} batch={} heads={}/{} q_len={} kv_len={} head_dim={}/{}", what,
                                    last_kernel, clary::recipe_text(plan.desc.recipe), plan.desc.batch,
                                    plan.desc.q_heads, plan.desc.kv_heads, plan.desc.q_len, plan.desc.kv_len,
                                    plan.desc.head_dim, plan.desc.head_dim_v));
}

}  // namespace

extern "C" {

const char* clary_status_string(clary_status status) {
    static constexpr const char* kNames[] = {"ok",        "invalid_argument", "unsupported",
                                             "no_device", "out_of_memory",    "workspace_too_small",
                                             "driver_error", "internal"};
    const auto index = static_cast<size_t>(status);
    return index < std::size(kNames) ? kNames[index] : "unknown";
}

const char* clary_version(void) { return CLARY_VERSION_TEXT; }

const char* clary_build_info(void) {
#if defined(__clang__)
    return "clary " CLARY_VERSION_TEXT " clang " __clang_version__ " " CLARY_BUILD_TYPE " backends: cpu, reference";
#else
    return "clary " CLARY_VERSION_TEXT " gcc " __VERSION__ " " CLARY_BUILD_TYPE " backends: cpu, reference";
#endif
}

clary_status clary_context_create(int32_t threads, clary_context** context) {
    return at_edge([&]() -> Status {
        if (context == nullptr) return null_argument("context");
        if (threads < 0 || threads > 4096)
            return clary::invalid_argument(fmt::format("threads: {}; allowed: 0 (default) or 1..4096", threads));
        *context = new clary_context{Context(threads)};
        return Status::ok();
    });
}

void clary_context_destroy(clary_context* context) { delete context; }

int32_t clary_context_threads(const clary_context* context) {
    return context ? context->impl.threads() : Context::default_context().threads();
}

clary_status clary_attention(const clary_attention_params* params) {
    return at_edge([&]() -> Status {
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kAttention, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, false));
        Workspace workspace;
        CLARY_RETURN_IF_ERROR(
            workspace.get(*params, clary::one_shot_workspace(*plan.choice.row, plan.desc, *plan.context)));
        CLARY_RETURN_IF_ERROR(clary::run_one_shot(
            *plan.choice.row, Call{plan.desc, *plan.context, params->stream, workspace.data()}));
        ran(plan, "attention");
        return Status::ok();
    });
}

clary_status clary_workspace_size(const clary_attention_params* params, int32_t one_shot, size_t* bytes) {
    return at_edge([&]() -> Status {
        if (bytes == nullptr) return null_argument("bytes");
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kShapes, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, one_shot == 0));
        *bytes = static_cast<size_t>(one_shot ? clary::one_shot_workspace(*plan.choice.row, plan.desc, *plan.context)
                                              : plan.choice.row->workspace(plan.desc, *plan.context));
        return Status::ok();
    });
}

clary_status clary_packed_layouts(const clary_attention_params* params, int64_t kv_capacity,
                                  clary_packed_layout* q_layout, clary_packed_layout* kv_layout) {
    return at_edge([&]() -> Status {
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kShapes, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, true));
        CLARY_RETURN_IF_ERROR(check_capacity(plan.desc, kv_capacity));
        if (q_layout) *q_layout = clary::packed_q_layout(plan.desc);
        if (kv_layout) *kv_layout = clary::packed_kv_layout(plan.desc, kv_capacity);
        return Status::ok();
    });
}

clary_status clary_quantize(const clary_attention_params* params, int64_t kv_capacity, void* packed_q,
                            void* packed_kv, const void* packed_kv_ready) {
    return at_edge([&]() -> Status {
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kQuantize, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, true));
        CLARY_RETURN_IF_ERROR(check_capacity(plan.desc, kv_capacity));
        if (packed_q == nullptr && packed_kv == nullptr) return null_argument("packed_q and packed_kv");
        if (packed_kv == nullptr && packed_kv_ready == nullptr) return null_argument("packed_kv_ready");
        if (packed_kv != nullptr && packed_kv_ready != nullptr)
            return clary::invalid_argument("packed_kv_ready: given together with packed_kv; allowed: one of the two");
        const bool has_rows = plan.desc.batch > 0 && plan.desc.q_tokens > 0;
        if (packed_q != nullptr && has_rows && plan.desc.q.data == nullptr) return null_argument("q.data");
        const bool has_keys = plan.desc.batch > 0 && plan.desc.kv_tokens > 0;
        if (packed_kv != nullptr && has_keys && plan.desc.k.data == nullptr) return null_argument("k.data");
        if (packed_kv != nullptr && has_keys && plan.desc.v.data == nullptr) return null_argument("v.data");
        Workspace workspace;
        CLARY_RETURN_IF_ERROR(workspace.get(*params, plan.choice.row->workspace(plan.desc, *plan.context)));
        return plan.choice.row->quantize(Call{plan.desc, *plan.context, params->stream, workspace.data()}, kv_capacity,
                                         packed_q, packed_kv, packed_kv_ready);
    });
}

clary_status clary_attend(const clary_attention_params* params, int64_t kv_capacity, const void* packed_q,
                          const void* packed_kv) {
    return at_edge([&]() -> Status {
        if (packed_q == nullptr) return null_argument("packed_q");
        if (packed_kv == nullptr) return null_argument("packed_kv");
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kAttend, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, true));
        CLARY_RETURN_IF_ERROR(check_capacity(plan.desc, kv_capacity));
        Workspace workspace;
        CLARY_RETURN_IF_ERROR(
            workspace.get(*params, plan.choice.row->workspace(plan.desc, *plan.context)));
        CLARY_RETURN_IF_ERROR(plan.choice.row->attend(
            Call{plan.desc, *plan.context, params->stream, workspace.data()}, kv_capacity, packed_q, packed_kv));
        ran(plan, "attend");
        return Status::ok();
    });
}

clary_status clary_append_kv(const clary_attention_params* params, int64_t kv_capacity, void* packed_kv) {
    return at_edge([&]() -> Status {
        if (packed_kv == nullptr) return null_argument("packed_kv");
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kAppend, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, true));
        CLARY_RETURN_IF_ERROR(check_capacity(plan.desc, kv_capacity));
        if (kv_capacity == 0)
            return clary::invalid_argument("kv_capacity: 0; allowed: the capacity that the buffer was laid out for");
        Workspace workspace;
        CLARY_RETURN_IF_ERROR(workspace.get(*params, plan.choice.row->workspace(plan.desc, *plan.context)));
        return plan.choice.row->append(Call{plan.desc, *plan.context, params->stream, workspace.data()}, kv_capacity,
                                       packed_kv);
    });
}

clary_status clary_merge(const clary_tensor* out_a, const clary_tensor* lse_a, const clary_tensor* out_b,
                         const clary_tensor* lse_b) {
    return at_edge([&]() -> Status {
        if (!out_a || !lse_a || !out_b || !lse_b) return null_argument("out_a, lse_a, out_b or lse_b");
        CLARY_RETURN_IF_ERROR(clary::validate_merge(*out_a, *lse_a, *out_b, *lse_b));
        clary::merge(clary::view_of(*out_a), clary::view_of(*lse_a), clary::view_of(*out_b), clary::view_of(*lse_b));
        return Status::ok();
    });
}

clary_status clary_explain(const clary_attention_params* params, const char** json) {
    return at_edge([&]() -> Status {
        if (json == nullptr) return null_argument("json");
        Plan plan;
        CLARY_RETURN_IF_ERROR(plan_for(params, Purpose::kShapes, &plan));
        last_json = clary::explain_json(plan.desc, plan.backend, plan.choice, clary::kernel_tables(), *plan.context);
        *json = last_json.c_str();
        return Status::ok();
    });
}

int32_t clary_kernel_count(void) {
    size_t count = 0;
    for (const clary::KernelTable& table : clary::kernel_tables()) count += table.size();
    return static_cast<int32_t>(count);
}

clary_status clary_kernel_get(int32_t index, clary_kernel_info* info) {
    return at_edge([&]() -> Status {
        if (info == nullptr) return null_argument("info");
        if (info->struct_size != sizeof(clary_kernel_info))
            return clary::invalid_argument(fmt::format("struct_size: {}; allowed: {}", info->struct_size,
                                                       sizeof(clary_kernel_info)));
        int64_t left = index;
        for (const clary::KernelTable& table : clary::kernel_tables()) {
            if (left >= 0 && left < static_cast<int64_t>(table.size())) {
                const clary::KernelRow& row = table[static_cast<size_t>(left)];
                *info = {};
                info->struct_size = sizeof(clary_kernel_info);
                const std::string reason = row.usable();
                const std::string recipe = clary::recipe_name({.qk = row.qk, .pv = row.pv});
                std::strncpy(info->name, row.name, sizeof(info->name) - 1);
                std::strncpy(info->backend, row.backend, sizeof(info->backend) - 1);
                std::strncpy(info->arch, row.arch, sizeof(info->arch) - 1);
                std::strncpy(info->recipe, recipe.c_str(), sizeof(info->recipe) - 1);
                std::strncpy(info->reason, reason.c_str(), sizeof(info->reason) - 1);
                info->usable = reason.empty();
                return Status::ok();
            }
            left -= static_cast<int64_t>(table.size());
        }
        return clary::invalid_argument(fmt::format("index: {}; allowed: 0..{}", index, clary_kernel_count() - 1));
    });
}

const char* clary_last_kernel(void) { return last_kernel; }

}  // extern "C"
