// SPDX-License-Identifier: Apache-2.0
// support_table FILE           writes the table of what every kernel takes
// support_table --check FILE   exit code 1 where the file is not what would be written
// A FILE whose name ends with _cuda.md is about NVIDIA GPUs, with _maca.md about MetaX GPUs, any other about the CPU.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "cases/features.h"

int main(int argc, char** argv) {
    const bool check = argc == 3 && std::strcmp(argv[1], "--check") == 0;
    if (argc != 2 && !check) {
        std::fprintf(stderr, "usage: support_table [--check] FILE\n");
        return 2;
    }
    const char* const path = argv[argc - 1];
    const auto ends_with = [=](const char* end) { return std::string_view(path).ends_with(end); };
    const std::string table = clary::cases::support_table(ends_with("_cuda.md")   ? clary::DeviceType::kCuda
                                                          : ends_with("_maca.md") ? clary::DeviceType::kMaca
                                                                                  : clary::DeviceType::kCpu);
    if (!check) {
        std::ofstream file(path, std::ios::binary);
        file << table;
        return file.flush() ? 0 : 2;
    }
    std::ifstream file(path, std::ios::binary);
    const std::string found((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (found == table) return 0;
    std::fprintf(stderr, "%s is not up to date; write it anew: bin/support_table %s\n", path, path);
    return 1;
}
