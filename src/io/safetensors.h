// SPDX-License-Identifier: Apache-2.0
// The safetensors format: u64 length of the header, a JSON header {name: {dtype, shape, data_offsets}, "__metadata__":
// {string: string}}, then the tensors' bytes without gap or overlap. Definition: huggingface/safetensors, README.
#pragma once

#include <span>

#include "io/tensor_file.h"

namespace clary::io::safetensors {

// Reads a whole file that lies in memory. On failure *out is unchanged and the text says tensor, field, value and what
// is allowed.
Status read(std::span<const std::byte> file, TensorFile* out);

// Replaces *out. Tensors are laid out by falling element size, then name (the format's own writer does the same, so
// equal content gives equal bytes); data starts at a multiple of 8 bytes.
Status write(const TensorFile& file, Bytes* out);

}  // namespace clary::io::safetensors
