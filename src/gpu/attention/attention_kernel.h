// SPDX-License-Identifier: Apache-2.0
// Attention on packed operands, for every machine with a matrix product.
//
//   O = softmax(scale Q K^T + biases) V          one block: tile_q rows of one kv head against all their key tiles
//
//   for each tile of keys (64 or 128), its K and V on their way while the tile before is used:
//     S = Q K^T      exact int32; with a key bias 32 more columns add it (core/packed.h). Exact recipes: fp32
//     m = row maximum of the tile           P = 2^(x - m), x the base-2 score: a byte round(255 ..), or 16 bits
//     T = P V        exact int32, or fp32
//     O += float(T) c,  l += (sum of P) c   c = 2^(m + base - R): base the tile's bias base, R the row's reference
//   finish           O / l, rotate back, add V's mean, convert, store; LSE
//
// P of a tile depends on no other tile, and R moves only when a tile's maximum lies more than 64 above it, so rescaling O
// is rare (docs/decisions/0002-int8-pv-default.md). A wave owns tile_q / waves rows and never waits for another but at
// one barrier per tile.
//
//   copies     Q, 0 .. stages - 2 |  + 1      | ...            ("| " is a wait and a block_sync)
//   products                      |  tile 0   | tile 1 ...
//
// Shared memory: Q, and per stage a tile of K, one of V, K's scales, V's weights.
#pragma once

#include <cmath>

#include "core/element.h"
#include "gpu/attention/config.h"
#include "gpu/attention/lane_rows.h"
#include "gpu/attention/params.h"
#include "gpu/target/products.h"
#include "gpu/target/target.h"
#include "gpu/target/tile.h"
#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/hadamard.h"
#include "numerics/permutation.h"

namespace clary::gpu {

template <class T, AttentionConfig kConfig>
class AttentionKernel {
    static constexpr AttentionConfig c = kConfig;
    static constexpr bool kIntQk = c.qk == Element::kS8, kIntPv = c.v == Element::kS8;
    static constexpr Element kP = kIntPv ? Element::kU8 : c.v;
    static constexpr bool kPermutedV = kIntPv && T::kChip.vendor == Vendor::kNvidia;
    using ScoreAtom = Product<T::kChip, c.qk, c.qk, kIntQk ? Element::kS32 : Element::kF32>;
    using OutAtom = Product<T::kChip, kP, c.v, kIntPv ? Element::kS32 : Element::kF32>;
    using Score = std::conditional_t<kIntQk, int32_t, float>;
    using Sum = std::conditional_t<kIntPv, int32_t, float>;

    static constexpr int kQkBytes = element_bits(c.qk) / 8, kVBytes = element_bits(c.v) / 8;
    static constexpr int kColumns = c.head_dim + (c.key_bias ? numerics::kDigitColumns : 0);  // of a row of Q and K
    using QueryTile = Tile<c.tile_q, kColumns * kQkBytes>;
    using KeyTile = Tile<c.tile_k, kColumns * kQkBytes>;
    // 8-bit V lies transposed, 16-bit V by token.
    using ValueTile = std::conditional_t<kVBytes == 1, Tile<c.head_dim_v, c.tile_k>, Tile<c.tile_k, c.head_dim_v * 2>>;

    static constexpr int kWaveRows = c.tile_q / c.waves;
    static constexpr int kScoreM = kWaveRows / ScoreAtom::kQueries, kScoreN = c.tile_k / ScoreAtom::kOthers;
    static constexpr int kScoreSteps = kColumns / ScoreAtom::kDepth;
    static constexpr int kOutM = kWaveRows / OutAtom::kQueries, kOutN = c.head_dim_v / OutAtom::kOthers;
    static constexpr int kOutSteps = c.tile_k / OutAtom::kDepth;
    static constexpr int kRows = kScoreM * kResultRows<ScoreAtom>;  // of a lane
    static constexpr int kAtOnce = 2;                               // atoms whose K or V operands are loaded together

    static_assert(c.tile_q % c.waves == 0 && kWaveRows % ScoreAtom::kQueries == 0 && kWaveRows % OutAtom::kQueries == 0,
                  "whole atoms in every wave");
    static_assert(kColumns % ScoreAtom::kDepth == 0 && c.tile_k % OutAtom::kDepth == 0, "whole steps of depth");
    static_assert(kScoreN % kAtOnce == 0 && kOutN % kAtOnce == 0, "atoms are taken in pairs");
    static_assert(kRows == kOutM * kResultRows<OutAtom>, "both products leave a lane the same rows");
    static_assert(c.tile_k % kScaleKeys == 0, "whole groups of K scales");
    static_assert(!c.key_bias || kIntQk, "digits are integers");

  public:
    static constexpr int kThreads = c.waves * T::kLanes;
    static constexpr int kTileQ = c.tile_q;

  private:
    using CopyQueries = CopyTile<T, QueryTile, kThreads>;
    using CopyKeys = CopyTile<T, KeyTile, kThreads>;
    using CopyValues = CopyTile<T, ValueTile, kThreads>;
    // K's scales and V's weights of a tile, copied as rows of 16 bytes.
    static constexpr int kScaleBytes = c.key_scales == KeyScales::kNone ? 0 : c.tile_k * 4;
    static constexpr int kWeightBytes = kIntPv ? c.tile_k : 0;
    static constexpr int kVectorCopies = ((kScaleBytes + kWeightBytes) / 16 + kThreads - 1) / kThreads;

    // Byte offsets into shared memory.
    static constexpr uint32_t kKeysAt = QueryTile::kBytes;
    static constexpr uint32_t kValuesAt = kKeysAt + c.stages * KeyTile::kBytes;
    static constexpr uint32_t kVectorsAt = kValuesAt + c.stages * ValueTile::kBytes;
    static constexpr int kStageCopies = CopyKeys::kCopies + CopyValues::kCopies + kVectorCopies;

  public:
    static constexpr uint32_t kSharedBytes = kVectorsAt + c.stages * (kScaleBytes + kWeightBytes);
    static_assert(kSharedBytes <= T::kSharedBytes, "fits the machine");

    CLARY_DEVICE static void run(const AttentionParams& params) {
        AttentionKernel kernel(params);
        if (kernel.rows_ > 0) kernel.block();
    }

  private:
    static constexpr float kInfinity = __builtin_huge_valf();
    static constexpr int32_t kMasked = INT32_MIN;                          // no score of products is this low
    static constexpr float kPTop = kIntPv ? numerics::kPUint8Max : 1.0f;   // what P = 1 becomes,
    static constexpr float kPLog2Top = kIntPv ? 7.99435343685886f : 0.0f;  // and its base-2 logarithm

    // -- which keys and scales a lane holds: everything from the atom's tables --
    CLARY_HD static constexpr int row_of(int m, int i) {  // slot among the lane's rows
        return m * kResultRows<ScoreAtom> + row_slot<ScoreAtom>(i);
    }
    // The first result of a slot's row.
    CLARY_HD static constexpr int first_of_row(int slot) {
        int i = 0;
        while (row_slot<ScoreAtom>(i) != slot) ++i;
        return i;
    }
    CLARY_DEVICE static int key_of(int n, int i) {  // within the tile
        return n * ScoreAtom::kOthers + ScoreAtom::result_at(T::lane(), i).col;
    }
    // Number of a result's K scale among those that the lane holds of 64 keys.
    CLARY_HD static constexpr int scale_slot(int i) { return ScoreAtom::result_at(0, i).col % 8 / 2; }
    static constexpr int kScaleSlots = scale_slot(ScoreAtom::kResults - 1) + 1;
    static constexpr int kScaleGroups = c.tile_k / kScaleKeys, kGroupN = kScaleKeys / ScoreAtom::kOthers;

    // The score that is element e of P's operand: which of the lane's S it becomes.
    struct Source {
        int m, n, i;
        friend constexpr bool operator==(const Source&, const Source&) = default;
    };
    CLARY_HD static constexpr Source source(int lane, int m_out, int step, int e) {
        const Coord at = OutAtom::query_at(lane, e);
        const int row = m_out * OutAtom::kQueries + at.row, position = step * OutAtom::kDepth + at.col;
        const int key = kPermutedV ? static_cast<int>(numerics::v_token(position)) : position;
        Source s{row / ScoreAtom::kQueries, key / ScoreAtom::kOthers, 0};
        while (ScoreAtom::result_at(lane, s.i) != Coord{row % ScoreAtom::kQueries, key % ScoreAtom::kOthers}) ++s.i;
        return s;
    }
    static constexpr bool sources_agree() {  // a lane other than 0 finds each score at the same place
        for (int lane = 1; lane < T::kLanes; ++lane)
            for (int e = 0; e < OutAtom::kQueryElements; ++e)
                if (source(lane, kOutM - 1, kOutSteps - 1, e) != source(0, kOutM - 1, kOutSteps - 1, e)) return false;
        return true;
    }
    static_assert(sources_agree(), "S becomes P's operand within the lane");

    // -- the block's place in the problem --
    CLARY_DEVICE explicit AttentionKernel(const AttentionParams& params) : p_(params) {
        const AttentionDesc& desc = p_.desc;
        const auto group = static_cast<int>(desc.q_heads_per_kv());
        const int64_t tiles = (desc.q_len * group + c.tile_q - 1) / c.tile_q;
        const int64_t head = T::block(0) / tiles;
        b_ = head / desc.kv_heads;
        kv_head_ = head - b_ * desc.kv_heads;
        // A cache knows its lengths; kv_lengths may see less.
        sequence_ = desc.kv_lengths.given() ? sequence_of(desc, b_) : sequence_of(desc, b_, p_.lengths[b_]);
        first_row_ = (tiles - 1 - T::block(0) % tiles) * c.tile_q;  // causal: the longest of a head first
        const int64_t rows = sequence_.q_len * group - first_row_;
        rows_ = static_cast<int>(rows < c.tile_q ? rows : c.tile_q);
        kv_row_ = p_.kv_rows.begin(b_, kv_head_, desc.kv_heads, sequence_.kv_begin);
        kv_tile_ = kv_row_ / c.tile_k;
        wave_row_ = T::wave() * kWaveRows;
    }
    CLARY_DEVICE Row row_at(int row) const { return Row::of(p_.desc, kv_head_, first_row_ + row); }
    CLARY_DEVICE int64_t packed_row(const Row& row) const {
        return p_.q_rows.begin(b_, row.head, p_.desc.q_heads, sequence_.q_begin) + row.query;
    }

    CLARY_DEVICE void block() {
        const int64_t last = row_at(rows_ - 1).query;
        const TileRange range = TileRange::of(p_.desc, sequence_, row_at(0).query, last, c.tile_k);
        if (range.has(range.first())) fetch_queries();
        int fetched = range.first(), stage_fetched = 0;
        CLARY_UNROLL
        for (int i = 0; i < c.stages - 1; ++i) fetch_next(range, fetched, stage_fetched);
        load_rows();
        for (int tile = range.first(), stage = 0; range.has(tile); tile = range.after(tile)) {
            if (c.stages > 2 && range.has(fetched))
                T::template wait<c.stages - 2, kStageCopies>();
            else
                T::template wait<0, kStageCopies>();
            T::block_sync();  // the tile is there for all waves, and nobody reads the tile before it any more
            fetch_next(range, fetched, stage_fetched);
            if (wave_row_ < rows_) step(tile, stage);
            stage = stage + 1 == c.stages ? 0 : stage + 1;
        }
        if (wave_row_ < rows_) finish();
    }

    // -- copies --
    CLARY_DEVICE static QueryTile query_tile() { return {{0}}; }
    CLARY_DEVICE static KeyTile key_tile(int stage) {
        return {{kKeysAt + static_cast<uint32_t>(stage * KeyTile::kBytes)}};
    }
    CLARY_DEVICE static ValueTile value_tile(int stage) {
        return {{kValuesAt + static_cast<uint32_t>(stage * ValueTile::kBytes)}};
    }
    CLARY_DEVICE static SharedAddress scales_at(int stage) {
        return {kVectorsAt + static_cast<uint32_t>(stage * (kScaleBytes + kWeightBytes))};
    }
    CLARY_DEVICE static SharedAddress weights_at(int stage) { return scales_at(stage) + kScaleBytes; }

    CLARY_DEVICE void fetch_queries() const {
        CopyQueries::issue(query_tile(), [&](int row) -> const char* {
            if (row >= rows_) return nullptr;
            return static_cast<const char*>(p_.q_codes) + packed_row(row_at(row)) * (kColumns * kQkBytes);
        });
    }
    // Sets off the copy of the next tile, one group. (Q travels with the first.)
    CLARY_DEVICE void fetch_next(const TileRange& range, int& tile, int& stage) const {
        if (!range.has(tile)) return;
        const int64_t row = kv_row_ + static_cast<int64_t>(tile) * c.tile_k;
        CopyKeys::issue(key_tile(stage), static_cast<const char*>(p_.k_codes) + row * (kColumns * kQkBytes),
                        kColumns * kQkBytes, c.tile_k);
        const char* const values = static_cast<const char*>(p_.v_codes) + row * (c.head_dim_v * kVBytes);
        CopyValues::issue(value_tile(stage), values, ValueTile::kRowBytes, ValueTile::kRows);
        fetch_vectors(row, stage);
        T::commit();
        tile = range.after(tile);
        stage = stage + 1 == c.stages ? 0 : stage + 1;
    }
    CLARY_DEVICE void fetch_vectors(int64_t row, int stage) const {
        const int thread = T::wave() * T::kLanes + T::lane();
        CLARY_UNROLL
        for (int copy = 0; copy < kVectorCopies; ++copy) {
            const int byte = (copy * kThreads + thread) * 16;
            const bool scales = byte < kScaleBytes;
            const char* from = scales ? reinterpret_cast<const char*>(p_.k_scale + row) + byte
                                      : reinterpret_cast<const char*>(p_.v_weight + row) + (byte - kScaleBytes);
            const bool active = byte < kScaleBytes + (weighted() ? kWeightBytes : 0);
            T::copy16(scales_at(stage) + static_cast<uint32_t>(byte), from, active, active);
        }
    }

    // -- per row --
    CLARY_DEVICE bool weighted() const { return kIntPv && p_.v_weight != nullptr; }

    CLARY_DEVICE void load_rows() {
        static_for<kScoreM, kResultRows<ScoreAtom>>([&](auto m, auto slot) {
            constexpr int r = m * kResultRows<ScoreAtom> + slot;
            row_[r] = wave_row_ + m * ScoreAtom::kQueries + ScoreAtom::result_at(T::lane(), first_of_row(slot)).row;
            // Rows past the end see what the last one sees, and are not stored.
            const Row row = row_at(row_[r] < rows_ ? row_[r] : rows_ - 1);
            keys_[r] = VisibleKeys::of(p_.desc, sequence_, row.query);
            factor_[r] = kIntQk ? p_.q_scale[packed_row(row)] * p_.a : p_.a;
            reference_[r] = -kInfinity;
            sum_[r] = 0;
            exact_sum_[r] = 0;
            if constexpr (c.key_bias) loud_ = loud_ || p_.q_repeat[packed_row(row)] == 0;
        });
        static_for<kOutM, kOutN>([&](auto m, auto n) { out_[m][n].fill(0); });
        if constexpr (c.key_bias) loud_ = T::any(loud_);
    }

    // -- one tile --
    CLARY_DEVICE void step(int tile, int stage) {
        const int first = tile * c.tile_k;
        bool all = true, some = false;
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            all = all && keys_[r].sees_all(first, first + c.tile_k);
            some = some || keys_[r].sees_any(first, first + c.tile_k);
        }
        if (!T::any(some)) return;
        const bool masked = T::any(!all);

        Fragment<Score, ScoreAtom::kResults> s[kScoreM][kScoreN];
        scores(stage, s);
        if constexpr (c.key_bias)
            if (loud_) add_loud_bias(stage, s);

        Fragment<uint32_t, kQueryRegisters<OutAtom>> p[kOutM][kOutSteps];
        const float base = p_.tile_base ? p_.tile_base[kv_tile_ + tile] : 0.0f;
        if constexpr (c.key_scales == KeyScales::kLane && !c.biased) {
            if (masked) mask(first, s);
            softmax(stage, base, s, p);
        } else {
            Fragment<float, ScoreAtom::kResults> x[kScoreM][kScoreN];
            scale(stage, s, x);
            if constexpr (c.biased) add_bias(first, x);
            if (masked) mask(first, x);
            softmax(stage, base, x, p);
        }
        accumulate(tile, stage, p);
    }

    CLARY_DEVICE void scores(int stage, Fragment<Score, ScoreAtom::kResults> (&s)[kScoreM][kScoreN]) const {
        constexpr int kRegisters = kOtherRegisters<ScoreAtom>;
        CLARY_UNROLL
        for (int m = 0; m < kScoreM; ++m) CLARY_UNROLL
        for (int n = 0; n < kScoreN; ++n) s[m][n].fill(0);
        CLARY_UNROLL
        for (int d = 0; d < kScoreSteps; ++d) {
            Fragment<uint32_t, kQueryRegisters<ScoreAtom>> query[kScoreM];
            CLARY_UNROLL
            for (int m = 0; m < kScoreM; ++m)
                query[m] = T::template load_query<ScoreAtom>(query_tile(), wave_row_ + m * ScoreAtom::kQueries,
                                                             d * ScoreAtom::kDepth);
            CLARY_UNROLL
            for (int n = 0; n < kScoreN; n += kAtOnce) {
                const auto keys = T::template load_other<ScoreAtom, kAtOnce>(key_tile(stage), n * ScoreAtom::kOthers,
                                                                             d * ScoreAtom::kDepth);
                CLARY_UNROLL
                for (int part = 0; part < kAtOnce; ++part) CLARY_UNROLL
                for (int m = 0; m < kScoreM; ++m)
                    T::template mma<ScoreAtom>(query[m], part_of<kRegisters>(keys, part), s[m][n + part]);
            }
        }
    }

    // Rows whose repeat is 0: louder than q_base allows. Their digits count nothing in S, so the bias joins it here, in
    // units of q_scale: to the nearest of those, which are coarse for such a row as its codes are.
    CLARY_DEVICE void add_loud_bias(int stage, Fragment<Score, ScoreAtom::kResults> (&s)[kScoreM][kScoreN]) const {
        const float base = p_.q_base[b_ * p_.desc.kv_heads + kv_head_] * p_.a;
        float ratio[kRows];
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            const Row row = row_at(row_[r] < rows_ ? row_[r] : rows_ - 1);
            ratio[r] = p_.q_repeat[packed_row(row)] == 0 ? base / factor_[r] : 0.0f;
        }
        for_scores([&](auto m, auto n, auto i) {
            // A digit plus 128 is an unsigned byte.
            int units = -128 * numerics::kDigitColumns;
            for (int column = 0; column < numerics::kDigitColumns; column += 4)
                units = T::dot4(
                    T::template load<uint32_t>(key_tile(stage).at(key_of(n, i), c.head_dim + column)) ^ 0x80808080u,
                    0x01010101u, units);
            s[m][n][i] += static_cast<int32_t>(::rintf(static_cast<float>(units) * ratio[row_of(m, i)]));
        });
    }

    template <class Visit>
    CLARY_DEVICE static void for_scores(const Visit& visit) {
        static_for<kScoreM, kScoreN, ScoreAtom::kResults>(visit);
    }

    // Base-2 scores.
    CLARY_DEVICE void scale(int stage, const Fragment<Score, ScoreAtom::kResults> (&s)[kScoreM][kScoreN],
                            Fragment<float, ScoreAtom::kResults> (&x)[kScoreM][kScoreN]) const {
        for_scores([&](auto m, auto n, auto i) {
            float factor = factor_[row_of(m, i)];
            if constexpr (c.key_scales != KeyScales::kNone)
                factor *= T::template load<float>(scales_at(stage) + static_cast<uint32_t>(key_of(n, i) * 4));
            x[m][n][i] = static_cast<float>(s[m][n][i]) * factor;
        });
    }

    CLARY_DEVICE void add_bias(int first, Fragment<float, ScoreAtom::kResults> (&x)[kScoreM][kScoreN]) const {
        const AttentionDesc& desc = p_.desc;
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            const Row row = row_at(row_[r] < rows_ ? row_[r] : rows_ - 1);
            float slope = 0;
            if (desc.alibi_slopes.given())
                slope = numerics::kLog2E *
                        static_cast<const float*>(desc.alibi_slopes.data)[row.head * desc.alibi_slopes.stride[0]];
            const TensorView& mask = desc.mask;
            const int64_t mask_row = b_ * mask.stride[0] + row.head * mask.stride[1] + row.query * mask.stride[2];
            const auto position = static_cast<int>(row.query + sequence_.offset);
            for_scores([&](auto m, auto n, auto i) {
                const int key = first + key_of(n, i);
                if (row_of(m, i) != r || key >= sequence_.kv_len) return;
                float bias = 0;
                if (desc.alibi_slopes.given())
                    bias = -slope * static_cast<float>(position > key ? position - key : key - position);
                if (desc.mask_kind != MaskKind::kNone) {
                    const char* const at = static_cast<const char*>(mask.data) +
                                           (mask_row + key * mask.stride[3]) * dtype_size(mask.dtype);
                    if (desc.mask_kind == MaskKind::kBoolean)
                        bias = *at ? bias : -kInfinity;
                    else
                        bias += load_element(at, mask.dtype) * numerics::kLog2E;
                }
                x[m][n][i] += bias;
            });
        }
    }

    template <class X>
    CLARY_DEVICE void mask(int first, X (&x)[kScoreM][kScoreN]) const {
        for_scores([&](auto m, auto n, auto i) {
            if (keys_[row_of(m, i)].sees(first + key_of(n, i))) return;
            if constexpr (std::is_same_v<X, Fragment<int32_t, ScoreAtom::kResults>>)
                x[m][n][i] = kMasked;
            else
                x[m][n][i] = -kInfinity;
        });
    }

    // -- online softmax over tile-local maxima: P of the tile, its row sums and its weight c --
    template <class X>
    CLARY_DEVICE void softmax(int stage, float base, const X (&x)[kScoreM][kScoreN],
                              Fragment<uint32_t, kQueryRegisters<OutAtom>> (&p)[kOutM][kOutSteps]) {
        constexpr bool kIntScores = std::is_same_v<X, Fragment<int32_t, ScoreAtom::kResults>>;
        constexpr int kGroups = kIntScores ? kScaleGroups : 1, kSlots = kIntScores ? kScaleSlots : 1;
        // What a score is multiplied by to be in base 2; scores that are floats are already.
        float factor[kRows][kGroups][kSlots];
        CLARY_UNROLL
        for (int g = 0; g < kGroups; ++g) CLARY_UNROLL
        for (int slot = 0; slot < kSlots; ++slot) {
            float key_scale = 1;
            if constexpr (kIntScores) {
                const int key = g * kScaleKeys + ScoreAtom::result_at(T::lane(), 0).col % 8 + 2 * slot;
                key_scale = T::template load<float>(scales_at(stage) + static_cast<uint32_t>(key * 4));
            }
            CLARY_UNROLL
            for (int r = 0; r < kRows; ++r) factor[r][g][slot] = kIntScores ? factor_[r] * key_scale : 1.0f;
        }
        float top[kRows];
        row_maxima<kIntScores>(x, factor, top);

        float shift[kRows];
        bool moves = false;
        float rescale[kRows];
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            top[r] = T::row_max(top[r]);
            const bool seen = top[r] != -kInfinity;
            const float lift = top[r] + base, before = reference_[r];
            const bool first = seen && before == -kInfinity;
            const bool jump = seen && lift - before > numerics::kReferenceSlack;
            reference_[r] = first || jump ? lift : before;
            rescale[r] = jump && !first ? T::exp2(before - lift) : 1.0f;
            moves = moves || (jump && !first);
            weight_[r] = seen ? T::exp2(lift - reference_[r]) : 0.0f;
            shift[r] = kPLog2Top - (seen ? top[r] : 0.0f);
        }
        if (T::any(moves)) rescale_rows(rescale);
        if (p_.desc.want_lse)
            make_p<kIntScores, true>(stage, x, factor, shift, p);
        else
            make_p<kIntScores, false>(stage, x, factor, shift, p);
    }

    template <bool kIntScores, class X, class Factor>
    CLARY_DEVICE static void row_maxima(const X (&x)[kScoreM][kScoreN], const Factor& factor, float (&top)[kRows]) {
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) top[r] = -kInfinity;
        if constexpr (kIntScores) {
            int32_t highest[kRows][kScaleGroups][kScaleSlots];
            CLARY_UNROLL
            for (int r = 0; r < kRows; ++r) CLARY_UNROLL
            for (int g = 0; g < kScaleGroups; ++g) CLARY_UNROLL
            for (int slot = 0; slot < kScaleSlots; ++slot) highest[r][g][slot] = kMasked;
            for_scores([&](auto m, auto n, auto i) {
                int32_t& high = highest[row_of(m, i)][n / kGroupN][scale_slot(i)];
                high = x[m][n][i] > high ? x[m][n][i] : high;
            });
            CLARY_UNROLL
            for (int r = 0; r < kRows; ++r) CLARY_UNROLL
            for (int g = 0; g < kScaleGroups; ++g) CLARY_UNROLL
            for (int slot = 0; slot < kScaleSlots; ++slot) {
                const int32_t high = highest[r][g][slot];
                if (high != kMasked) top[r] = T::max(top[r], static_cast<float>(high) * factor[r][g][slot]);
            }
        } else {
            for_scores([&](auto m, auto n, auto i) { top[row_of(m, i)] = T::max(top[row_of(m, i)], x[m][n][i]); });
        }
    }

    CLARY_DEVICE void rescale_rows(const float (&rescale)[kRows]) {
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            sum_[r] *= rescale[r];
            exact_sum_[r] *= rescale[r];
        }
        for_out([&](auto m, auto n, auto i) { out_[m][n][i] *= rescale[out_row_of(m, i)]; });
    }

    template <bool kIntScores, bool kWantLse, class X, class Factor>
    CLARY_DEVICE void make_p(int stage, const X (&x)[kScoreM][kScoreN], const Factor& factor,
                             const float (&shift)[kRows],
                             Fragment<uint32_t, kQueryRegisters<OutAtom>> (&p)[kOutM][kOutSteps]) {
        int32_t whole[kRows];  // row sums of P in bytes, weighted by 15 or V's weights
        float sum[kRows], exact[kRows];
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            whole[r] = 0;
            sum[r] = exact[r] = 0;
        }
        static_for<kOutSteps, kOutM, kQueryRegisters<OutAtom>>([&](auto step, auto m, auto reg) {
            constexpr Source first = source(0, m, step, reg * OutAtom::kRun);
            constexpr int r = row_of(first.m, first.i);
            float e[OutAtom::kRun];
            exponentials<kIntScores, step, m, reg>(x, factor, shift[r], e);
            uint32_t& word = p[m][step][reg];
            if constexpr (kIntPv) {
                const int position = step * OutAtom::kDepth + OutAtom::query_at(T::lane(), reg * OutAtom::kRun).col;
                uint32_t weights = 0x01010101u * numerics::kWeightUnit;
                if (weighted())
                    weights = T::template load<uint32_t>(weights_at(stage) + static_cast<uint32_t>(position));
                word = T::template pack4<Element::kU8>(e[0], e[1], e[2], e[3]);
                whole[r] = T::dot4(word, weights, whole[r]);
                if constexpr (kWantLse)
                    for (int j = 0; j < 4; ++j)
                        exact[r] = T::fma(e[j], static_cast<float>(weights >> (8 * j) & 255u), exact[r]);
            } else {
                word = T::template pack2<kP>(e[0], e[1]);
                sum[r] += T::template unpack2<kP>(word, 0) + T::template unpack2<kP>(word, 1);
                if constexpr (kWantLse) exact[r] += e[0] + e[1];
            }
        });
        constexpr float kUnit = kIntPv ? 1.0f / numerics::kWeightUnit : 1.0f;
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) {
            if constexpr (kIntPv) sum[r] = static_cast<float>(whole[r]);
            sum_[r] = T::fma(sum[r] * kUnit, weight_[r], sum_[r]);
            if constexpr (kWantLse) exact_sum_[r] = T::fma(exact[r] * kUnit, weight_[r], exact_sum_[r]);
        }
    }

    // The elements of a register of P's operand: 2^(x - m) times kPTop.
    template <bool kIntScores, int step, int m, int reg, class X, class Factor>
    CLARY_DEVICE static void exponentials(const X (&x)[kScoreM][kScoreN], const Factor& factor, float shift,
                                          float (&e)[OutAtom::kRun]) {
        static_for<OutAtom::kRun>([&](auto j) {
            constexpr Source from = source(0, m, step, reg * OutAtom::kRun + j);
            const auto score = x[from.m][from.n][from.i];
            if constexpr (kIntScores) {
                const float f = factor[row_of(from.m, from.i)][from.n / kGroupN][scale_slot(from.i)];
                e[j] = T::exp2(T::fma(static_cast<float>(score), f, shift));
                e[j] = score == kMasked ? 0.0f : e[j];
            } else {
                e[j] = T::exp2(score + shift);
            }
        });
    }

    // -- O += float(P V) c --
    CLARY_HD static constexpr int out_row_of(int m, int i) { return m * kResultRows<OutAtom> + row_slot<OutAtom>(i); }
    CLARY_DEVICE static int channel_of(int n, int i) {
        return n * OutAtom::kOthers + OutAtom::result_at(T::lane(), i).col;
    }
    template <class Visit>
    CLARY_DEVICE static void for_out(const Visit& visit) {
        static_for<kOutM, kOutN, OutAtom::kResults>(visit);
    }

    CLARY_DEVICE void accumulate(int tile, int stage,
                                 const Fragment<uint32_t, kQueryRegisters<OutAtom>> (&p)[kOutM][kOutSteps]) {
        constexpr int kRegisters = kOtherRegisters<OutAtom>;
        const bool by_channel = p_.desc.recipe.v_scale == VScale::kChannelTile;
        const bool by_tile = p_.v_scale && !by_channel && p_.desc.recipe.v_scale != VScale::kChannel;
        float weight[kRows];
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) weight[r] = by_tile ? weight_[r] * p_.v_scale[kv_tile_ + tile] : weight_[r];
        const float* const channel_scale = p_.v_scale + (kv_tile_ + tile) * c.head_dim_v;

        static_for<kOutN / kAtOnce>([&](auto pair) {
            constexpr int n = pair * kAtOnce;
            Fragment<Sum, OutAtom::kResults> t[kOutM][kAtOnce];
            CLARY_UNROLL
            for (int m = 0; m < kOutM; ++m) CLARY_UNROLL
            for (int part = 0; part < kAtOnce; ++part) t[m][part].fill(0);
            CLARY_UNROLL
            for (int step = 0; step < kOutSteps; ++step) {
                Fragment<uint32_t, kAtOnce * kRegisters> values;
                if constexpr (kVBytes == 1)
                    values = T::template load_other<OutAtom, kAtOnce>(value_tile(stage), n * OutAtom::kOthers,
                                                                      step * OutAtom::kDepth);
                else
                    values = T::template load_other_transposed<OutAtom, kAtOnce>(
                        value_tile(stage), step * OutAtom::kDepth, n * OutAtom::kOthers);
                CLARY_UNROLL
                for (int part = 0; part < kAtOnce; ++part) CLARY_UNROLL
                for (int m = 0; m < kOutM; ++m)
                    T::template mma<OutAtom>(p[m][step], part_of<kRegisters>(values, part), t[m][part]);
            }
            static_for<kOutM, kAtOnce, OutAtom::kResults>([&](auto m, auto part, auto i) {
                float w = weight[out_row_of(m, i)];
                if (by_channel) w *= channel_scale[channel_of(n + part, i)];
                float& o = out_[m][n + part][i];
                o = T::fma(static_cast<float>(t[m][part][i]), w, o);
            });
        });
    }

    // -- results --
    CLARY_DEVICE void finish() {
        const AttentionDesc& desc = p_.desc;
        float inverse[kRows], share[kRows];
        CLARY_UNROLL
        for (int r = 0; r < kRows; ++r) finish_row(r, inverse[r], share[r]);

        const int64_t head_channel = (b_ * desc.kv_heads + kv_head_) * c.head_dim_v;
        const bool by_channel = desc.recipe.v_scale == VScale::kChannel;
        for_out([&](auto m, auto n, auto i) {
            float& o = out_[m][n][i];
            o *= inverse[out_row_of(m, i)];
            if (by_channel) o *= p_.v_scale[head_channel + channel_of(n, i)];
        });
        if (desc.recipe.rotate_v) rotate_rows();
        if (p_.v_mean)
            for_out([&](auto m, auto n, auto i) {
                out_[m][n][i] =
                    T::fma(p_.v_mean[head_channel + channel_of(n, i)], share[out_row_of(m, i)], out_[m][n][i]);
            });
        store();
    }

    // What a row of O is multiplied by, and the share of the softmax that is not the sink's; stores the row's LSE.
    CLARY_DEVICE void finish_row(int r, float& inverse, float& share) const {
        const AttentionDesc& desc = p_.desc;
        const float l = T::row_sum(sum_[r]), reference = reference_[r];
        const float sum = desc.want_lse ? T::row_sum(exact_sum_[r]) : l;
        const bool empty = reference == -kInfinity;
        const Row row = row_at(row_[r] < rows_ ? row_[r] : rows_ - 1);
        const float shift = p_.q_shift ? p_.q_shift[packed_row(row)] : 0.0f;
        float lse = empty ? -kInfinity : numerics::kLn2 * (reference + ::log2f(sum / kPTop)) + shift;
        share = empty ? 0.0f : 1.0f;
        if (desc.sinks.given()) {
            const float sink = static_cast<const float*>(desc.sinks.data)[row.head * desc.sinks.stride[0]];
            // log(e^lse + e^sink); without keys the sink alone is left.
            const float high = T::max(lse, sink);
            const float both = high == -kInfinity ? high : high + ::logf(::expf(lse - high) + ::expf(sink - high));
            if (!empty) share = ::expf(lse - both);
            lse = both;
        }
        inverse = empty ? 0.0f : share / l;
        if (!desc.want_lse || row_[r] >= rows_) return;
        if (ScoreAtom::result_at(T::lane(), 0).col == 0)
            desc.lse[b_ * desc.lse_batch_stride + row.head * desc.lse_head_stride +
                     (sequence_.q_begin + row.query) * desc.lse_token_stride] = lse;
    }

    // Hadamard rotation along the channels (numerics/hadamard.h): partners lie in the lane's own result, in another lane,
    // or in another atom.
    CLARY_DEVICE void rotate_rows() {
        const auto dim = static_cast<int>(p_.desc.head_dim_v);
        if (dim == c.head_dim_v && (dim & (dim - 1)) == 0)
            rotate<true>(dim);
        else
            rotate<false>(dim);
    }
    // A head dim that is no power of two has blocks, its binary expansion: channel i lies in the one of the highest bit in
    // which i and dim differ.
    template <bool kOneBlock>
    CLARY_DEVICE void rotate(int dim) {
        constexpr int kRun = OutAtom::kOthers / 4;  // channels that a lane holds side by side
        static_assert(OutAtom::result_at(0, kRun - 1).col == kRun - 1, "a row of an atom lies in four lanes");
        static_for<8>([&](auto bit) {
            constexpr int h = 1 << bit;
            if constexpr (h >= c.head_dim_v) return;
            const auto joins = [&](int n, int i) { return kOneBlock || (channel_of(n, i) ^ dim) >= 2 * h; };
            if constexpr (h >= OutAtom::kOthers) {
                for_out([&](auto m, auto n, auto i) {
                    constexpr int other = n ^ (h / OutAtom::kOthers);
                    if constexpr (n < other && other < kOutN)
                        if (joins(n, i)) butterfly(out_[m][n][i], out_[m][other][i]);
                });
            } else if constexpr (h >= kRun) {
                constexpr int mask = OutAtom::kRowMasks[h / kRun / 2];
                for_out([&](auto m, auto n, auto i) {
                    const float mine = out_[m][n][i], theirs = T::shuffle_xor(mine, mask);
                    if (joins(n, i)) out_[m][n][i] = T::lane() & mask ? theirs - mine : mine + theirs;
                });
            } else {
                for_out([&](auto m, auto n, auto i) {
                    if constexpr ((i & h) == 0)
                        if (joins(n, i)) butterfly(out_[m][n][i], out_[m][n][i + h]);
                });
            }
        });
        const float norm = numerics::hadamard_norm<float>(c.head_dim_v);
        for_out([&](auto m, auto n, auto i) {
            if constexpr (kOneBlock) {
                out_[m][n][i] *= norm;
            } else {
                const int differ = channel_of(n, i) ^ dim;
                out_[m][n][i] *= numerics::hadamard_norm<float>(numerics::hadamard_block(differ > 0 ? differ : 1));
            }
        });
    }
    CLARY_DEVICE static void butterfly(float& a, float& b) {
        const float sum = a + b;
        b = a - b;
        a = sum;
    }

    CLARY_DEVICE void store() const {
        const Operand& out = p_.desc.out;
        const int64_t size = dtype_size(out.dtype);
        static_for<kOutM, kResultRows<OutAtom>>([&](auto m, auto slot) {
            constexpr int r = m * kResultRows<OutAtom> + slot;
            if (row_[r] >= rows_) return;
            const Row row = row_at(row_[r]);
            char* const to = static_cast<char*>(out.data) + (b_ * out.batch_stride + row.head * out.head_stride +
                                                             (sequence_.q_begin + row.query) * out.token_stride) *
                                                                size;
            static_for<kOutN, OutAtom::kResults / 2>([&](auto n, auto half) {
                constexpr int i = half * 2;  // results come in pairs of neighbours in a row
                if constexpr (out_row_of(0, i) == slot)
                    store_pair(to, channel_of(n, i), out_[m][n][i], out_[m][n][i + 1]);
            });
        });
    }
    CLARY_DEVICE void store_pair(char* row, int channel, float a, float b) const {
        const Operand& out = p_.desc.out;
        const int64_t step = out.dim_stride * dtype_size(out.dtype);
        char* const to = row + channel * step;
        const bool both = channel + 1 < p_.desc.head_dim_v;
        if (both && step == 2 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
            *reinterpret_cast<uint32_t*>(to) = out.dtype == DType::kF16 ? T::template pack2<Element::kF16>(a, b)
                                                                        : T::template pack2<Element::kBf16>(a, b);
            return;
        }
        if (channel < p_.desc.head_dim_v) store_element(to, out.dtype, a);
        if (both) store_element(to + step, out.dtype, b);
    }

    const AttentionParams& p_;
    int64_t b_, kv_head_;
    Sequence sequence_;
    int64_t first_row_;         // of the block, among the rows of the kv head
    int64_t kv_row_, kv_tile_;  // where the sequence begins in the packed K and V
    int rows_;                  // of the block that exist
    int wave_row_;              // first row of the wave within the block
    bool loud_ = false;         // some row of the wave has repeat 0

    // Of the lane's rows.
    int row_[kRows];  // within the block
    VisibleKeys keys_[kRows];
    float factor_[kRows];     // base-2 score per unit of Q's codes times K's values
    float reference_[kRows];  // R; -inf before the first tile with a visible key
    float weight_[kRows];     // c of the current tile
    float sum_[kRows];        // the lane's part of l, in units of kPTop 2^R
    float exact_sum_[kRows];  // the same of P before rounding, for the LSE
    Fragment<float, OutAtom::kResults> out_[kOutM][kOutN];
};

}  // namespace clary::gpu
