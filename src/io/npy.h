// SPDX-License-Identifier: Apache-2.0
// The npy format of numpy: magic, version (1.0, 2.0 or 3.0), header length, a Python dict literal {descr,
// fortran_order, shape}, then the array's bytes. Definition: numpy.lib.format.
#pragma once

#include <span>

#include "io/tensor_file.h"

namespace clary::io::npy {

inline constexpr std::size_t kMaxPrefixBytes = 65536;  // longest magic, version, length and dict that is read

struct Header {
    DType dtype = DType::kNone;
    bool fortran_order = false;  // first index fastest
    std::vector<int64_t> shape;
    std::size_t data_offset = 0;
    std::size_t data_bytes = 0;
};

// Reads the header from the start of a file: its first kMaxPrefixBytes are enough, the data need not be there.
Status read_header(std::span<const std::byte> prefix, Header* out);

// One array, from and to the bytes of a whole file. Fortran order becomes C order. read_array leaves out->name alone.
Status read_array(std::span<const std::byte> file, Tensor* out);
Status write_array(const Tensor& tensor, Bytes* out);

// As above for a TensorFile of exactly one tensor without metadata; the tensor read has the empty name.
Status read(std::span<const std::byte> file, TensorFile* out);
Status write(const TensorFile& file, Bytes* out);

// invalid_argument where metadata would be lost: .npy and .npz have no place for it.
Status check_no_metadata(const TensorFile& file);

}  // namespace clary::io::npy
