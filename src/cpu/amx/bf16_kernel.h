// SPDX-License-Identifier: Apache-2.0
// int8_bf16 with AMX: scores and softmax in fp32, P V by products of bf16 with fp32 sums over a tile. V's rows are turned into
// columns once for the four blocks of a task. (The products take values below 2^-126 for zeros.)
#pragma once

#include "cpu/amx/tile_queries.h"

namespace clary::cpu::amx {

class Bf16Block : public TileQueries<Format::kBf16> {
    static constexpr int kPair = 2;  // keys of a word

  public:
    struct Memory {
        Memory(const AttentionDesc& desc, void* base) {
            Scratch scratch(base);
            const int64_t tile = desc.recipe.tile, dim_v = round_up(desc.head_dim_v, kDimMultiple);
            x = scratch.take<float>(tile * kLanes);              // [keys][lanes]
            p = scratch.take<int32_t>(tile / kPair * kLanes);    // [words of two keys][lanes]
            sums = scratch.take<float>(kRun * kLanes);           // [16 channels][lanes]
            pairs = scratch.take<int32_t>(kRun * dim_v);         // [16 words of two keys][channels]
            columns = scratch.take<int32_t>(dim_v * tile / kPair);  // V of a tile, [channels][words of two keys]
            bytes = scratch.bytes();
        }
        float *x, *sums;
        int32_t *p, *pairs, *columns;
        int64_t bytes;
    };

    Bf16Block(const AttendProblem& problem, const AttendTask& task, void* scratch, const Memory& memory)
        : TileQueries(problem, task, scratch, memory.x), memory_(memory) {}

    static void run(TileTask<Bf16Block>& task) {
        TileQueue queue;
        for (int64_t tile = task.task().first_tile; tile < task.task().end_tile; ++tile) {
            bool turned = false;
            for (int i = 0; i < task.count(); ++i) {
                Bf16Block& block = task.block(i);
                const int keys = block.keys_of(tile);
                if (keys == 0) continue;
                if (!turned) block.turn_values(tile);
                turned = true;
                block.float_scores(tile, keys, &queue);
                if (block.softmax(tile, keys)) block.rescale_output();
                block.multiply_values(tile, keys, &queue);
            }
        }
    }

  private:
    // Keys that do not exist become zeros: their P is 0, but what lies in their place may not be finite.
    void turn_values(int64_t tile) const {
        const int64_t dim_v = p_.dim_v, words = tile_ / kPair;
        const auto* const rows = static_cast<const uint16_t*>(p_.v_codes) + (kv_row_ + tile * tile_) * dim_v;
        const int64_t count = std::min<int64_t>(tile_, t_.sequence.kv_len - tile * tile_);
        for (int64_t first = 0; first < words; first += kRun) {
            for (int64_t word = 0; word < kRun; ++word)
                for (int64_t d = 0; d < dim_v; d += V::kLanes) {
                    const int64_t key = (first + word) * kPair;
                    const auto load = [&](int64_t k) {
                        const auto* const from = reinterpret_cast<const __m256i*>(rows + k * dim_v + d);
                        return k < count ? _mm512_cvtepu16_epi32(_mm256_loadu_si256(from)) : V::zero();
                    };
                    V::store(memory_.pairs + word * dim_v + d,
                             _mm512_or_si512(load(key), _mm512_slli_epi32(load(key + 1), 16)));
                }
            for (int64_t d = 0; d < dim_v; d += V::kLanes)
                V::transpose(reinterpret_cast<const float*>(memory_.pairs) + d, dim_v,
                             reinterpret_cast<float*>(memory_.columns) + d * words + first, words);
        }
    }

    // O += V^T P c, P [keys][lanes] being in buffers_.x.
    void multiply_values(int64_t tile, int keys, TileQueue* queue) {
        for (int word = 0; word < keys / kPair; ++word) {
            CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                const int at = word * kPair * kLanes + c * V::kLanes;
                const I even = _mm512_castps_si512(V::load(buffers_.x + at));
                const I odd = _mm512_castps_si512(V::load(buffers_.x + at + kLanes));
                V::store(memory_.p + word * kLanes + c * V::kLanes,
                         _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even, 16), odd));
            }
        }
        const Weight weight = weight_of(tile);
        const int64_t words = tile_ / kPair;
        Tiles::hold(memory_.p);
        for (int i = 0; i < groups(); ++i) {
            const int c = queue->begin(reinterpret_cast<int32_t*>(memory_.sums));
            Tiles::multiply_bf16(c, memory_.columns + i * kRun * words, words * 4, memory_.p, keys / kPair / kRun);
            queue->store_all();
            for (int r = 0; r < kRun; ++r) {
                CLARY_UNROLL for (int half = 0; half < 2; ++half)
                    add_value(weight, i * kRun + r, half, V::load(memory_.sums + r * kLanes + half * V::kLanes));
            }
        }
    }

    const Memory& memory_;
};

}  // namespace clary::cpu::amx
