// SPDX-License-Identifier: Apache-2.0
// The one place where the C ABI's parameters are checked and become an AttentionDesc. Every message names argument,
// value and allowed set; nothing below checks again.
#pragma once

#include <string>
#include <string_view>

#include "clary/clary.h"
#include "core/desc.h"

namespace clary {

// What the caller is about to do, and so which data pointers must be there.
enum class Purpose {
    kShapes,     // explain, sizes, layouts: no data needed
    kAttention,  // q, k, v, out
    kQuantize,   // q and / or k, v: checked by the caller
    kAttend,     // out
    kAppend,     // k, v
};

// recipe "auto" (or null) leaves desc->recipe at its default and sets *recipe_is_auto.
Status validate(const clary_attention_params& params, Purpose purpose, AttentionDesc* desc, bool* recipe_is_auto);

// Whether buffers for this problem, with room for kv_len keys in each sequence, can be counted in int64 at all.
Status check_size(const AttentionDesc& desc, int64_t kv_len);

// A struct of this version or of a later one: fields that this version does not know lie behind `known` bytes.
Status check_struct_size(const char* name, uint32_t given, size_t known);

Status validate_merge(const clary_merge_params& params);

TensorView view_of(const clary_tensor& tensor);

}  // namespace clary
