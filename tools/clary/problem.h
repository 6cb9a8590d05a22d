// SPDX-License-Identifier: Apache-2.0
// An attention problem as the commands see it: owned Q, K, V (and mask) of one layer, from a file or a generator, and
// the clary_attention_params that describe it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clary/clary.h"
#include "io/tensor_file.h"

namespace clary::cli {

enum class MemoryLayout { kHnd, kNhd };  // [B, H, L, D] or [B, L, H, D] in memory

struct Shape {
    int64_t batch = 1, q_heads = 1, kv_heads = 1, q_len = 0, kv_len = 0, head_dim = 0, head_dim_v = 0;
};
std::string shape_text(const Shape& shape);  // "B1 H9/3 L2048x2048 D64"

// What the command line says about a problem; empty: the file's metadata, else the default.
struct ProblemOptions {
    std::string layout;  // "hnd", "nhd"
    std::string causal;  // "true", "false", "top_left", "bottom_right"
    std::optional<double> scale;
    std::string layer;
};

struct Problem {
    std::string layer;  // "layer.05", or "" where the file holds a plain q, k, v
    Shape shape;
    io::Tensor q, k, v, mask;  // 4-dimensional in the order of `layout`; mask [B|1, H|1, Lq|1, Lk|1], or no elements
    bool has_mask = false;
    bool batchless = false;  // the file's q has no batch dimension; outputs get none either
    MemoryLayout layout = MemoryLayout::kHnd;
    int32_t causal = CLARY_CAUSAL_NONE;
    std::optional<double> scale;

    std::string in_layer(const std::string& name) const { return layer.empty() ? name : layer + "." + name; }
};

// All layers of a capture file (or the one that options.layer names), in the order of their names.
std::vector<Problem> load_problems(const std::string& path, const ProblemOptions& options,
                                   std::map<std::string, std::string>* metadata = nullptr);

// Generated fp32 Q, K, V, the same for the same seed on every machine. Throws where `preset` is none of
// synthetic_presets().
Problem synthetic_problem(const std::string& preset, const Shape& shape, const std::string& causal, uint64_t seed);
std::string synthetic_presets();  // "normal, llm, ..."

// A view in the logical order [B, H, L, D] of a 4-dimensional tensor. Clary reads inputs and writes outputs.
clary_tensor logical_view(const io::Tensor& tensor, MemoryLayout layout);
// A dense [B, H, L, D] tensor of which only the shape is known.
clary_tensor shape_view(std::initializer_list<int64_t> shape, clary_dtype dtype);

clary_attention_params params_of(const Problem& problem);
clary_attention_params params_of(const Shape& shape, clary_dtype dtype, int32_t causal);

// "true" needs equal lengths, since two conventions differ otherwise.
int32_t parse_causal(const std::string& text, const std::string& where, int64_t q_len, int64_t kv_len);

// One line on standard error that counts the non-finite values per tensor, where there are any.
void warn_of_non_finite(const std::vector<Problem>& problems);

}  // namespace clary::cli
