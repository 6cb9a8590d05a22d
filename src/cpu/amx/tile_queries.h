// SPDX-License-Identifier: Apache-2.0
// What the AMX kernels have in common: a task is four blocks of 32 queries, which read each tile of K and V while it is near;
// products of their codes with K's by the tile registers, and scores in fp32 from these. Lanes are queries, as in
// attention_kernel.h, whose steps they take otherwise.
#pragma once

#include <optional>

#include "cpu/amx/tiles.h"
#include "cpu/amx/vec.h"
#include "cpu/attention_kernel.h"

namespace clary::cpu::amx {

// A block. buffers_.x and buffers_.p are given by the task, for its blocks use them one after the other.
template <Format kPv>
class TileQueries : public AttentionKernel<Vec, Format::kInt8, kPv, 2, 1> {
  protected:
    using Base = AttentionKernel<Vec, Format::kInt8, kPv, 2, 1>;
    using V = Vec;
    using I = V::I;
    using F = V::F;
    static constexpr int kStep = Tiles::kStepBytes;  // codes of a step of products
    static constexpr int kRun = Tiles::kRows;        // keys or channels of a product
    static_assert(kRun == numerics::kVRun);

  public:
    static constexpr int kLanes = Tiles::kLanes;
    static_assert(kLanes == Base::kQueries);

    TileQueries(const AttendProblem& problem, const AttendTask& task, void* scratch, float* x)
        : Base(problem, task, scratch), q_(reinterpret_cast<const int32_t*>(this->buffers_.q)) {
        this->buffers_.x = x;
    }

    void begin() {
        this->load_queries();
        this->set_ranges();
    }
    void end() {
        if (this->t_.partial)
            this->save(this->t_.partial);
        else
            this->finish();
    }

    // The tile's keys that any lane sees, up to a whole run. 0: none.
    int keys_of(int64_t tile) const { return this->skips(tile) ? 0 : this->keys_to_compute(tile * this->tile_); }

  protected:
    int groups() const { return static_cast<int>(this->p_.dim_v / kRun); }  // of 16 channels

    // Sums of 16 keys, after hold(q_). Q has zeros up to a whole step of products (load_lanes), so that what lies behind a row of
    // K counts nothing; k_scale lies behind the last.
    [[gnu::always_inline]] void multiply_run(int64_t tile, int run, int32_t* to, TileQueue* queue) const {
        static_assert(kStep == V::kLanes * V::kDot);
        const int64_t dim = this->p_.dim;
        const auto* const rows =
            static_cast<const int8_t*>(this->p_.k_codes) + (this->kv_row_ + tile * this->tile_ + run * kRun) * dim;
        Tiles::multiply_s8_s8(queue->begin(to), rows, dim, q_, static_cast<int>((dim + kStep - 1) / kStep));
    }

    // x of a tile in fp32, and its maxima.
    void float_scores(int64_t tile, int keys, TileQueue* queue) {
        auto* const sums = reinterpret_cast<int32_t*>(this->buffers_.x);
        Tiles::hold(q_);
        for (int run = 0; run < keys / kRun; ++run) multiply_run(tile, run, sums + run * Tiles::kBlock, queue);
        queue->store_all();
        const int64_t row = this->kv_row_ + tile * this->tile_;
        const int16_t* const k_pairs = this->p_.k_pair + 2 * row;
        const float* const k_scales = this->p_.k_scale + row;
        const I pair[2] = {V::load(this->pair_), V::load(this->pair_ + V::kLanes)};
        F top[2] = {V::set1(-INFINITY), V::set1(-INFINITY)};
        for (int key = 0; key < keys; ++key) {
            const I k_pair = this->spread(k_pairs + 2 * key);
            const F k_scale = this->spread(k_scales + key);
            CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                int32_t* const at = sums + key * kLanes + c * V::kLanes;
                this->put_score(V::load(at), pair[c], k_pair, k_scale, reinterpret_cast<float*>(at), &top[c]);
            }
        }
        this->set_maxima(top);
        if (this->needs_mask(tile * this->tile_, keys)) this->mask(tile * this->tile_, keys);
    }

    // Steps of products with P [words][lanes], which gets zeros up to a whole one.
    static int pad(int32_t* p, int words) {
        const int padded = static_cast<int>(round_up(words, kRun));
        std::memset(p + words * kLanes, 0, static_cast<size_t>(padded - words) * Tiles::kLaneBytes);
        return padded / kRun;
    }

    // O += V^T P c: multiply(i) begins the sums of 16 channels, which it leaves at sums(i); they are added one group later.
    template <typename Multiply, typename Sums>
    [[gnu::always_inline]] void add_values(const typename Base::Weight& weight, const int32_t* p, TileQueue* queue,
                                           const Multiply& multiply, const Sums& sums) {
        Tiles::hold(p);
        for (int i = 0; i <= groups(); ++i) {
            if (i < groups()) multiply(i);
            queue->end_round();
            if (i > 0) add_group(weight, i - 1, sums(i - 1));
        }
    }

    // O += T c of 16 channels, T being int32 or, with bf16 P, fp32.
    [[gnu::always_inline]] void add_group(const typename Base::Weight& weight, int i, const int32_t* sums) {
        if (weight.row_scale)
            add_group<true>(weight, i, sums);
        else
            add_group<false>(weight, i, sums);
    }
    template <bool kRowScale>
    [[gnu::always_inline]] void add_group(const typename Base::Weight& weight, int i, const int32_t* sums) {
        const int32_t* const from = held(sums);
        float* const to = held(this->buffers_.o + i * kRun * kLanes);
        const float* const row_scale = kRowScale ? held(weight.row_scale + i * kRun) : nullptr;
        const F w[2] = {weight.c[0], weight.c[1]};
        CLARY_UNROLL for (int r = 0; r < kRun; ++r) {
            CLARY_UNROLL for (int c = 0; c < 2; ++c) {
                const int at = r * kLanes + c * V::kLanes;
                const F scaled = kRowScale ? V::mul(w[c], V::set1(row_scale[r])) : w[c];
                const I sum = V::load(from + at);
                const F value = kPv == Format::kInt8 ? V::to_float(sum) : _mm512_castsi512_ps(sum);
                V::store(to + at, V::fma(value, scaled, V::load(to + at)));
            }
        }
    }

    // A value that the compiler keeps in its register: it makes constants again and again otherwise, and keeps the sums of a
    // pointer and each constant.
    template <typename T>
    static T* held(T* x) {
        asm("" : "+r"(x));
        return x;
    }
    static I held(I x) {
        asm("" : "+v"(x));
        return x;
    }
    static __mmask64 held(__mmask64 x) {
        asm("" : "+Yk"(x));
        return x;
    }

    const int32_t* const q_;  // [code words][lanes]
};

// Four blocks of a kind. Its Memory is what they share, made of (desc, base), and counts bytes.
template <class Block>
class TileTask {
    static constexpr int kBlocks = 4;

  public:
    static constexpr int kQueries = kBlocks * Block::kLanes;
    static constexpr int64_t kFewestKeys = Block::kFewestKeys;

    static int64_t scratch_bytes(const AttentionDesc& desc) {
        return typename Block::Memory(desc, nullptr).bytes + kBlocks * Block::scratch_bytes(desc);
    }
    static int64_t partial_floats(const AttentionDesc& desc, int rows) {
        return (rows + Block::kLanes - 1) / Block::kLanes * Block::partial_floats(desc);
    }

    TileTask(const AttendProblem& problem, const AttendTask& task, void* scratch)
        : task_(task), partial_floats_(Block::partial_floats(problem.desc)), memory_(problem.desc, scratch) {
        char* at = static_cast<char*>(scratch) + memory_.bytes;
        for (int row = 0; row < task.rows; row += Block::kLanes, ++count_) {
            AttendTask& own = tasks_[count_] = task;
            own.first_row += row;
            own.rows = std::min(task.rows - row, Block::kLanes);
            if (task.partial) own.partial += count_ * partial_floats_;
            blocks_[count_].emplace(problem, own, at, memory_);
            at += Block::scratch_bytes(problem.desc);
        }
    }

    void run() {
        for (int i = 0; i < count_; ++i) blocks_[i]->begin();
        {
            const Tiles tiles;
            Block::run(*this);
        }
        for (int i = 0; i < count_; ++i) blocks_[i]->end();
    }
    void join(const float* partials, int64_t stride, int64_t pieces) {
        for (int i = 0; i < count_; ++i) blocks_[i]->join(partials + i * partial_floats_, stride, pieces);
    }

    const AttendTask& task() const { return task_; }
    const typename Block::Memory& memory() const { return memory_; }
    int count() const { return count_; }
    Block& block(int i) { return *blocks_[i]; }

  private:
    const AttendTask& task_;
    const int64_t partial_floats_;
    typename Block::Memory memory_;
    AttendTask tasks_[kBlocks];
    std::optional<Block> blocks_[kBlocks];
    int count_ = 0;
};

}  // namespace clary::cpu::amx
