// SPDX-License-Identifier: Apache-2.0
#include "system_info.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

namespace clary::cli {
namespace {

// Words of /proc/cpuinfo: x86 first, then Arm.
constexpr std::array kKnownFeatures = {"sse4_2",      "avx2",     "fma",      "f16c",        "avx_vnni",
                                       "avx512f",     "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
                                       "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",    "asimd",
                                       "asimddp",     "i8mm",     "bf16",     "sve"};

// The value behind the first line that starts with `key`, without blanks and quotes around it.
std::string value_in(const std::string& path, const std::string& key, char separator) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const size_t at = line.find(separator);
        if (at == std::string::npos) continue;
        const size_t begin = line.find_first_not_of(" \t\"", at + 1);
        if (begin == std::string::npos) return "";
        return line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin);
    }
    return "";
}

std::string first_line_of(const char* command) {
    struct Close {
        void operator()(FILE* pipe) const { pclose(pipe); }
    };
    const std::unique_ptr<FILE, Close> pipe(popen(command, "r"));
    std::array<char, 256> line{};
    if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "";
    std::string text = line.data();
    while (text.ends_with('\n')) text.pop_back();
    return text;
}

}  // namespace

SystemInfo system_info() {
    SystemInfo info;
    utsname names{};
    uname(&names);
    const std::string distribution = value_in("/etc/os-release", "PRETTY_NAME", '=');
    info.os = fmt::format("{}{}{} {} {}", distribution, distribution.empty() ? "" : ", ", names.sysname, names.release,
                          names.machine);
    info.cpu = value_in("/proc/cpuinfo", "model name", ':');
    if (info.cpu.empty()) info.cpu = names.machine;
    std::string flags = value_in("/proc/cpuinfo", "flags", ':');
    if (flags.empty()) flags = value_in("/proc/cpuinfo", "Features", ':');
    std::istringstream words(flags);
    for (std::string word; words >> word;)
        if (std::find(kKnownFeatures.begin(), kKnownFeatures.end(), word) != kKnownFeatures.end())
            info.cpu_features.push_back(word);
    cpu_set_t set;
    info.cores = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set)
                                                              : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    info.memory_gib =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE)) / (1 << 30);
    return info;
}

std::string machine_text() {
    const SystemInfo info = system_info();
    return fmt::format("{}, {} core{}", info.cpu, info.cores, info.cores == 1 ? "" : "s");
}

std::string today() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    gmtime_r(&now, &parts);
    return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

double cpu_clock_mhz() {
    const std::string text = value_in("/proc/cpuinfo", "cpu MHz", ':');
    return text.empty() ? 0 : std::strtod(text.c_str(), nullptr);
}

std::string commit_text() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return "";
    setenv("CLARY_PROGRAM_FOLDER", program.parent_path().c_str(), 1);
    return first_line_of("git -C \"$CLARY_PROGRAM_FOLDER\" rev-parse --short=10 HEAD 2>/dev/null");
}

std::string torch_version() {
    return first_line_of(
        "python3 -c 'import torch; print(torch.__version__, \"cuda\", torch.version.cuda, "
        "\"available\" if torch.cuda.is_available() else \"not available\")' 2>/dev/null");
}

}  // namespace clary::cli
