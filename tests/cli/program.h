// SPDX-License-Identifier: Apache-2.0
// Runs the program `clary` and makes small input files for it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/tensor_file.h"

namespace clary::test {

struct Outcome {
    int exit_code = -1;
    std::string out, err;
    nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// Arguments are given to a shell as they are: file names of Folder need no quoting.
Outcome run_clary(const std::string& arguments);

// A folder of its own for each test, removed afterwards.
class Folder : public ::testing::Test {
  protected:
    Folder();
    ~Folder() override;
    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    void write_bytes(const std::string& name, const std::string& bytes) const;
    std::string read_bytes(const std::string& name) const;

  private:
    std::filesystem::path folder_;
};

// fp32 values from a fixed formula, within about [-1, 1]; `salt` makes them differ.
io::Tensor make_values(const std::string& name, const std::vector<int64_t>& shape, int salt);
// q [1, 4, q_len, 16], k and v [1, 2, kv_len, 16], names with the prefix "<layer>." where it is not empty.
io::TensorFile small_capture(int64_t q_len = 20, int64_t kv_len = 20, const std::string& layer = "");
void save_file(const std::string& path, const io::TensorFile& file);
io::TensorFile load_file(const std::string& path);

// Attention in float64 by the textbook: q [1, H, Lq, D], k, v [1, Hkv, Lk, D] -> [1, H, Lq, D]; query i sees keys up to
// i + offset where causal.
std::vector<double> textbook_attention(const io::TensorFile& file, bool causal, int64_t offset, double scale);

}  // namespace clary::test
