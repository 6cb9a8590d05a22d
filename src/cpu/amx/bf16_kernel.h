// SPDX-License-Identifier: Apache-2.0
// int8_bf16 with AMX: scores and softmax in fp32, P V by products of bf16 with fp32 sums over a tile. V's rows are turned into
// columns once for the four blocks of a task. (The products take values below 2^-126 for zeros.)
#pragma once

#include "cpu/amx/tile_queries.h"

namespace clary::cpu::amx {

class Bf16Block : public TileQueries<Format::kBf16> {
    static constexpr int kPair = 2;  // keys of a word

  public:
    static constexpr int64_t kFewestKeys = 64;  // with fewer, AVX-512 is as fast

    struct Memory {
        Memory(const AttentionDesc& desc, void* base) {
            Scratch scratch(base);
            const int64_t tile = desc.recipe.tile, dim_v = round_up(desc.head_dim_v, kDimMultiple);
            // [keys][lanes]; finish() takes 16 rows of O there.
            x = scratch.take<float>(std::max(tile * kLanes, V::kLanes * dim_v));
            p = scratch.take<int32_t>(tile / kPair * kLanes);       // [words of two keys][lanes]
            sums = scratch.take<int32_t>(2 * Tiles::kBlock);        // fp32 of 16 channels, in turn, [16][lanes]
            pairs = scratch.take<int32_t>(kRun * dim_v);            // [16 words of two keys][channels]
            columns = scratch.take<int32_t>(dim_v * tile / kPair);  // V of a tile, [channels][words of two keys]
            bytes = scratch.bytes();
        }
        float* x;
        int32_t *p, *sums, *pairs, *columns;
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
                const auto make_p = [&]<bool kWantLse>(std::bool_constant<kWantLse>, auto... p) {
                    return block.make_pairs<kWantLse>(p...);
                };
                if (block.softmax(tile, keys, make_p)) block.rescale_output();
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

    // P as words of two keys; returns its sum, *exact_sum that of P before rounding.
    template <bool kWantLse>
    F make_pairs(int keys, int at, F factor, F shift, F* exact_sum) {
        const float* const x = buffers_.x + at;
        int32_t* const to = memory_.p + at;
        F sum[kPair] = {V::set1(0.0f), V::set1(0.0f)}, exact = V::set1(0.0f);
        for (int key = 0; key < keys; key += kPair) {
            I p[kPair];
            CLARY_UNROLL for (int i = 0; i < kPair; ++i) {
                const F value = V::template exp2<4>(V::fma(V::load(x + (key + i) * kLanes), factor, shift));
                if constexpr (kWantLse) exact = V::add(exact, value);
                // To nearest even at bit 16; P is no NaN but one that arithmetic made, which stays one.
                const I bits = _mm512_castps_si512(value);
                const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), V::set1(1));
                p[i] = V::add(bits, V::add(odd, V::set1(0x7fff)));
                sum[i] = V::add(sum[i],
                                _mm512_castsi512_ps(_mm512_and_si512(p[i], V::set1(static_cast<int32_t>(0xffff0000)))));
            }
            V::store(to + key / kPair * kLanes, _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(p[0], 16), p[1]));
        }
        *exact_sum = exact;
        return V::add(sum[0], sum[1]);
    }

    // O += V^T P c.
    void multiply_values(int64_t tile, int keys, TileQueue* queue) {
        const int64_t words = tile_ / kPair;
        const int steps = pad(memory_.p, keys / kPair);
        const auto multiply = [&](int i) {
            Tiles::multiply_bf16(queue->begin(sums(i)), memory_.columns + i * kRun * words, words * 4, memory_.p,
                                 steps);
        };
        add_values(weight_of(tile), memory_.p, queue, multiply, [&](int i) { return sums(i); });
    }
    int32_t* sums(int i) const { return memory_.sums + i % 2 * Tiles::kBlock; }

    const Memory& memory_;
};

}  // namespace clary::cpu::amx
