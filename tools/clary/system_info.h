// SPDX-License-Identifier: Apache-2.0
// What this machine is: for `clary env`, and for the head of every report that states a speed.
#pragma once

#include <string>
#include <vector>

namespace clary::cli {

struct SystemInfo {
    std::string os;                         // "Debian GNU/Linux 12 (bookworm), Linux 6.1.0 x86_64"
    std::string cpu;                        // "Intel(R) Xeon(R) ..."
    std::vector<std::string> cpu_features;  // those that kernels ask for: "avx2", "avx512_vnni", "amx_int8", ...
    int cores = 0;                          // that this process may use
    double memory_gib = 0;
};
SystemInfo system_info();

std::string machine_text();  // "Intel(R) Xeon(R) ..., 2 cores"
std::string today();         // "2026-02-28", UTC

double cpu_clock_mhz();  // of the first core, as the system reports it; 0: unknown

// The revision of the source tree that this program was built in; "" where it was installed elsewhere.
std::string commit_text();

// What python3 prints about torch, "" where there is no torch.
std::string torch_version();

}  // namespace clary::cli
