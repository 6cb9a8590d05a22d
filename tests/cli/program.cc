// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace clary::test {
namespace {

std::string contents(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::filesystem::path new_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "clary_cli_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    return name;
}

}  // namespace

Outcome run_clary(const std::string& arguments) {
    const std::filesystem::path folder = new_folder();
    const std::string command = std::string(CLARY_PROGRAM) + " " + arguments + " >" + (folder / "out").string() +
                                " 2>" + (folder / "err").string() + " </dev/null";
    const int status = std::system(command.c_str());
    Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, contents(folder / "out"), contents(folder / "err")};
    std::filesystem::remove_all(folder);
    return outcome;
}

Folder::Folder() : folder_(new_folder()) {}
Folder::~Folder() { std::filesystem::remove_all(folder_); }

void Folder::write_bytes(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
}
std::string Folder::read_bytes(const std::string& name) const { return contents(path(name)); }

io::Tensor make_values(const std::string& name, const std::vector<int64_t>& shape, int salt) {
    io::Tensor tensor;
    EXPECT_TRUE(io::make_tensor(name, DType::kF32, shape, &tensor).is_ok());
    double phase = salt;
    for (float& x : tensor.as<float>()) x = static_cast<float>(std::sin(phase += 1.7 + 0.01 * salt));
    return tensor;
}

io::TensorFile small_capture(int64_t q_len, int64_t kv_len, const std::string& layer) {
    const std::string prefix = layer.empty() ? "" : layer + ".";
    io::TensorFile file;
    file.tensors.push_back(make_values(prefix + "q", {1, 4, q_len, 16}, 1));
    file.tensors.push_back(make_values(prefix + "k", {1, 2, kv_len, 16}, 2));
    file.tensors.push_back(make_values(prefix + "v", {1, 2, kv_len, 16}, 3));
    return file;
}

void save_file(const std::string& path, const io::TensorFile& file) {
    const Status status = io::save(path, file);
    ASSERT_TRUE(status.is_ok()) << status.text();
}

io::TensorFile load_file(const std::string& path) {
    io::TensorFile file;
    const Status status = io::load(path, &file);
    EXPECT_TRUE(status.is_ok()) << status.text();
    return file;
}

std::vector<double> textbook_attention(const io::TensorFile& file, bool causal, int64_t offset, double scale) {
    const io::Tensor &q = *file.find("q"), &k = *file.find("k"), &v = *file.find("v");
    const int64_t heads = q.shape[1], rows = q.shape[2], dim = q.shape[3], keys = k.shape[2];
    const int64_t group = heads / k.shape[1];
    const float *qs = q.as<float>().data(), *ks = k.as<float>().data(), *vs = v.as<float>().data();
    std::vector<double> out(static_cast<size_t>(heads * rows * dim), 0);
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t i = 0; i < rows; ++i) {
            std::vector<double> weights;
            double sum = 0;
            for (int64_t j = 0; j < keys && (!causal || j <= i + offset); ++j) {
                double score = 0;
                for (int64_t d = 0; d < dim; ++d)
                    score += static_cast<double>(qs[(h * rows + i) * dim + d]) * ks[(h / group * keys + j) * dim + d];
                weights.push_back(std::exp(scale * score));
                sum += weights.back();
            }
            for (size_t j = 0; j < weights.size(); ++j)
                for (int64_t d = 0; d < dim; ++d)
                    out[static_cast<size_t>((h * rows + i) * dim + d)] +=
                        weights[j] / sum * vs[(h / group * keys + static_cast<int64_t>(j)) * dim + d];
        }
    return out;
}

}  // namespace clary::test
