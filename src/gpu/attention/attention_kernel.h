// SPDX-License-Identifier: Apache-2.0
// Attention on packed operands, for every machine with a matrix product.
//
//   O = softmax(scale Q K^T + biases) V          one block: tile_q rows of one kv head against all their key tiles
//
//   for each tile of keys (64 or 128), its K and V on their way while the tile before is used:
//     S = Q K^T      exact int32, plus the key bias as one more step of 32 digit columns; exact recipes: fp32
//     m = row maximum of the tile           P = 2^(x - m), x the base-2 score: a byte round(255 ..), FP8, or 16 bits
//     T = P V        exact int32, fp32 or fp16 (Sums in config.h; fp16 for a whole row: P against R, T is O)
//     O += float(T) c,  l += (sum of P) c   c = 2^(m + base - R): base the tile's bias base, R the row's reference
//   finish           O / l, rotate back, add V's mean, convert, store; LSE. Where a block has but a piece of the keys
//                    (gpu/attention/split.h): O, l and R as they are, for gpu/combine/combine_kernel.h
//
// P of a tile depends on no other tile, and R moves only when a tile's maximum lies more than 64 above it, so rescaling O
// is rare (docs/decisions/0002-int8-pv-default.md). A wave owns tile_q / waves rows and never waits for another but at
// one barrier per tile.
//
//   copies     Q, tile 0 | tile 1      | tile 2 ..        ("|" is a wait and a block_sync)
//   products             | tile 0      | tile 1 ..
//
// Within a tile P is made in steps of 16 or 32 keys, each multiplied at once, so that exponentials run beside products.
// Where registers allow it a wave has 32 rows, which halves what it reads of K and V for each product.
//
// Shared memory: what one thread works out for all (the sequence, a row's keys and factor); Q; two stages of a tile of K
// with its digits, a tile of V, K's scales, V's weights; at the end O.
#pragma once

#include <cmath>

#include "gpu/arrangement.h"
#include "gpu/attention/config.h"
#include "gpu/attention/lane_rows.h"
#include "gpu/attention/output_rows.h"
#include "gpu/attention/params.h"
#include "gpu/attention/row_bias.h"
#include "gpu/attention/row_result.h"
#include "gpu/header.h"
#include "gpu/target/products.h"
#include "gpu/target/target.h"
#include "gpu/target/tile.h"
#include "numerics/constants.h"
#include "numerics/digits.h"
#include "numerics/permutation.h"

namespace clary::gpu {

template <class T, AttentionConfig kConfig>
class AttentionKernel {
    static constexpr AttentionConfig c = kConfig;
    static constexpr bool kIntQk = c.qk == Element::kS8, kIntPv = c.v == Element::kS8;
    static constexpr bool kByteV = element_bits(c.v) == 8;
    static constexpr bool kHalfSums = c.sums != Sums::kWide, kHalfRow = c.sums == Sums::kHalfRow;
    // Bytes of P are unsigned; where no product takes such, P - 128, and T begins at 128 times V's sums.
    static constexpr bool kUnsignedP = has_product(T::kChip, Element::kU8, Element::kS8, Element::kS32);
    static constexpr Element kP = !kIntPv ? c.v : kUnsignedP ? Element::kU8 : Element::kS8;
    static constexpr numerics::VOrder kOrder =
        kByteV ? arrangement_of(T::kChip).v_order : numerics::VOrder::kAsTheyCome;
    // Scores stay integers until P in tiles without masks whose K scales lie in registers; else they become base-2
    // floats first.
    static constexpr bool kIntScores = c.key_scales == KeyScales::kLane && !c.biased;
    using ScoreAtom = Product<T::kChip, c.qk, c.qk, kIntQk ? Element::kS32 : Element::kF32>;
    using OutAtom = Product<T::kChip, kP, c.v, kIntPv ? Element::kS32 : kHalfSums ? Element::kF16 : Element::kF32>;
    using Score = std::conditional_t<kIntQk, int32_t, float>;
    using Sum = std::conditional_t<kIntPv, int32_t, float>;

    // P of bfloat16 has the range of fp32, so it can be taken against the row's reference where tiles have no bases, and O
    // itself sums up the products. So it is in fp16 too where that is asked for; there R is the row's maximum.
    static constexpr bool kDirect = kHalfRow || (c.v == Element::kBf16 && !c.key_bias);
    static constexpr float kSlack = kHalfRow ? 0.0f : numerics::kReferenceSlack;
    static constexpr int kQkBytes = element_bits(c.qk) / 8, kVBytes = element_bits(c.v) / 8;
    static constexpr int kDigits = c.key_bias ? numerics::kDigitColumns : 0;
    static constexpr int kRowBytes = (c.head_dim + kDigits) * kQkBytes;  // of Q and K in global memory
    using QueryTile = Tile<c.tile_q, c.head_dim * kQkBytes>;
    using KeyTile = Tile<c.tile_k, kRowBytes>;  // digits behind the channels
    // 8-bit V lies transposed, 16-bit V by token.
    using ValueTile = std::conditional_t<kByteV, Tile<c.head_dim_v, c.tile_k>, Tile<c.tile_k, c.head_dim_v * 2>>;

    static constexpr int kWaveRows = c.tile_q / c.waves;
    static constexpr int kScoreM = kWaveRows / ScoreAtom::kQueries, kScoreN = c.tile_k / ScoreAtom::kOthers;
    static constexpr int kScoreSteps = c.head_dim / ScoreAtom::kDepth, kDigitSteps = kDigits / ScoreAtom::kDepth;
    static constexpr int kOutM = kWaveRows / OutAtom::kQueries, kOutN = c.head_dim_v / OutAtom::kOthers;
    static constexpr int kOutSteps = c.tile_k / OutAtom::kDepth;
    // T is added to O after so many.
    static constexpr int kFlushSteps = kByteV && kHalfSums ? numerics::kFp8HalfKeys / OutAtom::kDepth : kOutSteps;
    static constexpr int kRows = kScoreM * kResultRows<ScoreAtom>;  // of a lane
    static constexpr int kAtOnce = 2;                               // atoms whose K or V operands are loaded together
    // Atoms of channels whose T is held at once: eight products that do not wait for each other, in registers of S.
    CLARY_HD static constexpr int out_group() {
        int group = kOutM * kOutN < 8 ? kOutN : 8 / kOutM;
        while (group > kAtOnce && (kOutN % group != 0 || group % kAtOnce != 0 || group * kOutM > kScoreM * kScoreN))
            --group;
        return group;
    }
    static constexpr int kOutGroup = out_group();

    static_assert(c.tile_q % c.waves == 0 && kWaveRows % ScoreAtom::kQueries == 0 && kWaveRows % OutAtom::kQueries == 0,
                  "whole atoms in every wave");
    static_assert(c.head_dim % ScoreAtom::kDepth == 0 && c.tile_k % OutAtom::kDepth == 0, "whole steps of depth");
    static_assert(kScoreN % kAtOnce == 0 && kOutN % kOutGroup == 0 && kOutGroup % kAtOnce == 0,
                  "atoms are taken in pairs");
    static_assert(kRows == kOutM * kResultRows<OutAtom>, "both products leave a lane the same rows");
    static_assert(c.tile_k % kScaleKeys == 0, "whole groups of K scales");
    static_assert(!c.key_bias || kIntQk, "digits are integers");
    static_assert(!kHalfRow || c.v == Element::kF16, "P on the scale of a row needs the range of fp16");

  public:
    static constexpr int kThreads = c.waves * T::kLanes;
    static constexpr int kTileQ = c.tile_q;

  private:
    using CopyQueries = CopyTile<T, QueryTile, kThreads>;
    using CopyKeys = CopyTile<T, KeyTile, kThreads>;
    using CopyValues = CopyTile<T, ValueTile, kThreads>;
    using Output = OutputRows<T, OutAtom, kOutM, kOutN>;
    using Scores = Fragment<Score, ScoreAtom::kResults>[kScoreM][kScoreN];
    using Queries = Fragment<uint32_t, kQueryRegisters<ScoreAtom>>[kScoreM];
    using Partial = std::conditional_t<kHalfSums, Fragment<uint32_t, kResultRegisters<OutAtom>>,
                                       Fragment<Sum, OutAtom::kResults>>;            // of T
    using Exponents = Fragment<float, ScoreAtom::kResults>[kScoreM][kScoreN];        // base-2 scores
    using Weights = Fragment<uint32_t, kQueryRegisters<OutAtom>>[kOutM][kOutSteps];  // P

    // What a row needs once a tile: in shared memory, to save registers.
    struct alignas(8) RowConstants {
        float factor;     // base-2 score per unit of Q's codes times K's values
        uint32_t repeat;  // q_repeat in every byte
    };
    // Two numbers that one thread finds for all: of the block's sequence; its slot and whether the buffers are valid.
    struct alignas(16) Numbers {
        int64_t a, b;
    };
    struct alignas(16) Tiles {
        TileRange range;
        int unused;
    };
    static constexpr bool kTight = kRows > 2;  // registers: the wave's ranges of tiles lie in shared memory too
    // K's scales and V's weights of a tile, copied as one run of bytes.
    static constexpr int kScaleBytes = c.key_scales == KeyScales::kNone ? 0 : c.tile_k * 4;
    static constexpr int kWeightBytes = kIntPv ? c.tile_k : 0;
    static constexpr int kVectorCopies = ((kScaleBytes + kWeightBytes) / 16 + kThreads - 1) / kThreads;
    static constexpr int kStageCopies = CopyKeys::kCopies + CopyValues::kCopies + kVectorCopies;

    // Byte offsets into shared memory, and into a stage.
    static constexpr int kStages = 2;
    static constexpr uint32_t kSequenceAt = 0;                                // three Numbers
    static constexpr uint32_t kRangesAt = kSequenceAt + 3 * sizeof(Numbers);  // three Tiles of each wave
    static constexpr uint32_t kConstantsAt = kRangesAt + (kTight ? c.waves * 3 * sizeof(Tiles) : 0);
    static constexpr uint32_t kVisibleAt =
        kConstantsAt + (kIntQk ? c.tile_q * sizeof(RowConstants) : 0);             // begin, end, keep of each row
    static constexpr uint32_t kExactAt = kVisibleAt + c.tile_q * 3 * sizeof(int);  // l before rounding
    static constexpr uint32_t kQueriesAt = (kExactAt + c.tile_q * sizeof(float) + 127) / 128 * 128;
    static constexpr uint32_t kStagesAt = kQueriesAt + QueryTile::kBytes;
    static constexpr uint32_t kValuesAt = KeyTile::kBytes;
    static constexpr uint32_t kScalesAt = kValuesAt + ValueTile::kBytes;
    static constexpr uint32_t kWeightsAt = kScalesAt + kScaleBytes;
    // (Tiles begin at multiples of 128: see Tile::move.)
    static constexpr uint32_t kStageBytes = (kWeightsAt + kWeightBytes + 127) / 128 * 128;
    static constexpr uint32_t kTilesBytes = kStagesAt + kStages * kStageBytes;
    static constexpr uint32_t kOutputBytes = kQueriesAt + c.waves * Output::kBytes;

  public:
    static constexpr uint32_t kSharedBytes = kTilesBytes > kOutputBytes ? kTilesBytes : kOutputBytes;
    static_assert(kSharedBytes <= T::kSharedBytes, "fits the machine");

    CLARY_DEVICE static void run(const AttentionParams& params) {
        AttentionKernel kernel(params);
        if (kernel.rows_ > 0) kernel.block();
    }

  private:
    static constexpr float kInfinity = __builtin_huge_valf();
    static constexpr PTop kPTop = p_top(c.v);

    // -- which keys and scales a lane holds: everything from the atom's tables --
    CLARY_HD static constexpr int row_of(int m, int i) {  // slot among the lane's rows
        return m * kResultRows<ScoreAtom> + row_slot<ScoreAtom>(i);
    }
    // The row of a slot, within the wave's; constants but for the lane.
    CLARY_HD static constexpr int first_of_row(int slot) {
        int i = 0;
        while (row_slot<ScoreAtom>(i) != slot % kResultRows<ScoreAtom>) ++i;
        return i;
    }
    template <int slot>
    CLARY_HD static constexpr int wave_row(int lane) {
        constexpr int kFirst = first_of_row(slot);
        return slot / kResultRows<ScoreAtom> * ScoreAtom::kQueries + ScoreAtom::result_at(lane, kFirst).row;
    }
    CLARY_DEVICE static int key_of(int n, int i) {  // within the tile
        return n * ScoreAtom::kOthers + ScoreAtom::result_at(T::lane(), i).col;
    }
    // Number of a result's K scale among those that the lane holds of 64 keys.
    CLARY_HD static constexpr int scale_slot(int i) { return ScoreAtom::result_at(0, i).col % 8 / 2; }
    static constexpr int kScaleSlots = scale_slot(ScoreAtom::kResults - 1) + 1;
    static constexpr int kScaleGroups = c.tile_k / kScaleKeys;
    static constexpr int kGroupN = kScoreN / kScaleGroups;
    struct Factors {  // base 2 per unit of S
        float of[kRows][kScaleGroups][kScaleSlots];
    };

    // The score that is element e of P's operand: which of the lane's S it becomes.
    struct Place {
        int m, n, i;
        friend constexpr bool operator==(const Place&, const Place&) = default;
    };
    CLARY_HD static constexpr Place score_of(int lane, int m_out, int step, int e) {
        const Coord at = OutAtom::query_at(lane, e);
        const int row = m_out * OutAtom::kQueries + at.row, position = step * OutAtom::kDepth + at.col;
        const int key = static_cast<int>(numerics::v_token(kOrder, position));
        Place s{row / ScoreAtom::kQueries, key / ScoreAtom::kOthers, 0};
        while (ScoreAtom::result_at(lane, s.i) != Coord{row % ScoreAtom::kQueries, key % ScoreAtom::kOthers}) ++s.i;
        return s;
    }
    static constexpr bool scores_agree() {  // a lane other than 0 finds each score at the same place
        for (int lane = 1; lane < T::kLanes; ++lane)
            for (int e = 0; e < OutAtom::kQueryElements; ++e)
                if (score_of(lane, kOutM - 1, kOutSteps - 1, e) != score_of(0, kOutM - 1, kOutSteps - 1, e))
                    return false;
        return true;
    }
    static_assert(scores_agree(), "S becomes P's operand within the lane");
    // The slot of the row that a register of Q's operand belongs to.
    CLARY_HD static constexpr int query_slot(int m, int reg) {
        int slot = 0;
        while (ScoreAtom::result_at(0, first_of_row(slot)).row != ScoreAtom::query_at(0, reg * ScoreAtom::kRun).row)
            ++slot;
        return m * kResultRows<ScoreAtom> + slot;
    }

    // -- the block's place in the problem --
    CLARY_DEVICE explicit AttentionKernel(const AttentionParams& params) : p_(params) {
        const AttentionDesc& desc = p_.desc;
        const auto group = static_cast<int>(desc.q_heads_per_kv()), kv_heads = static_cast<int>(desc.kv_heads);
        const int tiles = (static_cast<int>(desc.q_len) * group + c.tile_q - 1) / c.tile_q;
        const int block = T::block(0) / p_.split.pieces, head = block / tiles;
        b_ = head / kv_heads;
        kv_head_ = head - b_ * kv_heads;
        if (T::wave() == 0 && T::lane() == 0) store_sequence();
        T::block_sync();  // the sequence is there
        const Sequence sequence = this->sequence();
        wave_row_ = (T::wave() + static_cast<int>(numbers(2).b / 2)) % c.waves * kWaveRows;
        first_row_ = (tiles - 1 - (block - head * tiles)) * c.tile_q;  // causal: the longest of a head first
        const int rows = static_cast<int>(sequence.q_len) * group - first_row_;
        rows_ = rows < c.tile_q ? rows : c.tile_q;
        // No more than there is memory for, where max_seqlen_q is too small.
        if (split() && rows_ > p_.split.rows - first_row_) rows_ = p_.split.rows - first_row_;
        kv_row_ = p_.kv_rows.begin(b_, kv_head_, kv_heads, sequence.kv_begin);
    }
    CLARY_DEVICE void store_sequence() const {
        const Sequence s = packed_sequence(p_, b_);
        T::store(numbers_at(0), Numbers{s.q_begin, s.q_len});
        T::store(numbers_at(1), Numbers{s.kv_begin, s.kv_len});
        T::store(numbers_at(2), Numbers{s.offset, 2 * T::slot() + int{headers_match(p_.headers)}});
    }
    CLARY_DEVICE static SharedAddress numbers_at(uint32_t i) { return {kSequenceAt + i * uint32_t{sizeof(Numbers)}}; }
    CLARY_DEVICE static Numbers numbers(uint32_t i) { return T::template load<Numbers>(numbers_at(i)); }
    // Read anew where it is needed: it would cost ten registers.
    CLARY_DEVICE static Sequence sequence() {
        const Numbers q = numbers(0), kv = numbers(1);
        return {.q_begin = q.a, .q_len = q.b, .kv_begin = kv.a, .kv_len = kv.b, .offset = numbers(2).a};
    }
    // Whether the buffers were packed for this problem. If not they are not read, and all results are NaN.
    CLARY_DEVICE static bool valid() { return numbers(2).b % 2 != 0; }
    CLARY_DEVICE Row row_at(int row) const { return Row::of(p_.desc, kv_head_, first_row_ + row); }
    // Rows past the end stand for the last one, and are not stored.
    template <int slot>
    CLARY_DEVICE Row row_of_slot() const {
        return row_at(real_row(row_in_block<slot>()));
    }
    CLARY_DEVICE int real_row(int row) const { return row < rows_ ? row : rows_ - 1; }
    template <int slot>
    CLARY_DEVICE int row_in_block() const {
        return wave_row_ + wave_row<slot>(T::lane());
    }
    CLARY_DEVICE int64_t packed_row(const Row& row) const {
        return p_.q_rows.begin(b_, row.head, p_.desc.q_heads, sequence().q_begin) + row.query;
    }
    CLARY_DEVICE static SharedAddress constants_at(int row) {
        return {kConstantsAt + static_cast<uint32_t>(row) * uint32_t{sizeof(RowConstants)}};
    }
    template <int slot>
    CLARY_DEVICE RowConstants constants_of() const {
        if constexpr (!kIntQk) return {p_.a, 0};
        return T::template load<RowConstants>(constants_at(row_in_block<slot>()));
    }
    CLARY_DEVICE static SharedAddress visible_at(int row, uint32_t which) {
        return {kVisibleAt + (which * c.tile_q + static_cast<uint32_t>(row)) * uint32_t{sizeof(int)}};
    }
    CLARY_DEVICE static VisibleKeys visible(int row) {
        const auto number = [=](uint32_t which) { return T::template load<int>(visible_at(row, which)); };
        return {number(0), number(1), number(2)};
    }
    // l of a row from P before rounding: where there is an LSE to tell; a lane of the row's four keeps it.
    template <int slot>
    CLARY_DEVICE SharedAddress exact_sum_at() const {
        return {kExactAt + static_cast<uint32_t>(row_in_block<slot>()) * uint32_t{sizeof(float)}};
    }
    template <int slot>
    CLARY_DEVICE float exact_sum() const {
        return T::template load<float>(exact_sum_at<slot>());
    }

    CLARY_DEVICE void block() {
        const int first = wave_row_;
        const bool works = first < rows_;  // a wave without rows only helps to copy
        const Source source = source_of_tiles();
        const RowConstants constants = start_row();
        T::block_sync();  // all rows know their keys
        const VisibleSpan all_rows{visible(0), visible(c.tile_q - 1)};
        const VisibleSpan rows{visible(first), visible(first + kWaveRows - 1)};
        // Buffers that were packed for something else are not read.
        TileRange range = valid() ? TileRange::some(all_rows, c.tile_k) : TileRange{0, 0, 0};
        if (split()) range = range.piece(piece(), p_.split.pieces);
        const Ranges ranges(range, TileRange::some(rows, c.tile_k), TileRange::all(rows, c.tile_k));
        if (range.has(range.first())) fetch_queries();
        fetch(source, range, range.first(), 0);
        if (split()) T::let_next_start();
        if (!weighted()) store_plain_weights();
        if (kIntQk && thread() < c.tile_q) T::store(constants_at(thread()), constants);
        start_sums();
        for (int tile = range.first(), stage = 0; ranges.block().has(tile); stage ^= 1) {
            const bool sees = works && ranges.some().has(tile), masked = !ranges.all().has(tile);
            const int next = ranges.block().after(tile);
            T::template wait<0, kStageCopies>();
            T::block_sync();  // the tile is there for all waves, and nobody reads the tile before it any more
            fetch(source, ranges.block(), next, stage ^ 1);
            if (sees) step(tile, stage, masked);
            tile = next;
        }
        T::block_sync();  // the tiles' memory is free
        if (works) finish();
    }
    // The block's tiles; of those, which the wave sees something of, and all of.
    class Ranges {
      public:
        CLARY_DEVICE Ranges(const TileRange& block, const TileRange& some, const TileRange& all)
            : held_{block, some, all} {
            if constexpr (kTight) {
                for (int i = 0; i < 3; ++i)
                    if (T::lane() == 0) T::store(at(i), Tiles{held_[i], 0});
                T::wave_sync();
            }
        }
        CLARY_DEVICE TileRange block() const { return get(0); }
        CLARY_DEVICE TileRange some() const { return get(1); }
        CLARY_DEVICE TileRange all() const { return get(2); }

      private:
        CLARY_DEVICE static SharedAddress at(int i) {
            return {kRangesAt + static_cast<uint32_t>(T::wave() * 3 + i) * uint32_t{sizeof(Tiles)}};
        }
        CLARY_DEVICE TileRange get(int i) const { return kTight ? T::template load<Tiles>(at(i)).range : held_[i]; }
        TileRange held_[3];
    };

    // -- copies --
    CLARY_DEVICE static SharedAddress stage_at(int stage) {
        return {kStagesAt + static_cast<uint32_t>(stage) * kStageBytes};
    }
    CLARY_DEVICE static QueryTile query_tile() { return {{kQueriesAt}}; }
    CLARY_DEVICE static KeyTile key_tile(int stage) { return {stage_at(stage)}; }
    CLARY_DEVICE static ValueTile value_tile(int stage) { return {stage_at(stage) + kValuesAt}; }

    CLARY_DEVICE void fetch_queries() const {
        CopyQueries::issue(query_tile(), [&](int row) -> const char* {
            if (row >= rows_) return nullptr;
            return static_cast<const char*>(p_.q_codes) + packed_row(row_at(row)) * kRowBytes;
        });
    }
    // Where the calling thread's parts of tile 0 begin; those of the others lie whole tiles behind.
    struct Source {
        const char *keys, *values;
        const char* vectors[kVectorCopies + 1];
        int vector_step[kVectorCopies + 1];  // bytes from tile to tile; 0: no part
    };
    CLARY_DEVICE Source source_of_tiles() const {
        Source source;
        const char* const keys = static_cast<const char*>(p_.k_codes) + kv_row_ * kRowBytes;
        source.keys = CopyKeys::template part_of<kRowBytes>(keys);
        source.values = CopyValues::template part_of<ValueTile::kRowBytes>(static_cast<const char*>(p_.v_codes) +
                                                                           kv_row_ * (c.head_dim_v * kVBytes));
        CLARY_UNROLL
        for (int copy = 0; copy < kVectorCopies; ++copy) {
            const int byte = vector_byte(copy);
            source.vectors[copy] = nullptr;
            source.vector_step[copy] = 0;
            if (byte < kScaleBytes) {
                source.vectors[copy] = reinterpret_cast<const char*>(p_.k_scale + kv_row_) + byte;
                source.vector_step[copy] = kScaleBytes;
            } else if (weighted() && byte < kScaleBytes + kWeightBytes) {
                source.vectors[copy] = reinterpret_cast<const char*>(p_.v_weight + kv_row_) + (byte - kScaleBytes);
                source.vector_step[copy] = kWeightBytes;
            }
        }
        return source;
    }
    CLARY_DEVICE static int vector_byte(int copy) { return (copy * kThreads + thread()) * 16; }
    // Sets off the copy of a tile, one group. (Q travels with the first.)
    CLARY_DEVICE static void fetch(const Source& source, const TileRange& range, int tile, int stage) {
        if (!range.has(tile)) return;
        const int64_t index = tile;
        const char* const keys = source.keys + index * (c.tile_k * kRowBytes);
        CopyKeys::template issue_part<kRowBytes>(key_tile(stage), keys);
        CopyValues::template issue_part<ValueTile::kRowBytes>(value_tile(stage),
                                                              source.values + index * ValueTile::kBytes);
        CLARY_UNROLL
        for (int copy = 0; copy < kVectorCopies; ++copy)
            T::copy16(stage_at(stage) + kScalesAt + static_cast<uint32_t>(vector_byte(copy)),
                      source.vectors[copy] + index * source.vector_step[copy], true, source.vector_step[copy] != 0);
        T::commit();
    }
    // Without scales per token every key of a full tile counts the same: 15 of 15.
    CLARY_DEVICE static void store_plain_weights() {
        for (int stage = 0; stage < kStages; ++stage)
            for (int word = thread(); word < kWeightBytes / 4; word += kThreads)
                T::store(stage_at(stage) + kWeightsAt + static_cast<uint32_t>(word * 4),
                         0x01010101u * numerics::kWeightUnit);
    }

    CLARY_DEVICE bool by_channel_tile() const { return kByteV && p_.desc.recipe.v_scale == VScale::kChannelTile; }
    CLARY_DEVICE bool weighted() const { return kIntPv && p_.v_weight != nullptr; }

    // Four lanes hold parts of a row; one speaks for it.
    CLARY_DEVICE static bool speaks() { return ScoreAtom::result_at(T::lane(), 0).col == 0; }
    CLARY_DEVICE static int thread() { return T::wave() * T::kLanes + T::lane(); }
    // Each row has a thread. Its keys go to shared memory at once, its constants when they have arrived.
    static_assert(c.tile_q <= kThreads);
    CLARY_DEVICE RowConstants start_row() const {
        RowConstants constants{p_.a, 0};
        const int row = thread();
        if (row >= c.tile_q) return constants;
        const Row at = row_at(real_row(row));
        const VisibleKeys keys = VisibleKeys::of(p_.desc, sequence(), at.query);
        T::store(visible_at(row, 0), keys.begin);
        T::store(visible_at(row, 1), keys.end);
        T::store(visible_at(row, 2), keys.keep);
        T::store(SharedAddress{kExactAt + static_cast<uint32_t>(row) * uint32_t{sizeof(float)}}, 0.0f);
        const int64_t packed = packed_row(at);
        if constexpr (kIntQk) constants.factor *= p_.q_scale[packed];
        if constexpr (c.key_bias) constants.repeat = p_.q_repeat[packed] * 0x01010101u;
        return constants;
    }
    CLARY_DEVICE void start_sums() {
        static_for<kRows>([&](auto r) {
            reference_[r] = -kInfinity;
            sum_[r] = 0;
        });
        static_for<kOutM, kOutN>([&](auto m, auto n) { out_[m][n].fill(0); });
    }

    // -- one tile --
    CLARY_DEVICE void step(int tile, int stage, bool masked) {
        // Read early: the products hide how long it takes.
        // (Tiles of 16-bit V need not be the recipe's, which has a base for each of its own.)
        const int64_t tile_index = kByteV                       ? kv_row_ / c.tile_k + tile
                                   : p_.desc.recipe.tile == 128 ? (kv_row_ + tile * c.tile_k) / 128
                                                                : (kv_row_ + tile * c.tile_k) / 64;
        const float base = p_.tile_base ? p_.tile_base[tile_index] : 0.0f;
        const VScale v_scale = p_.desc.recipe.v_scale;
        const bool by_tile = p_.v_scale && v_scale != VScale::kChannelTile && v_scale != VScale::kChannel;
        const float value_scale = by_tile ? p_.v_scale[tile_index] : 1.0f;

        Scores s;
        scores(stage, s);
        if (!kIntScores || masked) {
            Exponents x;
            scale(stage, s, x);
            if constexpr (c.biased) add_bias(tile * c.tile_k, x);
            if (masked) mask(tile * c.tile_k, x);
            attend<false>(stage, tile_index, base, value_scale, x, {});
        } else if constexpr (kIntScores) {
            Factors factor;
            factors(stage, factor);
            attend<true>(stage, tile_index, base, value_scale, s, factor);
        }
    }

    CLARY_DEVICE void scores(int stage, Scores& s) const {
        static_for<kScoreM, kScoreN>([&](auto m, auto n) { s[m][n].fill(0); });
        [[maybe_unused]] bool loud = false;  // rows with repeat 0
        if constexpr (c.key_bias) {
            // Every digit column of a row of Q holds its repeat.
            Queries query;
            loud = false;
            static_for<kRows>([&](auto r) { loud = loud || constants_of<r>().repeat == 0; });
            static_for<kScoreM, kQueryRegisters<ScoreAtom>>(
                [&](auto m, auto reg) { query[m][reg] = constants_of<query_slot(m, reg)>().repeat; });
            CLARY_UNROLL
            for (int d = 0; d < kDigitSteps; ++d) multiply(query, stage, c.head_dim + d * ScoreAtom::kDepth, s);
        } else {
            multiply_step(0, stage, s);
        }
        CLARY_UNROLL
        for (int d = c.key_bias ? 0 : 1; d < kScoreSteps; ++d) multiply_step(d, stage, s);
        if constexpr (c.key_bias)
            if (T::any(loud)) add_loud_bias(stage, s);
    }
    CLARY_DEVICE void multiply_step(int d, int stage, Scores& s) const {
        Queries query;
        CLARY_UNROLL
        for (int m = 0; m < kScoreM; ++m)
            query[m] = T::template load_query<ScoreAtom>(query_tile(), wave_row_ + m * ScoreAtom::kQueries,
                                                         d * ScoreAtom::kDepth);
        multiply(query, stage, d * ScoreAtom::kDepth, s);
    }
    // s += query times one step of the tile's depth.
    CLARY_DEVICE static void multiply(const Queries& query, int stage, int depth, Scores& s) {
        CLARY_UNROLL
        for (int n = 0; n < kScoreN; n += kAtOnce) {
            const auto keys =
                T::template load_other<ScoreAtom, kAtOnce>(key_tile(stage), n * ScoreAtom::kOthers, depth);
            CLARY_UNROLL
            for (int part = 0; part < kAtOnce; ++part) CLARY_UNROLL
            for (int m = 0; m < kScoreM; ++m)
                T::template mma<ScoreAtom>(query[m], part_of<kOtherRegisters<ScoreAtom>>(keys, part), s[m][n + part]);
        }
    }

    // Rows whose repeat is 0: louder than q_base allows. Their digits count nothing in S, so the bias joins it here, in
    // units of q_scale: to the nearest of those, which are coarse for such a row as its codes are.
    CLARY_DEVICE void add_loud_bias(int stage, Scores& s) const {
        const float unit = p_.q_base[b_ * p_.desc.kv_heads + kv_head_] * p_.a;
        float ratio[kRows];
        static_for<kRows>([&](auto r) {
            const RowConstants row = constants_of<r>();
            ratio[r] = row.repeat == 0 ? unit / row.factor : 0.0f;
        });
        // Queries of ones add up the digits.
        Queries ones;
        Scores units;
        static_for<kScoreM>([&](auto m) { ones[m].fill(0x01010101u); });
        static_for<kScoreM, kScoreN>([&](auto m, auto n) { units[m][n].fill(0); });
        CLARY_UNROLL
        for (int d = 0; d < kDigitSteps; ++d) multiply(ones, stage, c.head_dim + d * ScoreAtom::kDepth, units);
        for_scores([&](auto m, auto n, auto i) {
            s[m][n][i] += static_cast<int32_t>(::rintf(static_cast<float>(units[m][n][i]) * ratio[row_of(m, i)]));
        });
    }

    template <class Visit>
    CLARY_DEVICE static void for_scores(const Visit& visit) {
        static_for<kScoreM, kScoreN, ScoreAtom::kResults>(visit);
    }

    // Base-2 scores.
    CLARY_DEVICE void scale(int stage, const Scores& s, Exponents& x) const {
        float factors[kRows];
        static_for<kRows>([&](auto r) { factors[r] = constants_of<r>().factor; });
        for_scores([&](auto m, auto n, auto i) {
            float factor = factors[row_of(m, i)];
            if constexpr (c.key_scales != KeyScales::kNone) factor *= key_scale(stage, key_of(n, i));
            x[m][n][i] = static_cast<float>(s[m][n][i]) * factor;
        });
    }
    CLARY_DEVICE static float key_scale(int stage, int key) {
        return T::template load<float>(stage_at(stage) + kScalesAt + static_cast<uint32_t>(key * 4));
    }

    CLARY_DEVICE void add_bias(int first, Exponents& x) const {
        const Sequence sequence = this->sequence();
        static_for<kRows>([&](auto r) {
            const RowBias bias(p_.desc, sequence, b_, row_of_slot<r>());
            for_scores([&](auto m, auto n, auto i) {
                const int key = first + key_of(n, i);
                if (row_of(m, i) != r || key >= sequence.kv_len) return;
                const float b = bias(key);
                x[m][n][i] = b == -kInfinity ? b : x[m][n][i] + b;  // NaN stays out of sight
            });
        });
    }

    CLARY_DEVICE void mask(int first, Exponents& x) const {
        static_for<kRows>([&](auto r) {
            const VisibleKeys keys = visible(row_in_block<r>());
            for_scores([&](auto m, auto n, auto i) {
                if (row_of(m, i) != r || keys.sees(first + key_of(n, i))) return;
                x[m][n][i] = -kInfinity;
            });
        });
    }

    CLARY_DEVICE void factors(int stage, Factors& factor) const {
        static_for<kScaleGroups, kScaleSlots>([&](auto g, auto slot) {
            const int key = g * kScaleKeys + ScoreAtom::result_at(T::lane(), 0).col % 8 + 2 * slot;
            const float scale = key_scale(stage, key);
            static_for<kRows>([&](auto r) { factor.of[r][g][slot] = constants_of<r>().factor * scale; });
        });
    }

    // -- online softmax over tile-local maxima, and O += float(P V) c with the tile's weight c --
    // x: S, with factors (kIntegers), or base-2 scores.
    template <bool kIntegers, class X>
    CLARY_DEVICE void attend(int stage, int64_t tile_index, float base, float value_scale, const X& x,
                             const Factors& factor) {
        float top[kRows], shift[kRows], rescale[kRows];
        row_maxima<kIntegers>(x, factor, top);
        bool moves = false;
        static_for<kRows>([&](auto r) {
            top[r] = T::row_max(top[r]);
            // P of 16 bits is taken against a whole power of two, so that its rounding does not depend on the tile.
            if constexpr (!kByteV) top[r] = ::ceilf(top[r]);
            const bool seen = top[r] != -kInfinity;
            const float lift = top[r] + base, before = reference_[r];
            const bool first = seen && before == -kInfinity;
            const bool jump = seen && !(lift - before <= kSlack);  // also from and to NaN
            reference_[r] = first || jump ? lift : before;
            rescale[r] = jump && !first ? T::exp2(before - lift) : 1.0f;
            moves = moves || (jump && !first);
            weight_[r] = kDirect ? 1.0f : seen ? T::exp2(lift - reference_[r]) : 0.0f;
            shift[r] = kPTop.log2 - (!seen ? 0.0f : kDirect ? reference_[r] - base : top[r]);
        });
        if (T::any(moves)) rescale_rows(rescale);
        float weight[kRows];  // of T
        static_for<kRows>([&](auto r) { weight[r] = weight_[r] * value_scale; });
        // One branch a tile, so that what follows is one run of instructions.
        if (p_.desc.want_lse || by_channel_tile())
            multiply_values<kIntegers, true>(stage, tile_index, x, factor, shift, weight);
        else
            multiply_values<kIntegers, false>(stage, tile_index, x, factor, shift, weight);
    }

    template <bool kIntegers, class X>
    CLARY_DEVICE static void row_maxima(const X& x, const Factors& factor, float (&top)[kRows]) {
        static_for<kRows>([&](auto r) { top[r] = -kInfinity; });
        if constexpr (kIntegers) {
            int32_t highest[kRows][kScaleGroups][kScaleSlots];
            static_for<kRows, kScaleGroups, kScaleSlots>(
                [&](auto r, auto g, auto slot) { highest[r][g][slot] = INT32_MIN; });
            for_scores([&](auto m, auto n, auto i) {
                int32_t& high = highest[row_of(m, i)][n / kGroupN][scale_slot(i)];
                high = x[m][n][i] > high ? x[m][n][i] : high;
            });
            static_for<kRows, kScaleGroups, kScaleSlots>([&](auto r, auto g, auto slot) {
                top[r] = T::max(top[r], static_cast<float>(highest[r][g][slot]) * factor.of[r][g][slot]);
            });
        } else {
            for_scores([&](auto m, auto n, auto i) { top[row_of(m, i)] = T::max(top[row_of(m, i)], x[m][n][i]); });
        }
    }

    CLARY_DEVICE void rescale_rows(const float (&rescale)[kRows]) {
        static_for<kRows>([&](auto r) {
            sum_[r] *= rescale[r];
            if (speaks()) T::store(exact_sum_at<r>(), exact_sum<r>() * rescale[r]);
        });
        if constexpr (kHalfRow)
            static_for<kOutM, kOutN, kResultRegisters<OutAtom>>([&](auto m, auto n, auto reg) {
                uint32_t& pair = out_[m][n][reg];
                const float factor = rescale[Output::row_of(m, 2 * reg)];
                pair = T::template pack2<Element::kF16>(value_of(out_[m][n], 2 * reg) * factor,
                                                        value_of(out_[m][n], 2 * reg + 1) * factor);
            });
        else
            for_out([&](auto m, auto n, auto i) { out_[m][n][i] *= rescale[Output::row_of(m, i)]; });
    }

    // V's weights of a tile, four to a word, as P's operand has them.
    struct ByteWeights {
        uint32_t word[kOutSteps][kQueryRegisters<OutAtom>];
    };
    // Row sums of P of a tile, parts of a lane.
    struct RowParts {
        int32_t whole[kRows];  // bytes, each times 15 or its weight
        float sum[kRows];      // floats
        float exact[kRows];    // before rounding
    };

    // P step by step along the keys, each multiplied at once: exponentials and products overlap.
    template <bool kIntegers, bool kExtras, class X>
    CLARY_DEVICE void multiply_values(int stage, int64_t tile_index, const X& x, const Factors& factor,
                                      const float (&shift)[kRows], const float (&weight)[kRows]) {
        RowParts sums;
        static_for<kRows>([&](auto r) {
            sums.whole[r] = 0;
            sums.sum[r] = sums.exact[r] = 0;
        });
        ByteWeights byte_weights;
        if constexpr (kIntPv) load_weights(stage, byte_weights);
        Weights p;
        static_for<kOutN / kOutGroup>([&](auto group) {
            constexpr int first = group * kOutGroup;
            Partial t[kOutM][kOutGroup];
            const auto clear = [&] {
                static_for<kOutM, kOutGroup, Partial::kSize>([&](auto m, auto part, auto i) {
                    t[m][part][i] = 0;
                    if constexpr (kIntPv && !kUnsignedP)
                        t[m][part][i] = 128 * p_.v_sum[tile_index * c.head_dim_v + Output::channel_of(first + part, i)];
                });
            };
            if constexpr (!kDirect) clear();
            static_for<kOutSteps>([&](auto step) {
                if constexpr (group == 0)
                    static_for<kOutM, kQueryRegisters<OutAtom>>([&](auto m, auto reg) {
                        p[m][step][reg] =
                            make_p<kIntegers, kExtras, step, m, reg>(x, factor, shift, byte_weights, sums);
                    });
                static_for<kOutGroup / kAtOnce>([&](auto pair) {
                    const auto values = load_values(stage, first + pair * kAtOnce, step);
                    static_for<kAtOnce, kOutM>([&](auto part, auto m) {
                        T::template mma<OutAtom>(
                            p[m][step], part_of<kOtherRegisters<OutAtom>>(values, part),
                            sums_of<first + pair * kAtOnce + part>(m, t[m][pair * kAtOnce + part]));
                    });
                });
                if constexpr (!kDirect && (step + 1) % kFlushSteps == 0) {
                    flush<kExtras, first>(t, weight, tile_index);
                    if constexpr (step + 1 < kOutSteps) clear();
                }
            });
        });
        constexpr float kUnit = kIntPv ? 1.0f / numerics::kWeightUnit : 1.0f;
        static_for<kRows>([&](auto r) {
            const float sum = kIntPv ? static_cast<float>(sums.whole[r]) : sums.sum[r];
            sum_[r] = T::fma(sum * kUnit, weight_[r], sum_[r]);
            if constexpr (kExtras) {
                const float exact = T::row_sum(sums.exact[r]) * kUnit;
                if (speaks()) T::store(exact_sum_at<r>(), T::fma(exact, weight_[r], exact_sum<r>()));
            }
        });
    }

    template <int n>
    CLARY_DEVICE auto& sums_of(int m, Partial& t) {
        if constexpr (kDirect)
            return out_[m][n];
        else
            return t;
    }
    CLARY_DEVICE static auto load_values(int stage, int atom, int step) {
        const int channel = atom * OutAtom::kOthers, depth = step * OutAtom::kDepth;
        if constexpr (kByteV)
            return T::template load_other<OutAtom, kAtOnce>(value_tile(stage), channel, depth);
        else
            return T::template load_other_transposed<OutAtom, kAtOnce>(value_tile(stage), depth, channel);
    }

    // O += float(T) weight for kOutGroup atoms of channels from `first`.
    template <bool kExtras, int first>
    CLARY_DEVICE void flush(const Partial (&t)[kOutM][kOutGroup], const float (&weight)[kRows], int64_t tile_index) {
        const auto add = [&](auto channel_weight) {
            static_for<kOutM, kOutGroup, OutAtom::kResults>([&](auto m, auto part, auto i) {
                float& o = out_[m][first + part][i];
                o = T::fma(value_of(t[m][part], i), weight[Output::row_of(m, i)] * channel_weight(first + part, i), o);
            });
        };
        if (kExtras && by_channel_tile()) {
            const float* const scale = p_.v_scale + tile_index * c.head_dim_v;
            add([=](int atom, int i) { return scale[Output::channel_of(atom, i)]; });
        } else {
            add([](int, int) { return 1.0f; });
        }
    }

    // Result i of a product.
    CLARY_DEVICE static float value_of(const Partial& t, int i) {
        if constexpr (kHalfSums)
            return T::template unpack2<Element::kF16>(t[i / 2], i % 2);
        else
            return static_cast<float>(t[i]);
    }

    // One register of P's operand; its elements join the row sums.
    template <bool kIntegers, bool kExtras, int step, int m, int reg, class X>
    CLARY_DEVICE static uint32_t make_p(const X& x, const Factors& factor, const float (&shift)[kRows],
                                        const ByteWeights& byte_weights, RowParts& sums) {
        constexpr Place first = score_of(0, m, step, reg * OutAtom::kRun);
        constexpr int r = row_of(first.m, first.i);
        float e[OutAtom::kRun];
        exponentials<kIntegers, step, m, reg>(x, factor, shift[r], e);
        if constexpr (kIntPv) {
            const uint32_t weights = byte_weights.word[step][word_of_weights(reg)];
            const uint32_t word = T::template pack4<Element::kU8>(e[0], e[1], e[2], e[3]);
            sums.whole[r] = T::dot4(word, weights, sums.whole[r]);
            if constexpr (kExtras)
                static_for<4>([&](auto j) {
                    sums.exact[r] = T::fma(e[j], static_cast<float>(weights >> (8 * j) & 255u), sums.exact[r]);
                });
            return kUnsignedP ? word : word ^ 0x80808080u;
        } else if constexpr (kByteV) {
            const uint32_t word = T::template pack4<kP>(e[0], e[1], e[2], e[3]);
            static_for<4>([&](auto j) { sums.sum[r] += T::template unpack4<kP>(word, j); });
            if constexpr (kExtras) sums.exact[r] += (e[0] + e[1]) + (e[2] + e[3]);
            return word;
        } else {
            const uint32_t word = T::template pack2<kP>(e[0], e[1]);
            sums.sum[r] += T::template unpack2<kP>(word, 0) + T::template unpack2<kP>(word, 1);
            if constexpr (kExtras) sums.exact[r] += e[0] + e[1];
            return word;
        }
    }

    // V's weights in the order of P's operand: registers of different rows share them.
    CLARY_HD static constexpr int word_of_weights(int reg) {
        int first = 0;
        while (OutAtom::query_at(0, first * OutAtom::kRun).col != OutAtom::query_at(0, reg * OutAtom::kRun).col)
            ++first;
        return first;
    }
    CLARY_DEVICE static void load_weights(int stage, ByteWeights& weights) {
        static_for<kOutSteps, kQueryRegisters<OutAtom>>([&](auto step, auto reg) {
            if constexpr (word_of_weights(reg) != reg) return;
            const int position = step * OutAtom::kDepth + OutAtom::query_at(T::lane(), reg * OutAtom::kRun).col;
            weights.word[step][reg] =
                T::template load<uint32_t>(stage_at(stage) + kWeightsAt + static_cast<uint32_t>(position));
        });
    }

    // The elements of a register of P's operand: 2^(x - m) times kPTop.value.
    template <bool kIntegers, int step, int m, int reg, class X>
    CLARY_DEVICE static void exponentials(const X& x, const Factors& factor, float shift, float (&e)[OutAtom::kRun]) {
        static_for<OutAtom::kRun>([&](auto j) {
            constexpr Place from = score_of(0, m, step, reg * OutAtom::kRun + j);
            const auto score = x[from.m][from.n][from.i];
            if constexpr (kIntegers) {
                const float f = factor.of[row_of(from.m, from.i)][from.n / kGroupN][scale_slot(from.i)];
                e[j] = T::exp2(T::fma(static_cast<float>(score), f, shift));
            } else {
                e[j] = T::exp2(score + shift);
            }
        });
    }

    template <class Visit>
    CLARY_DEVICE static void for_out(const Visit& visit) {
        static_for<kOutM, kOutN, OutAtom::kResults>(visit);
    }

    // -- results --
    CLARY_DEVICE bool split() const { return p_.split.pieces > 1; }
    CLARY_DEVICE int piece() const { return T::block(0) % p_.split.pieces; }
    CLARY_DEVICE void finish() {
        if constexpr (kHalfRow) {
            typename Output::Registers out;
            for_out([&](auto m, auto n, auto i) { out[m][n][i] = value_of(out_[m][n], i); });
            finish(out);
        } else {
            finish(out_);
        }
    }
    CLARY_DEVICE void finish(typename Output::Registers& out) const {
        const AttentionDesc& desc = p_.desc;
        float inverse[kRows], share[kRows];
        const int64_t q_begin = sequence().q_begin;
        static_for<kRows>([&](auto r) { finish_row<r>(q_begin, inverse[r], share[r]); });
        if (!split()) Output::finish(out, inverse, share, value_channels(p_, b_, kv_head_, c.head_dim_v));

        const SharedAddress scratch{kQueriesAt + static_cast<uint32_t>(T::wave() * Output::kBytes)};
        const int first = wave_row_;
        const Operand to = split() ? Operand{p_.split.out, DType::kF32} : desc.out;
        const int channels = split() ? c.head_dim_v : static_cast<int>(desc.head_dim_v);
        Output::store(out, scratch, to, channels, rows_ - first, [&](int row) {
            if (split()) return split_row(first + row) * c.head_dim_v;
            return output_offset(desc, b_, row_at(first + row), q_begin);
        });
    }
    CLARY_DEVICE int64_t split_row(int row) const {
        return p_.split.row_of(b_ * p_.desc.kv_heads + kv_head_, piece(), first_row_ + row);
    }
    // What a row of O is multiplied by, and the share of the softmax that is not the sink's; stores the row's LSE. All NaN
    // where !valid. Of a piece: stores its sums.
    template <int r>
    CLARY_DEVICE void finish_row(int64_t q_begin, float& inverse, float& share) const {
        const AttentionDesc& desc = p_.desc;
        const float l = T::row_sum(sum_[r]), sum = desc.want_lse ? exact_sum<r>() : l;
        const bool stores = row_in_block<r>() < rows_ && speaks();
        if (split()) {
            if (stores) p_.split.sums[split_row(row_in_block<r>())] = {reference_[r], l, sum, 0};
            return;
        }
        const Row row = row_of_slot<r>();
        const float shift = p_.q_shift ? p_.q_shift[packed_row(row)] : 0.0f;
        const RowResult result =
            row_result<T>(l, sum / kPTop.value, reference_[r], shift, desc.want_lse, desc.sinks, row.head, valid());
        inverse = result.inverse;
        share = result.share;
        if (desc.want_lse && stores) store_lse(desc, b_, row, q_begin, result.lse);
    }

    const AttentionParams& p_;
    int b_, kv_head_;
    // Of the wave, within the block. Where rows are few one wave has them all, and blocks that run side by side give them to
    // different ones: those of equal number share a part of the multiprocessor.
    int wave_row_;
    int first_row_;   // of the block, among the rows of the kv head
    int rows_;        // of the block that exist
    int64_t kv_row_;  // where the sequence begins in the packed K and V

    // Of the lane's rows.
    float reference_[kRows];  // R; -inf before the first tile with a visible key
    float weight_[kRows];     // c of the current tile
    float sum_[kRows];        // the lane's part of l, in units of kPTop.value 2^R
    std::conditional_t<kHalfRow, Partial, Fragment<float, OutAtom::kResults>> out_[kOutM][kOutN];
};

}  // namespace clary::gpu
