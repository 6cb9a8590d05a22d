// SPDX-License-Identifier: Apache-2.0
// Attention on packed operands with Hopper's wgmma: int8_int8, int8_fp8, int8_fp16 and int8_bf16, in tiles of 128 keys.
//
//   O = softmax(scale Q K^T + key bias) V       a block: persistent, works through tiles of 128 rows
//
//   for each tile of keys:                                                                     V of 16 bits:
//     S = Q K^T            exact int32 (64 rows of a warpgroup x 128 keys), the key bias as one more step of digits
//     m = row maximum      of the tile, on integers                                            R follows it
//     O += float(T) c      T of the tile before, c its weight: 2^(m + base - R) times V's scale -
//     P = 255 2^(x - m)    bytes, their sums                                                   P = 2^(x + base - R)
//     T = P V              exact int32                                                         O += P V, in fp32
//
// Formulas and numbers are those of gpu/attention/attention_kernel.h, integers the same, fp32 sums in another order here and
// there. P of 16 bits is against R, a whole number (docs/decisions/0021-sixteen-bit-p-against-the-row.md): no T. P of FP8 is
// as bytes are, 2^(x - m + 8.807), T in fp32, and T has the sums of P too (Layout::kOnesBytes).
//
// Two warpgroups of 64 rows compute; three warps feed them (producers.cuh). Of one warpgroup, time from left to right:
//
//   tensor cores   | S(j) = Q K, T(j-1) = P V |                             | S(j+1), T(j) ...
//   other pipes    | sums              | m(j) | O += T(j-1), P(j) from S(j) | sums     | m(j+1) ...
//
// More than 128 channels of V, T in parts where S was before (Config::value_parts):
//
//   tensor cores   | S(j) |                   | T(j), part 0 |           | part 1 |           | S(j+1) ...
//   other pipes    |      | m(j), P(j), sums  |              | O += part |        | O += part |
//
// One's products run beside the other's exponentials: they take turns at P, or drift apart (Config::takes_turns). Up to 208
// registers hold O, S, T and P.
#pragma once

#include <cmath>
#include <type_traits>

#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/producers.cuh"
#include "gpu/attention/row_result.h"
#include "numerics/constants.h"

namespace clary::cuda::sm90 {

using gpu::static_for;

template <Config kConfig>
class Attention {
    using L = Layout<kConfig>;
    using Output = typename L::Output;
    static constexpr Config c = kConfig;
    static constexpr int kDv = c.head_dim_v;
    static constexpr bool kDirect = c.direct();
    static constexpr int kParts = c.value_parts(),
                         kPartial = kDirect ? 0 : kDv / kParts / 2;  // T's, and registers of one
    static constexpr int kSumRegisters = c.fp8() ? 4 : 0;  // behind them: of each row the sums of P of 16 keys, twice
    static constexpr bool kInParts = kParts > 1;
    static constexpr int kLateFlush = c.flushes_late() ? kDv / 4 : 0,
                         kEarlyFlush = kInParts ? 0 : kPartial - kLateFlush;
    static constexpr int kRuns = kTileK / 16;  // of keys: a lane has four scores of a row in each
    static constexpr bool kHasUnits = c.v == gpu::Element::kF16;
    static constexpr int kSteps = kTileK * c.value_bytes() / 32;  // of P V, 32 bytes of P deep
    using Scores = int32_t[kTileK / 2];

  public:
    static constexpr uint32_t kSharedBytes = L::kBytes;

    CLARY_DEVICE static void run(const Params& params) {
        if (threadIdx.x == 0) L::init_barriers();
        if constexpr (L::kWeightBytes > 0) {
            constexpr uint32_t kWords = L::kWeightBytes / 4;
            if (params.attention.v_weight == nullptr)  // every key counts the same: 15 of 15
                for (uint32_t i = threadIdx.x; i < L::kStages * kWords; i += blockDim.x)
                    T::store(SharedAddress{i / kWords * L::kTileBytes + L::kWeights + i % kWords * 4},
                             0x01010101u * numerics::kWeightUnit);
        }
        if constexpr (L::kOnesBytes > 0) {
            constexpr uint32_t kWords = L::kOnesBytes / 4;
            // (Swizzled: where bytes 16 i .. of channel i lie.)
            for (uint32_t i = threadIdx.x; i < L::kStages * kWords; i += blockDim.x)
                T::store(SharedAddress{i / kWords * L::kTileBytes + L::kOnes + i % kWords * 4},
                         i * 4 % kTileK < 16 ? 0x01010101u * numerics::E4m3::from_float(1).bits : 0u);
            ptx::stores_before_products();
        }
        __syncthreads();
        if (threadIdx.x >= L::kConsumers) {
            ptx::fewer_registers<c.producer_registers()>();
            Producers<kConfig>(params).run();
        } else {
            ptx::more_registers<c.registers()>();
            Attention(params).compute();
        }
    }

  private:
    static constexpr float kInfinity = __builtin_huge_valf();
    // The maximum of a tile without visible keys, and R before the first key: finite, so that weights and rescaling are 0.
    static constexpr float kNoScore = -3.4e38f, kNoReference = -3.3e38f;
    static constexpr int kTurn = 1;  // a warpgroup's turn to make P: named barriers kTurn + warpgroup
    // P where x is m, or R. To be far from fp16's subnormals, P of fp16 uses what its range has above the slack.
    static constexpr gpu::PTop kPTop = c.v == gpu::Element::kF16 ? gpu::PTop{128.0f, 7.0f} : gpu::p_top(c.v);
    // How far above R a maximum may lie.
    static constexpr float kSlack = kDirect ? 8.0f : numerics::kReferenceSlack;
    static_assert(c.v != gpu::Element::kF16 || kPTop.log2 + kSlack <= 15, "P is finite");
    // No score. (As a float, minus infinity.)
    static constexpr int32_t kMasked = c.scales_keys() ? INT32_MIN | 0x7f800000 : INT32_MIN;

    CLARY_DEVICE explicit Attention(const Params& params)
        : p_(params.attention),
          // One for the warp, as the shuffle tells the compiler.
          group_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 128, 0)),
          // (Shuffled, it stays in a register; else it would be computed anew, slowly, wherever it is used.)
          id_(__shfl_sync(0xffffffffu, T::wave() * 64 + T::lane(), T::lane())) {}
    // Of the thread, packed into one register: its lane, and its first row of the block, whose other is 8 further.
    // (Opaque: what follows from it is computed anew, instead of taking registers throughout.)
    CLARY_DEVICE unsigned id() const {
        unsigned id = id_;
        asm volatile("" : "+r"(id));
        return id;
    }
    CLARY_DEVICE int quad() const { return static_cast<int>(id() % 4); }
    CLARY_DEVICE bool leads() const { return id() % 32 == 0; }
    CLARY_DEVICE int row_in_block(int r) const { return static_cast<int>(id() / 4) + 8 * r; }

    // (One loop without branches around products: ptxas keeps them asynchronous.)
    CLARY_DEVICE void compute() {
        if constexpr (!kDirect) {
            CLARY_UNROLL
            for (int i = 0; i < kPartial + kSumRegisters; ++i) t_[i] = 0;
            ptx::pin(t_);  // before products begin
        }
        clear_out();
        start_rows();
        // Warpgroup 0 is first.
        if (c.takes_turns() && group_ == 1) ptx::group_arrive<L::kConsumers>(kTurn);
        Scores s;
        ptx::barrier_wait(L::work_full(works_.at()), 0);
        ptx::barrier_wait(L::full(tiles_.at()), 0);
        ptx::wgmma_fence();
        multiply_keys(s);
        TileConstants::Marks marks = L::tile(tiles_.at()).marks;
        float factor[2][2];  // [row][64 keys], base 2 per unit of S
        factors(tiles_.at(), factor);
        ptx::wgmma_commit();  // no P yet: a group of nothing
        for (;;) {
            const uint32_t stage = tiles_.at();
            const bool plain =
                (marks.flags & (TileConstants::plain(group_) | TileConstants::kLoud)) == TileConstants::plain(group_);
            float top[2];      // maxima of base-2 scores
            bool rare, ready;  // settle() or a next work is due; the next tile is there
            TileSums sums;
            const auto look = [&](auto masked) { rare = find_maxima<masked>(stage, marks, s, factor, top); };
            const auto make = [&](auto masked) {
                sums = flush_and_make_p<masked>(stage, marks, s, factor, top, ready);
            };
            const auto both = [&](const auto& run) { plain ? run(std::false_type()) : run(std::true_type()); };
            if constexpr (c.splits_tile()) {
                both(look);
                if constexpr (kDirect) {
                    await_values(marks.flags);
                    if (rare) [[unlikely]]
                        if (!settle(stage, top)) return;
                }
                both(make);
            } else {
                // (One block of instructions from S to P, the branch before it where S is awaited.)
                both([&](auto masked) {
                    look(masked);
                    make(masked);
                });
            }
            tiles_ = tiles_.next();
            if constexpr (kInParts) {
                if (rare) [[unlikely]]
                    if (!settle(stage, top)) return;
                add_sums(stage, sums, top);
                add_values(stage);
            }
            // (Where only the next tile is not there, settle() changes nothing, and lanes may be few.)
            if (rare || !ready) [[unlikely]] {
                if constexpr (!kDirect && !kInParts)
                    if (!settle(stage, top)) return;
                await_tile(stage);
            }
            ptx::wgmma_fence();  // (of the whole warp: all of its lanes are here)
            if constexpr (kInParts) ptx::barrier_arrive_if(leads(), L::empty(stage));  // nothing reads it any more
            multiply_keys(s);
            if constexpr (kLateFlush > 0) {
                flush<kLateFlush>(kEarlyFlush);
                ptx::pin(t_);
                ptx::wgmma_fence();
            }
            // For the next tile, while S is made: a warp that issues P V waits until the tensor cores take it.
            if constexpr (!kInParts) add_sums(stage, sums, top);
            marks = L::tile(tiles_.at()).marks;
            factors(tiles_.at(), factor);
            if constexpr (!kInParts) multiply_values(stage);
        }
    }

    // -- rows: two of a lane --
    CLARY_DEVICE void start_rows() {
        unit_ = 1;
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            reference_[r] = kNoReference;
            sum_[r] = exact_sum_[r] = flush_[r] = 0;
        }
    }
    CLARY_DEVICE void clear_out() {
        CLARY_UNROLL
        for (int i = 0; i < kDv / 2; ++i) out_[i] = 0;
        if constexpr (kDirect) ptx::pin(out_);
    }

    // -- products --
    // Between a fence and waits. Of the tile at tiles_:
    CLARY_DEVICE void multiply_keys(Scores& s) const {
        const uint32_t tile = L::base() + tiles_.at(), work = L::base() + works_.at();
        static_for<L::kRowBytes / 32>([&](auto step) {
            constexpr int kByte = 32 * step;
            constexpr RowBox kBox = row_box(L::kRowBytes, kByte);
            const ptx::Matrix q = ptx::matrix<kBox.width()>(work), k = ptx::matrix<kBox.width()>(tile);
            ptx::multiply_s8<(step > 0)>(
                s, q + (kTileQ * kBox.begin + group_ * kGroupRows * kBox.width() + kByte - kBox.begin),
                k + (kTileK * kBox.begin + kByte - kBox.begin));
        });
        ptx::wgmma_commit();
    }
    // (FP8: and the eight channels behind the part; those behind the last are ones.)
    CLARY_DEVICE void multiply_values(uint32_t stage, int part = 0) {
        const uint32_t tile = L::base() + stage;
        if constexpr (kDirect) {
            const ptx::Matrix v = ptx::matrix_by_depth<kTileK>(tile) + L::kValues;
            CLARY_UNROLL
            for (int k = 0; k < kSteps; ++k) ptx::multiply_wide<c.v>(out_, p_bits_[k], v + 16 * 128 * k);
        } else {
            const ptx::Matrix v = ptx::matrix<kTileK>(tile) + (L::kValues + part * kTileK * (kDv / kParts));
            static_for<kSteps>([&](auto k) {
                if constexpr (c.fp8())
                    ptx::multiply_e4m3<(k > 0)>(t_, p_bits_[k], v + 32 * k);
                else
                    ptx::multiply_u8<(k > 0)>(t_, p_bits_[k], v + 32 * k);
            });
        }
        ptx::wgmma_commit();
    }
    // O takes T of a tile, part by part.
    CLARY_DEVICE void add_values(uint32_t stage) {
        CLARY_UNROLL
        for (int part = 0; part < kParts; ++part) {
            ptx::wgmma_fence();
            multiply_values(stage, part);
            ptx::wgmma_wait<0>();
            ptx::pin(t_);
            flush<kPartial>(0, part);
            if (part == kParts - 1) flush_sums();
            ptx::pin(t_);
        }
    }
    // -- S becomes base-2 scores relative to their row's maximum: log2 of what P will be, before rounding --
    CLARY_DEVICE void factors(uint32_t stage, float (&factor)[2][2]) const {
        const float* const scales = L::tile(stage).key_scale + quad();
        const float keys[2] = {c.scales_keys() ? 1.0f : scales[0], c.scales_keys() ? 1.0f : scales[4]};
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            const float own = L::row(works_.at(), row_in_block(r)).factor;
            factor[r][0] = own * keys[0];
            factor[r][1] = own * keys[1];
        }
    }
    struct alignas(8) Pair {
        float a, b;
    };
    // Each score becomes the bits of a float, times its key's scale.
    CLARY_DEVICE void scale_keys(uint32_t stage, Scores& s) const {
        const SharedAddress first{stage + L::kScales + static_cast<uint32_t>(quad() * 8)};
        CLARY_UNROLL
        for (int n = 0; n < kTileK / 8; ++n) {
            const Pair scales = T::load<Pair>(first + static_cast<uint32_t>(32 * n));
            CLARY_UNROLL
            for (int i = 4 * n; i < 4 * n + 4; ++i)
                s[i] = __float_as_int(static_cast<float>(s[i]) * (i % 2 ? scales.b : scales.a));
        }
    }
    CLARY_DEVICE static float value_of(int32_t score) {
        return c.scales_keys() ? __int_as_float(score) : static_cast<float>(score);
    }
    // S is there; its rows' maxima. True where settle() or a next work is due: a work begins or ends, V's unit is another, or R
    // moves: a rise by more than the slack, or NaN.
    template <bool masked>
    CLARY_DEVICE bool find_maxima(uint32_t stage, const TileConstants::Marks& marks, Scores& s,
                                  const float (&factor)[2][2], float (&top)[2]) const {
        ptx::wgmma_wait<kInParts ? 0 : 1>();  // T of the tile before may be under way
        ptx::pin(s);
        if constexpr (masked && c.key_bias)
            if (marks.flags & TileConstants::kLoud) add_loud_bias(stage, s);
        if constexpr (c.scales_keys()) scale_keys(stage, s);
        if constexpr (masked) mask(L::tile(stage).index * kTileK, s);
        row_maxima<masked>(s, factor, top);
        bool usual = (marks.flags & (TileConstants::kFirst | TileConstants::kLast)) == 0;
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) usual = usual && top[r] + marks.base - reference_[r] <= kSlack;
        if constexpr (kHasUnits) usual = usual && L::tile(stage).value_scale == unit_;
        return T::any(!usual);
    }
    template <bool masked>
    CLARY_DEVICE static void row_maxima(const Scores& s, const float (&factor)[2][2], float (&top)[2]) {
        if constexpr (c.scales_keys()) {
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r) {
                float high[2] = {-kInfinity, -kInfinity};  // of even and odd keys
                CLARY_UNROLL
                for (int i = 2 * r; i < kTileK / 2; i += 4) {
                    high[0] = T::max(high[0], value_of(s[i]));
                    high[1] = T::max(high[1], value_of(s[i + 1]));
                }
                const float highest = T::max(high[0], high[1]);
                top[r] = masked && highest == -kInfinity ? kNoScore : highest * factor[r][0];
            }
        } else {
            integer_maxima<masked>(s, factor, top);
        }
        CLARY_UNROLL
        for (int lanes = 1; lanes <= 2; lanes *= 2) {
            const float other[2] = {T::shuffle_xor(top[0], lanes), T::shuffle_xor(top[1], lanes)};
            top[0] = T::max(top[0], other[0]);
            top[1] = T::max(top[1], other[1]);
        }
    }
    template <bool masked>
    CLARY_DEVICE static void integer_maxima(const Scores& s, const float (&factor)[2][2], float (&top)[2]) {
        int32_t high[2][2] = {{kMasked, kMasked}, {kMasked, kMasked}};
        CLARY_UNROLL
        for (int i = 0; i < kTileK / 2; i += 2) {
            int32_t& h = high[i / 2 % 2][i / 32];
            h = max(max(h, s[i]), s[i + 1]);
        }
        float scaled[2][2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) CLARY_UNROLL
        for (int g = 0; g < 2; ++g)
            scaled[r][g] = masked && high[r][g] == kMasked ? kNoScore : static_cast<float>(high[r][g]) * factor[r][g];
        top[0] = T::max(scaled[0][0], scaled[0][1]);
        top[1] = T::max(scaled[1][0], scaled[1][1]);
    }
    // R of the tile's rows; the first of a work ends the work before. False: there was no more work. (Flags and base are read
    // again rather than kept: registers are short. So the stage must not be released before.)
    CLARY_DEVICE bool settle(uint32_t stage, const float (&top)[2]) {
        const uint32_t flags = L::tile(stage).marks.flags;
        if (flags & TileConstants::kFirst) {  // O of the work before is complete
            flush<kLateFlush>(kEarlyFlush);
            if ((flags & TileConstants::kVeryFirst) == 0) finish(works_.before().at());
            if (flags & TileConstants::kEnd) return false;
            clear_out();
            start_rows();
            if constexpr (c.fp8()) {  // its late part joins O once more, and 0 times NaN would stay there
                CLARY_UNROLL
                for (int i = kEarlyFlush; i < kEarlyFlush + kLateFlush; ++i) t_[i] = 0;
            }
        }
        if constexpr (kHasUnits) change_unit(L::tile(stage).value_scale);
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) move_reference(r, top[r] + L::tile(stage).marks.base);
        return true;
    }
    // V's scale of a tile, a power of two, is 1 unless V leaves fp16's range: O is in units of the latest one.
    CLARY_DEVICE void change_unit(float unit) {
        const float rescale = unit_ / unit;
        CLARY_UNROLL
        for (int i = 0; i < kDv / 2; ++i) out_[i] *= rescale;
        unit_ = unit;
    }
    // R moves to a first tile, and where the maximum lies far above it (or is NaN).
    CLARY_DEVICE void move_reference(int r, float lift) {
        const float before = reference_[r], to = kDirect ? ::ceilf(lift) : lift;
        if (to - before <= kSlack) return;
        reference_[r] = to;
        const float rescale = T::exp2(before - to);
        sum_[r] *= rescale;
        exact_sum_[r] *= rescale;
        flush_[r] *= rescale;
        CLARY_UNROLL
        for (int i = 2 * r; i < kDv / 2; i += 4) {
            out_[i] *= rescale;
            out_[i + 1] *= rescale;
        }
    }

    // Rows whose repeat is 0 have no digits in S (see gpu/attention/attention_kernel.h): their bias joins it here.
    CLARY_DEVICE void add_loud_bias(uint32_t stage, Scores& s) const {
        const float loud[2] = {L::row(works_.at(), row_in_block(0)).loud, L::row(works_.at(), row_in_block(1)).loud};
        CLARY_UNROLL
        for (int n = 0; n < kTileK / 8; ++n) CLARY_UNROLL
        for (int j = 0; j < 2; ++j) {
            const int key = 8 * n + quad() * 2 + j;
            constexpr int kFirst = L::kRowBytes - numerics::kDigitColumns;
            constexpr RowBox kBox = row_box(L::kRowBytes, kFirst);
            const auto byte = static_cast<uint32_t>(key * kBox.width() + kFirst - kBox.begin);
            // The swizzle moves pieces of 16 bytes within their row; pairs stay together, and their sum does not care which
            // half comes first.
            const SharedAddress digits{stage + kTileK * kBox.begin +
                                       (byte ^ (byte / 128 % (kBox.width() / 16) & ~1u) * 16)};
            int units = 0;
            CLARY_UNROLL
            for (uint32_t word = 0; word < 8; ++word)
                units = __dp4a(T::load<int>(digits + word * 4), 0x01010101, units);
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r)
                s[4 * n + 2 * r + j] += static_cast<int32_t>(::rintf(static_cast<float>(units) * loud[r]));
        }
    }
    CLARY_DEVICE void mask(int first_key, Scores& s) const {
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            const int first = first_key + quad() * 2;
            const gpu::VisibleKeys seen = L::row(works_.at(), row_in_block(r)).keys,
                                   keys{seen.begin - first, seen.end - first, seen.keep - first};
            CLARY_UNROLL
            for (int n = 0; n < kTileK / 8; ++n) CLARY_UNROLL
            for (int j = 0; j < 2; ++j)
                if (!keys.sees(8 * n + j)) s[4 * n + 2 * r + j] = kMasked;
        }
    }

    struct TileSums {  // of the lane's part of two rows; of bytes in units of the weights
        std::conditional_t<kDirect, float, int32_t> whole[2] = {0, 0};  // (FP8's lie in T)
        float exact[2] = {0, 0};                                        // of P before rounding
    };
    // T of the tile before is there, and its stage is free.
    CLARY_DEVICE void await_values(uint32_t flags) {
        ptx::wgmma_wait<0>();
        if constexpr (kDirect)
            ptx::pin(out_);
        else
            ptx::pin(t_);
        ptx::barrier_arrive_if((flags & TileConstants::kVeryFirst) == 0 && leads(), L::empty(tiles_.before().at()));
    }
    // -- P to its type, in the order of V's keys, and its row sums; beside it O takes T of the tile before: one block of
    // instructions, in which products of floats and conversions fill the gaps between exponentials. Against R, settle() has
    // been there. Around it the warpgroup's turn, and a look whether the next tile is there (`ready`, of the lane) --
    // Sums of floats have an order of their own.
    CLARY_HD static constexpr int run_at(int step) { return c.want_lse ? step : step * c.run_stride() % kRuns; }
    template <bool masked>
    CLARY_DEVICE TileSums flush_and_make_p(uint32_t stage, const TileConstants::Marks& marks, const Scores& s,
                                           const float (&factor)[2][2], const float (&top)[2], bool& ready) {
        if constexpr (!kDirect && !kInParts) await_values(marks.flags);
        const auto next = tiles_.next();
        if constexpr (c.takes_turns()) ptx::group_sync<L::kConsumers>(kTurn + group_);
        float shift[2] = {kPTop.log2 - top[0], kPTop.log2 - top[1]};
        if constexpr (kDirect) {
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r) shift[r] = kPTop.log2 + (marks.base - reference_[r]);
        }
        TileSums sums;
        CLARY_UNROLL
        for (int step = 0; step < kRuns; ++step) {
            const int run = run_at(step);
            uint32_t weights = 0x01010101u * numerics::kWeightUnit;
            if constexpr (L::kWeightBytes > 0)
                weights = T::load<uint32_t>(
                    SharedAddress{stage + L::kWeights + static_cast<uint32_t>(16 * run + quad() * 4)});
            const auto score = [&](int r, int j) { return s[8 * run + 2 * r + j % 2 + j / 2 * 4]; };
            float e[2][4];
            CLARY_UNROLL
            for (int j = 0; j < 4; ++j) CLARY_UNROLL
            for (int r = 0; r < 2; ++r) e[r][j] = T::fma(value_of(score(r, j)), factor[r][run / 4], shift[r]);
            CLARY_UNROLL
            for (int j = 0; j < 4; ++j) CLARY_UNROLL
            for (int r = 0; r < 2; ++r) {
                e[r][j] = T::exp2(e[r][j]);
                if (masked && score(r, j) == kMasked) e[r][j] = 0;
            }
            if constexpr (kDirect) {
                CLARY_UNROLL
                for (int pair = 0; pair < 2; ++pair) CLARY_UNROLL
                for (int r = 0; r < 2; ++r) {
                    uint32_t& word = p_bits_[run][2 * pair + r];
                    if constexpr (c.v == gpu::Element::kF16)
                        word = ptx::pack_finite_f16(e[r][2 * pair], e[r][2 * pair + 1]);
                    else
                        word = T::pack2<c.v>(e[r][2 * pair], e[r][2 * pair + 1]);
                    sums.whole[r] += T::unpack2<c.v>(word, 0) + T::unpack2<c.v>(word, 1);
                    if constexpr (c.want_lse) sums.exact[r] += e[r][2 * pair] + e[r][2 * pair + 1];
                }
            } else if constexpr (c.fp8()) {
                CLARY_UNROLL
                for (int r = 0; r < 2; ++r) {
                    p_bits_[run / 2][run % 2 * 2 + r] = T::pack4<c.v>(e[r][0], e[r][1], e[r][2], e[r][3]);
                    if constexpr (c.want_lse) sums.exact[r] += (e[r][0] + e[r][1]) + (e[r][2] + e[r][3]);
                }
            } else {
                CLARY_UNROLL
                for (int r = 0; r < 2; ++r) {
                    uint32_t& word = p_bits_[run / 2][run % 2 * 2 + r];
                    word = T::pack4<gpu::Element::kU8>(e[r][0], e[r][1], e[r][2], e[r][3]);
                    sums.whole[r] = T::dot4(word, weights, sums.whole[r]);
                    if constexpr (c.want_lse) {
                        CLARY_UNROLL
                        for (int j = 0; j < 4; ++j)
                            sums.exact[r] =
                                T::fma(e[r][j], static_cast<float>(weights >> (8 * j) & 255u), sums.exact[r]);
                    }
                }
            }
            flush<kEarlyFlush / kRuns>(step * (kEarlyFlush / kRuns));
        }
        if constexpr (!kInParts) flush_sums();
        ready = ptx::barrier_test(L::full(next.at()), next.parity());
        CLARY_UNROLL
        for (int k = 0; k < kSteps; ++k) ptx::pin(p_bits_[k]);
        if constexpr (c.takes_turns()) ptx::group_arrive<L::kConsumers>(kTurn + 1 - group_);
        return sums;
    }
    // The tile at tiles_, the one behind `stage`, is there.
    CLARY_DEVICE void await_tile(uint32_t stage) {
        if (L::tile(stage).marks.flags & TileConstants::kLast) {
            works_ = works_.next();
            ptx::barrier_wait(L::work_full(works_.at()), works_.parity());
        }
        ptx::barrier_wait(L::full(tiles_.at()), tiles_.parity());
    }
    // To rows' sums; c of the tile, for them and for O.
    CLARY_DEVICE void add_sums(uint32_t stage, const TileSums& sums, const float (&top)[2]) {
        constexpr float kUnit = c.fp8() ? 1.0f : 1.0f / numerics::kWeightUnit;
        const float base = L::tile(stage).marks.base, value_scale = c.fp8() ? 1.0f : L::tile(stage).value_scale;
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            if constexpr (kDirect) {
                sum_[r] += sums.whole[r];
                if constexpr (c.want_lse) exact_sum_[r] += sums.exact[r];
            } else {
                const float weight = T::exp2(top[r] + base - reference_[r]);
                if constexpr (!c.fp8()) sum_[r] = T::fma(static_cast<float>(sums.whole[r]) * kUnit, weight, sum_[r]);
                if constexpr (c.want_lse) exact_sum_[r] = T::fma(sums.exact[r] * kUnit, weight, exact_sum_[r]);
                flush_[r] = weight * value_scale;
            }
        }
    }
    // O += float(T) c, of some registers; T is that part of O's channels.
    template <int count>
    CLARY_DEVICE void flush(int first, int part = 0) {
        float* const out = out_ + part * kPartial;
        CLARY_UNROLL
        for (int i = first; i < first + count; ++i)
            out[i] = T::fma(static_cast<float>(t_[i]), flush_[i / 2 % 2], out[i]);
    }
    // So do rows' sums.
    CLARY_DEVICE void flush_sums() {
        if constexpr (c.fp8()) {
            CLARY_UNROLL
            for (int r = 0; r < 2; ++r)
                sum_[r] = T::fma(t_[kPartial + 2 * r] + t_[kPartial + 2 * r + 1], flush_[r], sum_[r]);
        }
    }

    // -- results --
    CLARY_DEVICE void finish(uint32_t slot) {
        const Work& work = L::work(slot);
        const AttentionDesc& desc = p_.desc;
        if ((kDirect || c.fp8()) && !work.reads) clear_out();  // P of 0 met whatever lay in V's place
        float inverse[2], share[2];
        CLARY_UNROLL
        for (int r = 0; r < 2; ++r) {
            // (The division of row() takes longer than all the rest.)
            const gpu::Row row = c.want_lse || desc.sinks.given() ? work.row(desc, row_in_block(r)) : gpu::Row{0, 0};
            const float l = T::row_sum(sum_[r]), sum = c.want_lse ? T::row_sum(exact_sum_[r]) : l;
            const gpu::RowResult result =
                gpu::row_result<T>(l, sum / kPTop.value, reference_[r] == kNoReference ? -kInfinity : reference_[r],
                                   L::row(slot, row_in_block(r)).shift, c.want_lse, desc.sinks, row.head, work.valid);
            inverse[r] = kHasUnits ? result.inverse * unit_ : result.inverse;
            share[r] = result.share;
            if (c.want_lse && row_in_block(r) < work.rows && quad() == 0)
                gpu::store_lse(desc, work.b, row, work.q_begin, result.lse);
        }
        typename Output::Registers out;
        static_for<kDv / 8, 4>([&](auto n, auto i) { out[0][n][i] = out_[n * 4 + i]; });
        Output::finish(out, inverse, share, gpu::value_channels(p_, work.b, work.kv_head, kDv));
        const int first = T::wave() * 16, dim = static_cast<int>(desc.head_dim_v);
        const auto row_offset = [&](int row) { return L::row(slot, first + row).out; };
        if constexpr (c.stores_directly())
            Output::store_directly(out, desc.out, dim, work.rows - first, row_offset);
        else
            Output::store(out, SharedAddress{L::kOutputAt + static_cast<uint32_t>(T::wave() * Output::kBytes)},
                          desc.out, dim, work.rows - first, row_offset);
        T::wave_sync();  // all lanes have read what they need of it
        ptx::barrier_arrive_if(leads(), L::work_empty(slot));
    }

    const gpu::AttentionParams& p_;
    const int group_;  // warpgroup of the thread
    const unsigned id_;
    typename L::Tiles tiles_;
    typename L::Works works_;  // that S belongs to

    // Of the lane's two rows.
    float reference_[2];  // R; kNoReference before the first tile with a visible key
    float flush_[2];      // c times V's scale of the tile whose T is made
    float sum_[2];        // the lane's part of l, in units of kPTop 2^R
    float exact_sum_[2];  // the same of P before rounding, for the LSE
    float unit_;          // of O

    uint32_t p_bits_[kSteps][4];                                                             // P
    std::conditional_t<c.fp8(), float, int32_t> t_[kDirect ? 1 : kPartial + kSumRegisters];  // T
    float out_[kDv / 2];                                                                     // O
};

}  // namespace clary::cuda::sm90
