// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "cuda/ptx/copies.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/config.h"
#include "gpu/attention/lane_rows.h"
#include "gpu/attention/output_rows.h"
#include "gpu/header.h"
#include "gpu/target/nvidia.h"
#include "gpu/target/products.h"
#include "numerics/constants.h"
#include "numerics/digits.h"

namespace clary::cuda::sm90 {

using T = gpu::Nvidia<gpu::kSm80>;
using gpu::static_for;
using gpu::TileRange;

// Rows of one kv head: what a block does between two loads of Q.
struct Work {
    int b, kv_head;       // b < 0: no more work
    int first_row, rows;  // among the rows of the kv head; those that exist
    int tile;             // first of the sequence, among all tiles of K and V
    int q_begin;          // of the sequence
    bool valid;           // packed for this call
    bool loud;            // some row has repeat 0
    TileRange range;      // tiles of keys that some row sees
    TileRange all[3];     // by warpgroup: of which all rows see all keys
};

// What a row needs: in shared memory, to save registers and time.
struct RowConstants {
    float factor;           // base-2 score per unit of Q's codes times K's values
    float loud;             // bias per digit of a row whose repeat is 0, in units of S; else 0
    gpu::VisibleKeys keys;  // that it sees
    int head, query;
};

// What a tile of keys needs beside its codes.
struct alignas(16) TileScales {
    float key[8];  // K's scales: [64 keys][key % 8 / 2]
    float base, value;
};

template <Config kConfig>
class Attention {
    static constexpr Config c = kConfig;
    static constexpr int kD = c.head_dim;
    static constexpr int kTileQ = c.tile_q(), kConsumers = c.warpgroups * 128;
    static constexpr int kRuns = kTileK / 16;
    static constexpr int kRowBytes = kD + (c.key_bias ? numerics::kDigitColumns : 0);  // of Q and K
    // The accumulators' layout is that of mma.sync's.
    using Atom = gpu::Product<T::kChip, gpu::Element::kU8, gpu::Element::kS8, gpu::Element::kS32>;
    using Output = gpu::OutputRows<T, Atom, 1, kD / 8>;

    // -- shared memory --
    static constexpr uint32_t kQueryBytes = kTileQ * kD, kKeyBytes = kTileK * kD, kValueBytes = kD * kTileK;
    static constexpr uint32_t kDigitBytes = c.key_bias ? kTileK * numerics::kDigitColumns : 0;
    static constexpr uint32_t kRepeatBytes = c.key_bias ? kTileQ * numerics::kDigitColumns : 0;
    static constexpr uint32_t kWeightBytes = c.key_bias ? kTileK : 0;
    static constexpr uint32_t kQueriesAt = 0;  // two stages
    static constexpr uint32_t kKeysAt = kQueriesAt + 2 * kQueryBytes;
    static constexpr uint32_t kValuesAt = kKeysAt + c.stages * kKeyBytes;
    static constexpr uint32_t kDigitsAt = kValuesAt + c.stages * kValueBytes;
    static constexpr uint32_t kRepeatsAt = kDigitsAt + c.stages * kDigitBytes;  // Q's digit columns, two stages
    static constexpr uint32_t kWeightsAt = kRepeatsAt + 2 * kRepeatBytes;
    static constexpr uint32_t kBarriersAt = kWeightsAt + c.stages * kWeightBytes;
    static constexpr int kBarriers = 4 * c.stages + 4;
    static constexpr uint32_t kWorkAt = kBarriersAt + (kBarriers * 8 + 15) / 16 * 16, kWorkBytes = 96;  // two stages
    static_assert(sizeof(Work) <= kWorkBytes);
    static constexpr uint32_t kScalesAt = kWorkAt + 2 * kWorkBytes;  // TileScales
    static constexpr uint32_t kRowsAt = kScalesAt + c.stages * sizeof(TileScales), kRowsBytes = kTileQ * sizeof(RowConstants);
    static constexpr uint32_t kOutputAt = (kRowsAt + 2 * kRowsBytes + 127) / 128 * 128;

  public:
    static constexpr uint32_t kSharedBytes = kOutputAt + c.warpgroups * 4 * Output::kBytes;
    static_assert(kSharedBytes <= 227 * 1024, "fits the machine");

    CLARY_DEVICE static void run(const Params& params) {
        Attention kernel(params);
        kernel.block();
    }

  private:
    static constexpr float kInfinity = __builtin_huge_valf();
    static constexpr float kPTop = numerics::kPUint8Max, kPLog2Top = 7.99435343685886f;
    static constexpr int32_t kMasked = INT32_MIN;  // no score

    CLARY_DEVICE static uint32_t shared() {
        return static_cast<uint32_t>(__cvta_generic_to_shared(gpu::clary_shared_memory));
    }
    CLARY_DEVICE static uint32_t barrier(int index) { return shared() + kBarriersAt + static_cast<uint32_t>(index) * 8; }
    CLARY_DEVICE static uint32_t key_full(int stage) { return barrier(stage); }
    CLARY_DEVICE static uint32_t key_empty(int stage) { return barrier(c.stages + stage); }
    CLARY_DEVICE static uint32_t value_full(int stage) { return barrier(2 * c.stages + stage); }
    CLARY_DEVICE static uint32_t value_empty(int stage) { return barrier(3 * c.stages + stage); }
    CLARY_DEVICE static uint32_t query_full(int stage) { return barrier(4 * c.stages + stage); }
    CLARY_DEVICE static uint32_t query_empty(int stage) { return barrier(4 * c.stages + 2 + stage); }

    // A place in a ring of stages, and the parity of its current phase, in one register.
    template <int kStages>
    struct Ring {
        int at = 0;
        CLARY_DEVICE int stage() const { return at < kStages ? at : at - kStages; }
        CLARY_DEVICE uint32_t parity() const { return at < kStages ? 0 : 1; }
        CLARY_DEVICE int stage_before() const { return at == 0 || at == kStages ? kStages - 1 : stage() - 1; }
        CLARY_DEVICE void next() { at = at == 2 * kStages - 1 ? 0 : at + 1; }
    };

    CLARY_DEVICE explicit Attention(const Params& params)
        : params_(params),
          p_(params.attention),
          // One for the warp, as the shuffle tells the compiler.
          group_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0)) {}

    // -- work --
    // Item of the block's round; odd rounds run backwards, so that every block gets as much. -1: none left.
    CLARY_DEVICE int item_of(int round) const {
        const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
        const int item = round * blocks + (round % 2 ? blocks - 1 - block : block);
        return item < params_.schedule.items ? item : -1;
    }
    CLARY_DEVICE gpu::Row row_of(const Work& work, int row) const {
        return gpu::Row::of(p_.desc, work.kv_head, work.first_row + (row < work.rows ? row : work.rows - 1));
    }
    CLARY_DEVICE Sequence sequence_of_work(int b) const {
        const AttentionDesc& desc = p_.desc;
        int64_t keys = clamp(p_.lengths[b], 0, p_.kv_rows.rows);
        if (desc.varlen()) keys = clamp(keys, 0, sequence_of(desc, b).kv_len);
        if (desc.kv_lengths.given()) keys = clamp(integer_at(desc.kv_lengths, b), 0, keys);
        return sequence_of(desc, b, keys);
    }
    CLARY_DEVICE void find_work(int item, Work& w) const {
        const AttentionDesc& desc = p_.desc;
        const Schedule& s = params_.schedule;
        const int chunk = item / (s.chunk_heads * s.q_tiles), within = item - chunk * s.chunk_heads * s.q_tiles;
        const int left = s.heads - chunk * s.chunk_heads, heads = left < s.chunk_heads ? left : s.chunk_heads;
        const int order = within / heads, head = chunk * s.chunk_heads + within - order * heads;
        const auto group = static_cast<int>(desc.q_heads_per_kv()), kv_heads = static_cast<int>(desc.kv_heads);
        w.b = head / kv_heads;
        w.kv_head = head - w.b * kv_heads;
        const Sequence sequence = sequence_of_work(w.b);
        w.first_row = (s.q_tiles - 1 - order) * s.tile_rows;
        const int rows = static_cast<int>(sequence.q_len) * group - w.first_row;
        w.rows = rows < s.tile_rows ? rows : s.tile_rows;
        w.tile = static_cast<int>(p_.kv_rows.begin(w.b, w.kv_head, kv_heads, sequence.kv_begin) / kTileK);
        w.q_begin = static_cast<int>(sequence.q_begin);
        w.range = {0, 0, 0};
        w.valid = gpu::headers_match(p_.headers);
        w.loud = false;
        // Buffers that were packed for something else are not read.
        if (w.rows <= 0 || !w.valid) return;
        const auto span = [&](int first, int last) {
            return gpu::VisibleSpan::of(desc, sequence, row_of(w, first).query, row_of(w, last).query);
        };
        w.range = TileRange::some(span(0, kTileQ - 1), kTileK);
        for (int g = 0; g < c.warpgroups; ++g)
            w.all[g] = TileRange::all(span(g * kGroupRows, (g + 1) * kGroupRows - 1), kTileK);
    }
    CLARY_DEVICE static Work& work_at(int stage) {
        return *reinterpret_cast<Work*>(gpu::clary_shared_memory + kWorkAt + stage * kWorkBytes);
    }

    // -- the producers, ahead of the warpgroups by as many tiles as there are stages: a warp that finds work and sets off
    // copies, one that looks up scales of tiles, and two that look up rows --
    static constexpr int kProducersBarrier = 1, kTurnBarrier = 2;

    CLARY_DEVICE void produce() const {
        Ring<c.stages> ring;
        Ring<2> queries;
        const int warp = T::wave() - kConsumers / 32;
        const bool leads = threadIdx.x == kConsumers;
        for (int round = 0;; ++round) {
            const int item = item_of(round);
            ptx::barrier_wait(query_empty(queries.stage()), queries.parity() ^ 1);
            Work& work = work_at(queries.stage());
            if (leads) {
                if (item >= 0)
                    find_work(item, work);
                else
                    work.b = -1;
            }
            ptx::named_sync(kProducersBarrier, 128);
            const bool empty = item >= 0 && work.rows <= 0;
            if (empty) {
                ptx::named_sync(kProducersBarrier, 128);  // all have seen it
                continue;
            }
            const uint32_t full = query_full(queries.stage());
            if (warp > 1) {
                if (item >= 0) look_up_rows(work, queries.stage());
                T::wave_sync();
                release(full);
            } else if (item < 0) {
                if (leads) ptx::barrier_arrive(full);
            } else if (warp == 1) {
                look_up_scales(work, ring);
            } else if (leads) {
                load(work, queries.stage(), ring);
            }
            if (item < 0) return;
            queries.next();
        }
    }
    CLARY_DEVICE void load(const Work& work, int query_stage, Ring<c.stages>& ring) const {
        load_queries(work, query_stage);
        for (int tile = work.range.first(); work.range.has(tile); tile = work.range.after(tile)) {
            load_keys(work.tile + tile, ring);
            load_values(work.tile + tile, ring);
            ring.next();
        }
    }
    CLARY_DEVICE void look_up_scales(const Work& work, Ring<c.stages>& ring) const {
        const int lane = T::lane();
        for (int tile = work.range.first(); work.range.has(tile); tile = work.range.after(tile)) {
            const int index = work.tile + tile;
            float scale = 0;
            if (lane < 8)
                scale = p_.k_scale[int64_t{index} * kTileK + lane / 4 * 64 + lane % 4 * 2];
            else if (lane == 8)
                scale = p_.tile_base ? p_.tile_base[index] : 0.0f;
            else if (lane == 9)
                scale = p_.v_scale && p_.desc.recipe.v_scale == VScale::kToken ? p_.v_scale[index] : 1.0f;
            ptx::barrier_wait(key_empty(ring.stage()), ring.parity() ^ 1);
            if (lane < 10) T::store(scales_at(ring.stage()) + static_cast<uint32_t>(4 * lane), scale);
            T::wave_sync();
            release(key_full(ring.stage()));
            ring.next();
        }
    }
    CLARY_DEVICE static gpu::SharedAddress scales_at(int stage) {
        return {kScalesAt + static_cast<uint32_t>(stage * sizeof(TileScales))};
    }
    CLARY_DEVICE void look_up_rows(Work& work, int stage) const {
        const Sequence sequence = sequence_of_work(work.b);
        for (int i = static_cast<int>(threadIdx.x) - kConsumers - 64; i < kTileQ; i += 64) {
            const gpu::Row row = row_of(work, i);
            const int64_t at = p_.q_rows.begin(work.b, row.head, p_.desc.q_heads, sequence.q_begin) + row.query;
            RowConstants constants{p_.q_scale[at] * p_.a, 0.0f, gpu::VisibleKeys::of(p_.desc, sequence, row.query),
                                   row.head, row.query};
            if constexpr (c.key_bias)
                if (p_.q_repeat[at] == 0) {
                    work.loud = true;
                    constants.loud = p_.q_base[work.b * p_.desc.kv_heads + work.kv_head] * p_.a / constants.factor;
                }
            row_constants(stage, i) = constants;
        }
    }
    CLARY_DEVICE static RowConstants& row_constants(int stage, int row) {
        return *reinterpret_cast<RowConstants*>(gpu::clary_shared_memory + kRowsAt + stage * kRowsBytes +
                                                row * sizeof(RowConstants));
    }
    CLARY_DEVICE void load_queries(const Work& work, int stage) const {
        const auto group = static_cast<int>(p_.desc.q_heads_per_kv()), heads = static_cast<int>(p_.desc.q_heads);
        const int head = (p_.q_rows.varlen ? 0 : work.b * heads) + work.kv_head * group;
        const int rows = params_.schedule.tile_rows, query = work.q_begin + work.first_row / group;
        ptx::barrier_expect(query_full(stage), static_cast<uint32_t>(rows * kRowBytes));
        ptx::copy_box(shared() + kQueriesAt + stage * kQueryBytes, &params_.queries, 0, head, query,
                      query_full(stage));
        if constexpr (c.key_bias)
            ptx::copy_box(shared() + kRepeatsAt + stage * kRepeatBytes, &params_.repeats, kD, head, query,
                          query_full(stage));
    }
    CLARY_DEVICE void load_keys(int tile, const Ring<c.stages>& ring) const {
        const uint32_t full = key_full(ring.stage());
        ptx::barrier_wait(key_empty(ring.stage()), ring.parity() ^ 1);
        ptx::barrier_expect(full, kKeyBytes + kDigitBytes);
        ptx::copy_box(shared() + kKeysAt + ring.stage() * kKeyBytes, &params_.keys, 0, tile * kTileK, full);
        if constexpr (c.key_bias)
            ptx::copy_box(shared() + kDigitsAt + ring.stage() * kDigitBytes, &params_.digits, kD, tile * kTileK, full);
    }
    CLARY_DEVICE void load_values(int tile, const Ring<c.stages>& ring) const {
        const uint32_t full = value_full(ring.stage());
        const bool weights = c.key_bias && p_.v_weight != nullptr;
        ptx::barrier_wait(value_empty(ring.stage()), ring.parity() ^ 1);
        ptx::barrier_expect(full, kValueBytes + (weights ? kTileK : 0));
        ptx::copy_box(shared() + kValuesAt + ring.stage() * kValueBytes, &params_.values, 0, tile * kD, full);
        if (weights)
            ptx::copy_bytes(shared() + kWeightsAt + ring.stage() * kWeightBytes, p_.v_weight + int64_t{tile} * kTileK,
                            kTileK, full);
    }

    CLARY_DEVICE void block() {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < c.stages; ++stage) {
                ptx::barrier_init(key_full(stage), 1 + 1);
                ptx::barrier_init(value_full(stage), 1);
                ptx::barrier_init(key_empty(stage), c.warpgroups * 4);
                ptx::barrier_init(value_empty(stage), c.warpgroups * 4);
            }
            for (int stage = 0; stage < 2; ++stage) {
                ptx::barrier_init(query_full(stage), 1 + 2);
                ptx::barrier_init(query_empty(stage), c.warpgroups * 4);
            }
            ptx::barrier_init_done();
        }
        if constexpr (c.key_bias)
            if (p_.v_weight == nullptr)  // every key counts the same: 15 of 15
                for (uint32_t i = threadIdx.x; i < c.stages * kWeightBytes / 4; i += blockDim.x)
                    T::store(gpu::SharedAddress{kWeightsAt + 4 * i}, 0x01010101u * numerics::kWeightUnit);
        __syncthreads();
        if (threadIdx.x >= kConsumers) {
            ptx::fewer_registers<c.producer_registers()>();
            produce();
        } else {
            ptx::more_registers<c.registers()>();
            CLARY_UNROLL
            for (int i = 0; i < kD / 2; ++i) t_[i] = 0;
            if (group_ == c.warpgroups - 1) end_turn();  // the first begins
            for (;;) {
                ptx::barrier_wait(query_full(queries_.stage()), queries_.parity());
                const Work& work = work_at(queries_.stage());
                if (work.b < 0) return;
                attend(work);
                release(query_empty(queries_.stage()));
                queries_.next();
            }
        }
    }

    // -- rows: two of a lane --
    CLARY_DEVICE static int lane_column() { return T::lane() % 4 * 2; }
    CLARY_DEVICE static int row_in_block(int r) { return T::wave() * 16 + T::lane() / 4 + 8 * r; }
    CLARY_DEVICE const RowConstants& row(int r) const { return row_constants(queries_.stage(), row_in_block(r)); }

    CLARY_DEVICE void start_rows() {
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            reference_[r] = -kInfinity;
            sum_[r] = exact_sum_[r] = 0;
            flush_[r] = 0;
        }
        CLARY_UNROLL
        for (int i = 0; i < kD / 2; ++i) out_[i] = 0;
    }

    // -- a block's rows against all their keys --
    CLARY_DEVICE void attend(const Work& work) {
        start_rows();
        int tile = work.range.first();
        if (work.range.has(tile)) {
            int32_t s[kTileK / 2];
            ptx::barrier_wait(key_full(ring_.stage()), ring_.parity());
            take_turn();
            multiply_keys(ring_.stage(), s);
            ptx::wgmma_commit();  // no P yet: a group of nothing
            end_turn();
            bool first = true;
            for (;;) {
                // While S is made: what the next products need.
                const int stage = ring_.stage();
                const bool more = tile + 1 != work.range.end, masked = !work.all[group_].has(tile);
                ptx::barrier_wait(value_full(stage), ring_.parity());
                ring_.next();
                if (more) ptx::barrier_wait(key_full(ring_.stage()), ring_.parity());
                Factors factor;
                const float value_scale = factors(stage, factor);
                ptx::wgmma_wait<1>();
                ptx::pin(s);
                if constexpr (c.key_bias)
                    if (work.loud) add_loud_bias(stage, s);
                release(key_empty(stage));
                if (!masked)
                    softmax<false>(stage, first, factor, s);
                else {
                    mask(tile, s);
                    softmax<true>(stage, first, factor, s);
                }
                first = false;
                CLARY_UNROLL
                for (int r = 0; r < 2; ++r) flush_[r] = weight_[r] * value_scale;
                take_turn();
                if (!more) {
                    multiply_values(stage);
                    break;
                }
                multiply_keys(ring_.stage(), s);
                multiply_values(stage);
                end_turn();
                tile = work.range.after(tile);
            }
            end_turn();
            ptx::wgmma_wait<0>();
            ptx::pin(t_);
            release(value_empty(ring_.stage_before()));
            CLARY_UNROLL
            for (int i = 0; i < kD / 2; ++i) flush(i);
        }
        finish(work);
    }
    // Warpgroups issue products one after the other, so that one multiplies while another makes P.
    CLARY_DEVICE void take_turn() const {
        if constexpr (c.ping_pong) ptx::named_sync(kTurnBarrier + group_, 256);
    }
    CLARY_DEVICE void end_turn() const {
        if constexpr (c.ping_pong)
            ptx::named_arrive(kTurnBarrier + (group_ + 1) % c.warpgroups, 256);
    }
    // By every warp.
    CLARY_DEVICE static void release(uint32_t barrier) {
        if (T::lane() == 0) ptx::barrier_arrive(barrier);
    }

    // -- products --
    CLARY_DEVICE void multiply_keys(int stage, int32_t (&s)[kTileK / 2]) const {
        const ptx::Matrix q = ptx::matrix<kD>(opaque(shared() + kQueriesAt) + queries_.stage() * kQueryBytes +
                                              group_ * kGroupRows * kD),
                          k = ptx::matrix<kD>(opaque(shared() + kKeysAt) + stage * kKeyBytes);
        ptx::wgmma_fence();
        if constexpr (c.key_bias) {
            const ptx::Matrix repeats =
                ptx::matrix<32>(opaque(shared() + kRepeatsAt) + queries_.stage() * kRepeatBytes +
                                group_ * kGroupRows * numerics::kDigitColumns);
            ptx::multiply_s8<false>(s, repeats,
                                    ptx::matrix<32>(opaque(shared() + kDigitsAt) + stage * kDigitBytes));
        } else {
            ptx::multiply_s8<false>(s, q, k);
        }
        CLARY_UNROLL
        for (int d = c.key_bias ? 0 : 1; d < kD / 32; ++d) ptx::multiply_s8<true>(s, q + 32 * d, k + 32 * d);
        ptx::wgmma_commit();
    }
    CLARY_DEVICE void multiply_values(int stage) {
        const ptx::Matrix v = ptx::matrix<kTileK>(opaque(shared() + kValuesAt) + stage * kValueBytes);
        CLARY_UNROLL
        for (int k = 0; k < kTileK / 32; ++k) ptx::pin(p8_[k]);
        ptx::wgmma_fence();
        ptx::multiply_u8<false>(t_, p8_[0], v);
        CLARY_UNROLL
        for (int k = 1; k < kTileK / 32; ++k) ptx::multiply_u8<true>(t_, p8_[k], v + 32 * k);
        ptx::wgmma_commit();
    }
    // Computed anew each time: else descriptors would be kept in registers.
    CLARY_DEVICE static uint32_t opaque(uint32_t x) {
        asm volatile("" : "+r"(x));
        return x;
    }

    // Rows whose repeat is 0 have no digits in S (see gpu/attention/attention_kernel.h): their bias joins it here.
    CLARY_DEVICE void add_loud_bias(int stage, int32_t (&s)[kTileK / 2]) const {
        float loud[2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) loud[r] = row(r).loud;
        CLARY_UNROLL
        for (int n = 0; n < kTileK / 8; ++n) CLARY_UNROLL
        for (int j = 0; j < 2; ++j) {
            const int key = 8 * n + lane_column() + j;
            const gpu::SharedAddress digits{kDigitsAt + stage * kDigitBytes + static_cast<uint32_t>(key * 32)};
            int units = 0;
            // Rows of 32 bytes, whose halves the swizzle may have swapped: their sum does not care.
            CLARY_UNROLL
            for (uint32_t word = 0; word < 8; ++word)
                units = __dp4a(T::load<int>(digits + word * 4), 0x01010101, units);
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r)
                s[4 * n + 2 * r + j] += static_cast<int32_t>(::rintf(static_cast<float>(units) * loud[r]));
        }
    }

    CLARY_DEVICE void mask(int tile, int32_t (&s)[kTileK / 2]) const {
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            const int first = tile * kTileK + lane_column();
            const gpu::VisibleKeys seen = row(r).keys, keys{seen.begin - first, seen.end - first, seen.keep - first};
            CLARY_UNROLL
            for (int n = 0; n < kTileK / 8; ++n) CLARY_UNROLL
            for (int j = 0; j < 2; ++j)
                if (!keys.sees(8 * n + j)) s[4 * n + 2 * r + j] = kMasked;
        }
    }

    // -- online softmax: S becomes P, not yet rounded --
    struct Factors {
        float of[2][2], base;  // base 2 per unit of S; the tile's base
    };
    // V's scale is returned.
    CLARY_DEVICE float factors(int stage, Factors& factor) const {
        const gpu::SharedAddress scales = scales_at(stage);
        CLARY_UNROLL
        for (uint32_t g = 0; g < 2; ++g) {
            const float key = T::load<float>(scales + 16 * g + static_cast<uint32_t>(T::lane() % 4 * 4));
            factor.of[0][g] = row(0).factor * key;
            factor.of[1][g] = row(1).factor * key;
        }
        factor.base = T::load<float>(scales + offsetof(TileScales, base));
        return T::load<float>(scales + offsetof(TileScales, value));
    }
    template <bool masked>
    CLARY_DEVICE void softmax(int stage, bool first, const Factors& factor, const int32_t (&s)[kTileK / 2]) {
        float top[2], shift[2], rise[2];
        int32_t high[2][2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) high[r][0] = high[r][1] = kMasked;
        CLARY_UNROLL
        for (int i = 0; i < kTileK / 2; i += 2) {
            int32_t& h = high[i / 2 % 2][i / 32];
            h = max(max(h, s[i]), s[i + 1]);
        }
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            float x[2];
            CLARY_UNROLL
            for (int g = 0; g < 2; ++g) {
                x[g] = static_cast<float>(high[r][g]) * factor.of[r][g];
                if (masked && high[r][g] == kMasked) x[g] = -kInfinity;
            }
            top[r] = T::max(x[0], x[1]);
        }
        CLARY_UNROLL
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
            const float other[2] = {T::shuffle_xor(top[0], lanes), T::shuffle_xor(top[1], lanes)};
            top[0] = T::max(top[0], other[0]);
            top[1] = T::max(top[1], other[1]);
        }
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            shift[r] = kPLog2Top - top[r];
            rise[r] = top[r] + factor.base - reference_[r];
        }
        // (Not so: a first tile, a rise by more than the slack, NaN, or no key seen before either.)
        const bool usual = rise[0] <= numerics::kReferenceSlack && rise[1] <= numerics::kReferenceSlack;
        if (T::any(!usual)) {
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r) rise[r] = move_reference(r, top[r], factor.base);
        }
        weight_[0] = T::exp2(rise[0]);
        weight_[1] = T::exp2(rise[1]);
        // T of the tile before joins O, and P's registers are free.
        ptx::wgmma_wait<0>();
        ptx::pin(t_);
        if (!first) release(value_empty(stage == 0 ? c.stages - 1 : stage - 1));
        int32_t whole[2] = {0, 0};
        float exact[2] = {0, 0};
        CLARY_UNROLL
        for (int run = 0; run < kRuns; ++run) {
            uint32_t weights = 0x01010101u * numerics::kWeightUnit;
            if constexpr (c.key_bias)
                weights = T::load<uint32_t>(gpu::SharedAddress{kWeightsAt + stage * kWeightBytes +
                                                               static_cast<uint32_t>(16 * run + T::lane() % 4 * 4)});
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r) {
                float e[4];
                CLARY_UNROLL
                for (int j = 0; j < 4; ++j) {
                    const int i = 8 * run + 2 * r + j % 2 + j / 2 * 4;
                    e[j] = T::exp2(T::fma(static_cast<float>(s[i]), factor.of[r][run / 4], shift[r]));
                    if (masked && s[i] == kMasked) e[j] = 0;
                }
                uint32_t& word = p8_[run / 2][run % 2 * 2 + r];
                word = T::pack4<gpu::Element::kU8>(e[0], e[1], e[2], e[3]);
                whole[r] = T::dot4(word, weights, whole[r]);
                if constexpr (c.want_lse) {
                    CLARY_UNROLL
                    for (int j = 0; j < 4; ++j)
                        exact[r] = T::fma(e[j], static_cast<float>(weights >> (8 * j) & 255u), exact[r]);
                }
            }
            CLARY_UNROLL
            for (int i = 0; i < kD / 16; ++i) flush(run * (kD / 16) + i);
            if constexpr (c.pairs > 0)
                if ((run + 1) % c.pairs == 0) T::wave_sync();
        }
        constexpr float kUnit = 1.0f / numerics::kWeightUnit;
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            sum_[r] = T::fma(static_cast<float>(whole[r]) * kUnit, weight_[r], sum_[r]);
            if constexpr (c.want_lse) exact_sum_[r] = T::fma(exact[r] * kUnit, weight_[r], exact_sum_[r]);
        }
    }
    // R moves to a first tile, and where the maximum lies far above it. How far above R the maximum lies then.
    CLARY_DEVICE float move_reference(int r, float top, float base) {
        const float lift = top + base, before = reference_[r];
        if (top == -kInfinity) return -kInfinity;  // no key seen
        const bool first = before == -kInfinity, jump = lift - before > numerics::kReferenceSlack;
        if (!first && !jump) return lift - before;
        reference_[r] = lift;
        if (!first) {
            const float rescale = T::exp2(before - lift);
            sum_[r] *= rescale;
            exact_sum_[r] *= rescale;
            flush_[r] *= rescale;
            CLARY_UNROLL
            for (int i = 2 * r; i < kD / 2; i += 4) {
                out_[i] *= rescale;
                out_[i + 1] *= rescale;
            }
        }
        return lift - lift;  // 0, or NaN
    }

    // O += float(T) c
    CLARY_DEVICE void flush(int i) { out_[i] = T::fma(static_cast<float>(t_[i]), flush_[i / 2 % 2], out_[i]); }

    // -- results --
    CLARY_DEVICE void finish(const Work& work) {
        const AttentionDesc& desc = p_.desc;
        float inverse[2], share[2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) finish_row(work, r, inverse[r], share[r]);
        const int64_t head_channel = (int64_t{work.b} * desc.kv_heads + work.kv_head) * kD;
        const bool by_channel = desc.recipe.v_scale == VScale::kChannel;
        typename Output::Registers out;
        static_for<kD / 8, 4>([&](auto n, auto i) {
            float o = out_[n * 4 + i] * inverse[i / 2];
            if (by_channel) o *= p_.v_scale[head_channel + Output::channel_of(n, i)];
            out[0][n][i] = o;
        });
        if (desc.recipe.rotate_v) Output::rotate(out, static_cast<int>(desc.head_dim_v));
        if (p_.v_mean)
            static_for<kD / 8, 4>([&](auto n, auto i) {
                out[0][n][i] = T::fma(p_.v_mean[head_channel + Output::channel_of(n, i)], share[i / 2], out[0][n][i]);
            });
        const int first = T::wave() * 16;
        const gpu::SharedAddress scratch{kOutputAt + static_cast<uint32_t>(T::wave() * Output::kBytes)};
        T::wave_sync();
        Output::store(out, scratch, desc.out, static_cast<int>(desc.head_dim_v), work.rows - first, [&](int row) {
            const RowConstants& at = row_constants(queries_.stage(), first + row);
            return work.b * desc.out.batch_stride + at.head * desc.out.head_stride +
                   (work.q_begin + at.query) * desc.out.token_stride;
        });
    }
    CLARY_DEVICE void finish_row(const Work& work, int r, float& inverse, float& share) const {
        const AttentionDesc& desc = p_.desc;
        const float l = T::row_sum(sum_[r]), reference = reference_[r];
        const float sum = c.want_lse ? T::row_sum(exact_sum_[r]) : l;
        const bool empty = reference == -kInfinity;
        const RowConstants& row = this->row(r);
        float shift = 0;
        if (c.want_lse && p_.q_shift)
            shift = p_.q_shift[p_.q_rows.begin(work.b, row.head, desc.q_heads, work.q_begin) + row.query];
        float lse = empty ? -kInfinity : numerics::kLn2 * (reference + ::log2f(sum / kPTop)) + shift;
        share = empty ? 0.0f : 1.0f;
        if (desc.sinks.given()) {
            const float sink = static_cast<const float*>(desc.sinks.data)[row.head * desc.sinks.stride[0]];
            const float high = T::max(lse, sink);
            const float both = high == -kInfinity ? high : high + ::logf(::expf(lse - high) + ::expf(sink - high));
            if (!empty || both != both) share = ::expf(lse - both);
            lse = both;
        }
        inverse = empty ? share : share / l;
        if (!work.valid) inverse = share = lse = __builtin_nanf("");
        if (c.want_lse && desc.want_lse && row_in_block(r) < work.rows && T::lane() % 4 == 0)
            desc.lse[work.b * desc.lse_batch_stride + row.head * desc.lse_head_stride +
                     (work.q_begin + row.query) * desc.lse_token_stride] = lse;
    }

    const Params& params_;
    const gpu::AttentionParams& p_;
    const int group_;      // warpgroup of the thread
    Ring<c.stages> ring_;  // K and V of a tile
    Ring<2> queries_;

    // Of the lane's two rows.
    float reference_[2];  // R; -inf before the first tile with a visible key
    float weight_[2];     // c of the tile whose P is made
    float flush_[2];      // c times V's scale of the tile whose T is made
    float sum_[2];        // the lane's part of l, in units of kPTop 2^R
    float exact_sum_[2];  // the same of P before rounding, for the LSE

    uint32_t p8_[kTileK / 32][4];  // P
    int32_t t_[kD / 2];          // T
    float out_[kD / 2];          // O
};

}  // namespace clary::cuda::sm90
