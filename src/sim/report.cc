// SPDX-License-Identifier: Apache-2.0
#include "sim/report.h"

#include <fmt/format.h>

namespace clary::sim {

const char* check_name(Check check) {
    switch (check) {
        case Check::kNone:
            return "none";
        case Check::kLaunch:
            return "launch";
        case Check::kTooMuchShared:
            return "too much shared memory";
        case Check::kDivergence:
            return "divergence";
        case Check::kOutOfRange:
            return "out of range";
        case Check::kMisaligned:
            return "misaligned";
        case Check::kUninitialised:
            return "uninitialised";
        case Check::kRace:
            return "race";
        case Check::kPendingCopy:
            return "pending copy";
        case Check::kCopyDestination:
            return "copy destination";
        case Check::kBankConflict:
            return "bank conflict";
        case Check::kGlobalRange:
            return "global range";
        case Check::kStuck:
            return "stuck";
    }
    return "?";
}

std::string Report::describe() const {
    if (ok())
        return fmt::format("ok: {} products, {} collectives, {} accesses, {} copies, {} bank conflicts",
                           counters.products, counters.collectives, counters.accesses, counters.copies,
                           counters.bank_conflicts);
    std::string where;
    if (failure.line > 0) where += fmt::format("{}:{}: ", failure.file, failure.line);
    where += fmt::format("block ({}, {}, {})", failure.block[0], failure.block[1], failure.block[2]);
    if (failure.wave >= 0) where += fmt::format(" wave {}", failure.wave);
    if (failure.lane >= 0) where += fmt::format(" lane {}", failure.lane);
    return fmt::format("{}: {}: {}", check_name(failure.check), where, failure.text);
}

}  // namespace clary::sim
