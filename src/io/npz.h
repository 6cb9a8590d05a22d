// SPDX-License-Identifier: Apache-2.0
// The npz format of numpy: a zip archive with one .npy file per array, stored or deflated.
#pragma once

#include <span>

#include "io/tensor_file.h"

namespace clary::io::npz {

// Reads a whole file that lies in memory. Tensors are named as numpy names them: the entry without ".npy". An entry's
// declared size must be what its own npy header says before memory is taken for it. On failure *out is unchanged.
Status read(std::span<const std::byte> file, TensorFile* out);

enum class Compression { kNone, kDeflate };

// Replaces *out; entries keep the order of file.tensors. Up to 4 GiB; dtypes as npy::write_array; no metadata.
Status write(const TensorFile& file, Bytes* out, Compression compression = Compression::kNone);

}  // namespace clary::io::npz
