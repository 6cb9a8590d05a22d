// SPDX-License-Identifier: Apache-2.0
// clary_explain: which kernel would run, why not the others, what it costs and how wrong it is expected to be.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/dispatch.h"
#include "core/expected_error.h"

namespace clary {
namespace {

std::string quoted(std::string_view text) {
    std::string json = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\')
            json += {'\\', c};
        else if (static_cast<unsigned char>(c) < 0x20)
            json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else
            json += c;
    }
    return json + '"';
}

std::vector<std::string> warnings(const AttentionDesc& desc) {
    std::vector<std::string> texts;
    const Recipe& recipe = desc.recipe;
    if (recipe.pv == Format::kInt8 && recipe.v_scale != VScale::kToken)
        texts.push_back(
            "V scale per channel: an attention sink rounds the other keys of its tile to zero; "
            "the preset accurate does not have this weakness");
    if (recipe.quantized() && !recipe.smooth_k && !recipe.smooth_q)
        texts.push_back("no smoothing: a channel bias of K or Q ruins INT8 scores");
    return texts;
}

// Bytes of Q, K, V and the output that a call must move at least, each once.
int64_t tensor_bytes(const AttentionDesc& desc) {
    const int64_t items = desc.varlen() ? 1 : desc.batch;
    const int64_t q_rows = items * desc.q_heads * desc.q_tokens;
    const int64_t kv_rows = items * desc.kv_heads * desc.kv_tokens;
    const int64_t out_size = desc.out.dtype == DType::kNone ? dtype_size(desc.q.dtype) : dtype_size(desc.out.dtype);
    return q_rows * (desc.head_dim * dtype_size(desc.q.dtype) + desc.head_dim_v * out_size) +
           kv_rows * (desc.head_dim * dtype_size(desc.k.dtype) + desc.head_dim_v * dtype_size(desc.v.dtype));
}

// The first kernel that this machine cannot run and that would take the problem on its own; null: none.
const KernelRow* elsewhere(const AttentionDesc& desc, const Choice& choice) {
    for (const Rejection& rejection : choice.rejections)
        if (rejection.row->device == desc.device && rejection.row->supports(desc).empty()) return rejection.row;
    return nullptr;
}

}  // namespace

std::string explain_json(const AttentionDesc& desc, std::string_view backend, const Choice& choice,
                         std::span<const KernelTable> tables, const Context& context) {
    std::vector<std::string> others;
    for (const Rejection& rejection : choice.rejections) {
        std::string reason = rejection.reason;
        // A kernel of another machine may refuse the problem as well.
        if (std::string more = rejection.row->supports(desc);
            rejection.row->device == desc.device && !more.empty() && more != reason)
            reason += "; " + more;
        others.push_back(fmt::format(R"({{"kernel":"{}","reason":{}}})", rejection.row->name, quoted(reason)));
    }
    for (const KernelTable& table : tables)
        for (const KernelRow& row : table) {
            const bool listed = &row == choice.row || std::any_of(choice.rejections.begin(), choice.rejections.end(),
                                                                  [&](const Rejection& r) { return r.row == &row; });
            if (listed) continue;
            std::string reason;
            if (row.qk != desc.recipe.qk || row.pv != desc.recipe.pv)
                reason = fmt::format("is a kernel of another recipe, {}_{}", format_name(row.qk), format_name(row.pv));
            if (reason.empty()) reason = rejection_of(row, desc);
            if (reason.empty())
                reason = row.backend == std::string_view("reference")  ? "runs only when asked for by name"
                         : backend != "auto" && backend != row.backend ? fmt::format("is not of backend {}", backend)
                                                                       : "ranks behind the chosen kernel";
            others.push_back(fmt::format(R"({{"kernel":"{}","reason":{}}})", row.name, quoted(reason)));
        }
    std::vector<std::string> warned;
    for (const std::string& text : warnings(desc)) warned.push_back(quoted(text));

    std::string json =
        fmt::format(R"({{"recipe":{},"kernel":{},"backend":{})", quoted(recipe_text(desc.recipe)),
                    choice.row ? quoted(choice.row->name) : "null", choice.row ? quoted(choice.row->backend) : "null");
    json += fmt::format(R"(,"problem":{{"batch":{},"q_heads":{},"kv_heads":{},"q_len":{},"kv_len":{},"head_dim":{},)"
                        R"("head_dim_v":{},"scale":{},"varlen":{},"paged":{}}})",
                        desc.batch, desc.q_heads, desc.kv_heads, desc.q_len, desc.kv_len, desc.head_dim,
                        desc.head_dim_v, desc.scale, desc.varlen(), desc.page_size > 0);
    const KernelRow* row = choice.row;
    if (!row) {
        json += fmt::format(R"(,"error":{})", quoted(no_kernel(desc, backend, choice).text()));
        if ((row = elsewhere(desc, choice)) != nullptr) json += fmt::format(R"(,"would_run":{})", quoted(row->name));
    }
    if (row) {
        const bool packs = row->attention == nullptr;
        const int64_t packed = packs ? row->q_layout(desc).bytes + row->kv_layout(desc, 0).bytes : 0;
        json += fmt::format(R"(,"threads":{},"workspace_bytes":{},"packed_bytes":{},"phase_workspace_bytes":{})"
                            R"(,"bytes_moved":{})",
                            context.threads(), one_shot_workspace(*row, desc, context), packed,
                            packs ? row->workspace(desc, context) : 0, tensor_bytes(desc) + 2 * packed);
        if (row->pieces != nullptr) json += fmt::format(R"(,"key_pieces":{})", row->pieces(desc));
    }
    if (const ExpectedError* expected = expected_error(desc.recipe))
        json += fmt::format(R"(,"expected_rel_l1":{{"language_model_median":{},"language_model_worst_layer":{},)"
                            R"("normal":{}}})",
                            expected->real_median, expected->real_worst, expected->normal);
    return json +
           fmt::format(R"(,"warnings":[{}],"other_kernels":[{}]}})", fmt::join(warned, ","), fmt::join(others, ","));
}

}  // namespace clary
