// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <string>

#include "sim/maca/mc_runtime.h"
#include "sim/products.h"

namespace clary::sim::maca {
namespace {

constexpr int kLanes = 64, kSide = 16;  // of a product: 16 x 16 results

// Of (row, column) where rows have `columns`.
size_t at(int row, int columns, int column) {
    const int index = row * columns + column;
    return static_cast<size_t>(index);
}

struct Operands {
    const uint32_t *x, *y;
    void* d;
};

// Rows of `registers` words of each of the four lanes that hold parts of it, in the order of depth.
std::array<uint32_t, 2 * kLanes> matrix_of(Met<Operands> met, const uint32_t* Operands::*side, int registers) {
    std::array<uint32_t, 2 * kLanes> words{};
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < registers; ++i)
            words[at(lane % kSide * 4 + lane / kSide, registers, i)] = (met[lane].*side)[i];
    return words;
}

template <typename R>
void multiply_all(const char* what, gpu::Element type, int registers, Operands mine, Site site) {
    meet(what, site, mine, [=](Met<Operands> met) {
        const auto x = matrix_of(met, &Operands::x, registers), y = matrix_of(met, &Operands::y, registers);
        const int depth = 4 * registers * 32 / gpu::element_bits(type);
        std::array<R, kSide * kSide> dense;
        const auto for_results = [&](auto visit) {
            for (int lane = 0; lane < kLanes; ++lane)
                for (int i = 0; i < 4; ++i)
                    visit(static_cast<R*>(met[lane].d) + i, &dense[at(lane / kSide * 4 + i, kSide, lane % kSide)]);
        };
        for_results([](const R* c, R* to) { *to = *c; });
        const auto* const rows = reinterpret_cast<const uint8_t*>(x.data());
        const auto* const columns = reinterpret_cast<const uint8_t*>(y.data());
        if constexpr (std::is_same_v<R, int32_t>)
            multiply_integers(type, type, rows, columns, kSide, kSide, depth, dense.data());
        else
            multiply_floats(type, rows, columns, kSide, kSide, depth, dense.data());
        for_results([](R* d, const R* from) { *d = *from; });
        ++met.wave.block->counters.products;
        met.wave.block->counters.multiply_adds += kSide * kSide * depth;
    });
}

}  // namespace

void multiply(const char* what, gpu::Element type, int registers, const uint32_t* x, const uint32_t* y, V4i* d,
              Site site) {
    multiply_all<int32_t>(what, type, registers, {x, y, d}, site);
}
void multiply(const char* what, gpu::Element type, int registers, const uint32_t* x, const uint32_t* y, V4f* d,
              Site site) {
    multiply_all<float>(what, type, registers, {x, y, d}, site);
}

void only_on(gpu::Chip chip, const char* what, Site site) {
    const Lane& lane = *current;
    Block& block = *lane.wave->block;
    if (block.machine.chip != chip)
        block.fail(Check::kLaunch, site, fmt::format("{} is no instruction of {}", what, machine_name(block.machine)),
                   lane.wave->index, lane.index);
}

void copy(uint32_t to, const void* from, bool active, bool zeros, Site site) {
    struct One {
        uint32_t to;
        const void* from;
        bool active;
    } mine{to, active ? from : nullptr, active || zeros};
    meet("ldg_b128_bsm", site, mine, [=](Met<One> met) {
        WaveCopy copy;
        for (size_t i = 0; i < kLanes; ++i) {
            const One& one = met[static_cast<int>(i)];
            copy.to[i] = {one.to};
            copy.from[i] = one.from;
            copy.active[i] = one.active;
        }
        met.wave.block->start_copies(met.wave, copy, site);
    });
}

int64_t load_transposed(uint32_t from, Site site) {
    struct One {
        uint32_t from;
        int64_t result;
    } mine{from, 0};
    meet("load_shared_trans_4x16", site, mine, [=](Met<One> met) {
        Block& block = *met.wave.block;
        uint16_t columns[kLanes][4];  // what each lane's address holds
        std::array<uint32_t, kLanes> addresses;
        for (int lane = 0; lane < kLanes; ++lane) {
            SharedMemory::Fault fault;
            addresses[static_cast<size_t>(lane)] = met[lane].from;
            if (!block.shared.read<8>(block.stamp(met.wave, Stamp::kMany), met[lane].from, columns[lane], fault))
                block.fail(fault.check, site, "load_shared_trans_4x16 " + fault.text, met.wave.index, lane);
        }
        block.count_passes(met.wave, addresses.data(), kLanes, 8, site);
        for (int lane = 0; lane < kLanes; ++lane) {
            const int group = lane / kSide * kSide, column = lane % kSide;
            uint16_t rows[4];
            for (int row = 0; row < 4; ++row) rows[row] = columns[group + row * 4 + column / 4][column % 4];
            std::memcpy(&met[lane].result, rows, sizeof rows);
        }
    });
    return mine.result;
}

}  // namespace clary::sim::maca
