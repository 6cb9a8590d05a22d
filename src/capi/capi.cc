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
#include "core/two_phase.h"
#include "core/validate.h"

using clary::at_edge;
using clary::AttentionDesc;
using clary::Call;
using clary::check_struct_size;
using clary::Choice;
using clary::Context;
using clary::null_argument;
using clary::PackedBuffer;
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
        return clary::unsupported(
            fmt::format("backend: {} has no packed format; allowed here: cpu, cuda", plan.choice.row->backend));
    return Status::ok();
}

Status check_capacity(const AttentionDesc& desc, int64_t kv_capacity) {
    constexpr int64_t kMax = int64_t{1} << 40;
    if (kv_capacity < 0 || kv_capacity > kMax)
        return clary::invalid_argument(fmt::format("kv_capacity: {}; allowed: 0..2^40", kv_capacity));
    if (kv_capacity > 0 && desc.varlen())
        return clary::invalid_argument(fmt::format("kv_capacity: {}; allowed with cu_seqlens_k: 0", kv_capacity));
    if (kv_capacity > 0 && kv_capacity < desc.kv_len)
        return clary::invalid_argument(
            fmt::format("kv_capacity: {}; allowed: 0, or at least the {} keys of k", kv_capacity, desc.kv_len));
    return clary::check_size(desc, kv_capacity);
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// The caller's workspace, or, for a kernel of the CPU, one from the heap for the duration of the call.
class Workspace {
  public:
    Status get(const clary_attention_params& params, const clary::KernelRow& row, int64_t bytes) {
        if (params.workspace != nullptr) {
            if (static_cast<int64_t>(params.workspace_size) < bytes)
                return {StatusCode::kWorkspaceTooSmall,
                        fmt::format("workspace_size: {}; allowed: at least {}", params.workspace_size, bytes)};
            if (reinterpret_cast<uintptr_t>(params.workspace) % 64 != 0)
                return clary::invalid_argument("workspace: not aligned; allowed: a multiple of 64 bytes");
            data_ = params.workspace;
            return Status::ok();
        }
        if (row.device != clary::DeviceType::kCpu) {
            if (bytes == 0) return Status::ok();
            return {StatusCode::kWorkspaceTooSmall,
                    fmt::format("workspace: null; allowed on a GPU: at least {} bytes of its memory", bytes)};
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

// What the functions on packed buffers have in common.
struct TwoPhase {
    Plan plan;
    Workspace workspace;
    int64_t kv_capacity = 0;
    void* stream = nullptr;

    Status prepare(const clary_attention_params* params, Purpose purpose, const clary_packed* kv) {
        CLARY_RETURN_IF_ERROR(plan_for(params, purpose, &plan));
        CLARY_RETURN_IF_ERROR(require_kernel(plan, true));
        kv_capacity = kv->kv_capacity;
        stream = params->stream;
        CLARY_RETURN_IF_ERROR(check_capacity(plan.desc, kv_capacity));
        const clary::KernelRow& row = *plan.choice.row;
        return workspace.get(*params, row, row.workspace(plan.desc, *plan.context));
    }
    Call call() const { return {plan.desc, *plan.context, stream, workspace.data()}; }
};

// Null stays an unset buffer.
Status buffer_of(const char* name, const clary_packed* packed, PackedBuffer* buffer) {
    if (packed == nullptr) return Status::ok();
    CLARY_RETURN_IF_ERROR(check_struct_size(name, packed->struct_size, sizeof(*packed)));
    if (packed->data == nullptr) return null_argument(name);
    *buffer = {name, packed->data, packed->bytes, static_cast<clary::DeviceType>(packed->device), packed->device_index};
    return Status::ok();
}

void ran(const Plan& plan, const char* what) {
    last_kernel = plan.choice.row->name;
    if (clary::log_enabled())
        clary::log_line(fmt::format("{} kernel={} recipe={} batch={} heads={}/{} q_len={} kv_len={} head_dim={}/{}",
                                    what, last_kernel, clary::recipe_text(plan.desc.recipe), plan.desc.batch,
                                    plan.desc.q_heads, plan.desc.kv_heads, plan.desc.q_len, plan.desc.kv_len,
                                    plan.desc.head_dim, plan.desc.head_dim_v));
}

}  // namespace

extern "C" {

const char* clary_status_string(clary_status status) {
    static constexpr const char* kNames[] = {"ok",           "invalid_argument", "unsupported",
                                             "no_device",    "out_of_memory",    "workspace_too_small",
                                             "driver_error", "internal"};
    int32_t index = 0;  // C callers may pass any number, which an enum must not hold
    std::memcpy(&index, &status, sizeof(index));
    return index >= 0 && static_cast<size_t>(index) < std::size(kNames) ? kNames[index] : "unknown";
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
        CLARY_RETURN_IF_ERROR(workspace.get(*params, *plan.choice.row,
                                            clary::one_shot_workspace(*plan.choice.row, plan.desc, *plan.context)));
        CLARY_RETURN_IF_ERROR(
            clary::run_one_shot(*plan.choice.row, Call{plan.desc, *plan.context, params->stream, workspace.data()}));
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
        for (const auto& [name, layout] : {std::pair{"q_layout", q_layout}, {"kv_layout", kv_layout}})
            if (layout) CLARY_RETURN_IF_ERROR(check_struct_size(name, layout->struct_size, sizeof(*layout)));
        if (q_layout) *q_layout = plan.choice.row->q_layout(plan.desc);
        if (kv_layout) *kv_layout = plan.choice.row->kv_layout(plan.desc, kv_capacity);
        return Status::ok();
    });
}

clary_status clary_quantize(const clary_attention_params* params, const clary_packed* q, const clary_packed* kv,
                            const clary_packed* kv_ready) {
    return at_edge([&]() -> Status {
        if (q == nullptr && kv == nullptr) return null_argument("q and kv");
        if (kv == nullptr && kv_ready == nullptr) return null_argument("kv_ready");
        if (kv != nullptr && kv_ready != nullptr)
            return clary::invalid_argument("kv_ready: given together with kv; allowed: one of the two");
        TwoPhase call;
        CLARY_RETURN_IF_ERROR(call.prepare(params, Purpose::kQuantize, kv ? kv : kv_ready));
        PackedBuffer q_buffer, kv_buffer, ready_buffer;
        CLARY_RETURN_IF_ERROR(buffer_of("q", q, &q_buffer));
        CLARY_RETURN_IF_ERROR(buffer_of("kv", kv, &kv_buffer));
        CLARY_RETURN_IF_ERROR(buffer_of("kv_ready", kv_ready, &ready_buffer));
        const AttentionDesc& desc = call.plan.desc;
        const bool has_rows = desc.batch > 0 && desc.q_tokens > 0, has_keys = desc.batch > 0 && desc.kv_tokens > 0;
        if (q != nullptr && has_rows && desc.q.data == nullptr) return null_argument("q.data");
        if (kv != nullptr && has_keys && desc.k.data == nullptr) return null_argument("k.data");
        if (kv != nullptr && has_keys && desc.v.data == nullptr) return null_argument("v.data");
        return clary::quantize(*call.plan.choice.row, call.call(), call.kv_capacity, q ? &q_buffer : nullptr,
                               kv ? &kv_buffer : nullptr, kv_ready ? &ready_buffer : nullptr);
    });
}

clary_status clary_attend(const clary_attention_params* params, const clary_packed* q, const clary_packed* kv) {
    return at_edge([&]() -> Status {
        if (q == nullptr) return null_argument("q");
        if (kv == nullptr) return null_argument("kv");
        TwoPhase call;
        CLARY_RETURN_IF_ERROR(call.prepare(params, Purpose::kAttend, kv));
        PackedBuffer q_buffer, kv_buffer;
        CLARY_RETURN_IF_ERROR(buffer_of("q", q, &q_buffer));
        CLARY_RETURN_IF_ERROR(buffer_of("kv", kv, &kv_buffer));
        CLARY_RETURN_IF_ERROR(clary::attend(*call.plan.choice.row, call.call(), call.kv_capacity, q_buffer, kv_buffer));
        ran(call.plan, "attend");
        return Status::ok();
    });
}

clary_status clary_append_kv(const clary_attention_params* params, const clary_packed* kv) {
    return at_edge([&]() -> Status {
        if (kv == nullptr) return null_argument("kv");
        TwoPhase call;
        CLARY_RETURN_IF_ERROR(call.prepare(params, Purpose::kAppend, kv));
        if (call.kv_capacity == 0)
            return clary::invalid_argument("kv_capacity: 0; allowed: the capacity that the buffer was laid out for");
        PackedBuffer kv_buffer;
        CLARY_RETURN_IF_ERROR(buffer_of("kv", kv, &kv_buffer));
        return clary::append(*call.plan.choice.row, call.call(), call.kv_capacity, kv_buffer);
    });
}

clary_status clary_merge(const clary_merge_params* params) {
    return at_edge([&]() -> Status {
        if (params == nullptr) return null_argument("params");
        CLARY_RETURN_IF_ERROR(check_struct_size("params", params->struct_size, sizeof(*params)));
        CLARY_RETURN_IF_ERROR(clary::validate_merge(*params));
        const clary::MergeViews views =
            clary::dense_views({clary::view_of(params->out_a), clary::view_of(params->lse_a),
                                clary::view_of(params->out_b), clary::view_of(params->lse_b)});
        return clary::merge_on(clary::kernel_tables(), static_cast<clary::DeviceType>(params->out_a.device),
                               params->out_a.device_index, params->stream, views);
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
        CLARY_RETURN_IF_ERROR(check_struct_size("info", info->struct_size, sizeof(*info)));
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
