// SPDX-License-Identifier: Apache-2.0
// The property that the harnesses of the file formats check: whatever a reader accepts, the writer can write, and it
// reads back the same. A broken property stops the process, which is how libFuzzer learns of it.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "io/tensor_file.h"

namespace clary::io {

inline void require(bool holds, const char* what, const std::string& detail) {
    if (holds) return;
    std::fprintf(stderr, "broken property: %s: %s\n", what, detail.c_str());
    std::abort();
}

inline void require_same(const TensorFile& actual, const TensorFile& expected) {
    require(actual.metadata == expected.metadata, "same metadata", "");
    require(actual.tensors.size() == expected.tensors.size(), "same tensor count", "");
    for (const Tensor& tensor : expected.tensors) {
        const Tensor* found = actual.find(tensor.name);
        require(found != nullptr, "same names", tensor.name);
        require(found->dtype == tensor.dtype && found->shape == tensor.shape && found->bytes == tensor.bytes,
                "same tensor", tensor.name);
    }
}

// One run of a harness on one input.
template <class Read, class Write>
void check_round_trip(std::span<const std::byte> input, Read&& read, Write&& write) {
    TensorFile file;
    const Status status = read(input, &file);
    if (!status.is_ok()) {
        require(status.code() == StatusCode::kInvalidArgument, "bad input is an invalid argument", status.text());
        require(status.text().find('\n') == std::string::npos, "one line", status.text());
        require(file.tensors.empty() && file.metadata.empty(), "nothing is read on failure", status.text());
        return;
    }
    Bytes written;
    const Status write_status = write(file, &written);
    require(write_status.is_ok(), "write succeeds", write_status.text());
    TensorFile again;
    const Status read_status = read(written, &again);
    require(read_status.is_ok(), "read of what was written succeeds", read_status.text());
    require_same(again, file);
}

}  // namespace clary::io
