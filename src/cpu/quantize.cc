// SPDX-License-Identifier: Apache-2.0
#include "cpu/quantize.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/element.h"
#include "cpu/attend.h"
#include "cpu/scratch.h"
#include "numerics/digits.h"
#include "numerics/hadamard.h"

namespace clary::cpu {
namespace {

constexpr int kBlock = 128;          // rows loaded at a time: a key tile or two, and whole scale groups of Q
constexpr int64_t kChunk = 1024;     // tokens of one piece of the statistics passes
constexpr int64_t kMinSmoothQ = 16;  // fewer queries than this are not smoothed: their mean would be the signal

int64_t chunks_of(int64_t length) { return (length + kChunk - 1) / kChunk; }

// Sums over columns, one entry per (sequence, head, chunk), so that the order of additions is fixed.
struct ColumnSums {
    double* sums;      // [entries, dim]
    double* left_out;  // non-finite values, [entries, dim]
};

struct Buffers {
    Buffers(const Tier& tier, const AttentionDesc& desc, int threads, void* base) {
        Scratch scratch(base);
        const int64_t dim = round_up(desc.head_dim, kDimMultiple), dim_v = round_up(desc.head_dim_v, kDimMultiple);
        const int64_t kv_entries = desc.batch * desc.kv_heads * chunks_of(desc.kv_len);
        const int64_t q_entries = desc.batch * desc.q_heads * chunks_of(desc.q_len);
        const auto columns = [&](bool wanted, int64_t entries, int64_t width) {
            const int64_t count = wanted ? entries * width : 0;
            return ColumnSums{scratch.take<double>(count), scratch.take<double>(count)};
        };
        const Recipe& r = desc.recipe;
        k = columns(r.smooth_k, kv_entries, dim);
        v = columns(r.smooth_v, kv_entries, dim_v);
        q = columns(r.smooth_q, q_entries, dim);
        v_low = scratch.take<float>(r.v_scale == VScale::kChannel ? kv_entries * dim_v : 0);
        v_high = scratch.take<float>(r.v_scale == VScale::kChannel ? kv_entries * dim_v : 0);
        needs = scratch.take<QueryNeeds>(r.key_bias() ? q_entries : 0);
        pack_bytes = round_up(r.quantized() ? tier.pack_scratch(desc) : 0, 64);
        rows = scratch.take<float>(threads * kBlock * (dim + dim_v));
        pack = scratch.take<char>(threads * pack_bytes);
        bytes = scratch.bytes();
    }
    ColumnSums k, v, q;
    float *v_low, *v_high;
    QueryNeeds* needs;
    float* rows;  // per thread: [kBlock, dim] of K or Q, then [kBlock, dim_v] of V
    char* pack;   // per thread
    int64_t pack_bytes, bytes;
};

// Sections of packed K and V that every tile asks for: looked up once.
struct Sections {
    Sections(const PackedLayout& layout, void* kv) {
        const auto find = [&]<typename T>(T*& to, const char* name) {
            to = kv ? section<T>(layout, kv, name) : nullptr;
        };
        find(c_k, "c_k");
        find(c_q, "c_q");
        find(q_base, "q_base");
        find(k_codes, "k_codes");
        find(k_scale, "k_scale");
        find(k_pair, "k_pair");
        find(tile_base, "tile_base");
        find(v_codes, "v_codes");
        find(v_scale, "v_scale");
        find(v_weight, "v_weight");
        find(v_mean, "v_mean");
        find(tail_k, "tail_k");
    }
    float *c_k, *c_q, *q_base, *k_scale, *tile_base, *v_scale, *v_mean, *tail_k;
    int8_t* k_codes;
    int16_t* k_pair;
    char* v_codes;
    uint8_t* v_weight;
};

// Asks for pages of 2 MiB where packed K and V will lie, before they are written: with pages of 4 KiB a step of decoding waits for
// page tables as well as for the keys. Only a hint, and only for whole pages of the buffer.
void ask_for_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t kPage = uintptr_t{2} << 20;
    const auto at = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t begin = (at + kPage - 1) / kPage * kPage,
                    end = (at + static_cast<uintptr_t>(bytes)) / kPage * kPage;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

class Quantizer {
  public:
    // `vectors`: the packed K and V whose c_k, c_q and q_base count.
    Quantizer(const Tier& tier, const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv, void* vectors)
        : tier_(tier),
          call_(call),
          desc_(call.desc),
          recipe_(call.desc.recipe),
          kv_layout_(packed_kv_layout(desc_, kv_capacity)),
          q_layout_(packed_q_layout(desc_)),
          kv_rows_(packed_kv_rows(desc_, kv_capacity)),
          dim_(round_up(desc_.head_dim, kDimMultiple)),
          dim_v_(round_up(desc_.head_dim_v, kDimMultiple)),
          packed_q_(packed_q),
          packed_kv_(packed_kv),
          vectors_(vectors),
          kv_(kv_layout_, vectors),
          buffers_(tier, desc_, call.context.threads(), call.workspace) {}

    void quantize() {
        if (packed_kv_) {
            ask_for_huge_pages(packed_kv_, kv_layout_.bytes);
            set_lengths();
        }
        const int64_t heads = desc_.batch * desc_.kv_heads;
        const int threads = call_.context.threads();
        // Head by head each pass finds in the cache what the one before has read. Few heads are shared by all threads.
        if (heads % threads == 0 || heads >= 4 * threads)
            call_.context.parallel_for(heads, [&](int64_t head, int thread) {
                quantize(Part{head / desc_.kv_heads, head % desc_.kv_heads, thread});
            });
        else
            quantize(Part{});
    }

    void append() {
        int64_t* const lengths = kv<int64_t>("lengths");
        const int64_t tiles = desc_.kv_len / recipe_.tile + 2;  // that n tokens behind any length can touch
        // The first tile takes its old tokens from the tail, which the last one replaces: so it comes first.
        each_piece({}, desc_.kv_heads, 1,
                   [&](int64_t b, int64_t h, int64_t, int thread) { append_tile(b, h, lengths[b], 0, thread); });
        each_piece({}, desc_.kv_heads, tiles - 1,
                   [&](int64_t b, int64_t h, int64_t i, int thread) { append_tile(b, h, lengths[b], i + 1, thread); });
        for (int64_t b = 0; b < desc_.batch; ++b) lengths[b] += sequence_of(desc_, b).kv_len;
    }

  private:
    template <typename T>
    T* kv(const char* name) const {
        return section<T>(kv_layout_, vectors_, name);
    }
    template <typename T>
    T* q(const char* name) const {
        return section<T>(q_layout_, packed_q_, name);
    }
    int64_t kv_head_index(int64_t b, int64_t h) const { return b * desc_.kv_heads + h; }

    // What is quantized together: one (sequence, kv head) and its q heads on one thread, or everything on all.
    struct Part {
        int64_t b = 0, kv_head = 0;
        int thread = kAllThreads;
    };
    static constexpr int kAllThreads = -1;

    void quantize(const Part& part) {
        if (packed_kv_) {
            if (recipe_.quantized()) statistics(part);
            pack_kv(part);
        }
        if (packed_q_) pack_q(part);
    }

    // work(sequence, head, i, thread) for every head of the part, of `heads` in all, and i in 0..count-1.
    template <typename Work>
    void each_piece(const Part& part, int64_t heads, int64_t count, Work&& work) {
        if (part.thread != kAllThreads) {
            const int64_t group = heads / desc_.kv_heads;
            for (int64_t h = part.kv_head * group; h < (part.kv_head + 1) * group; ++h)
                for (int64_t i = 0; i < count; ++i) work(part.b, h, i, part.thread);
            return;
        }
        call_.context.parallel_for(desc_.batch * heads * count, [&](int64_t piece, int thread) {
            work(piece / count / heads, piece / count % heads, piece % count, thread);
        });
    }

    float* thread_rows(int thread) const { return buffers_.rows + thread * kBlock * (dim_ + dim_v_); }
    void* thread_pack(int thread) const { return buffers_.pack + thread * buffers_.pack_bytes; }

    // Tokens first .. first + count - 1 as fp32 rows of `width` >= `head_dim` columns, zeros behind them up to `rows`: in `to`,
    // or where they lie if they lie so (exact recipes change them).
    const float* view(const TokenAddress& address, int64_t first, int64_t count, int64_t head_dim, int64_t width,
                      int64_t rows, float* to) const {
        const Operand& operand = address.operand;
        if (recipe_.quantized() && operand.dtype == DType::kF32 && operand.dim_stride == 1 &&
            operand.token_stride == width && head_dim == width && count == rows && !address.paged)
            return static_cast<const float*>(address(first));
        load_rows(address, first, count, head_dim, width, rows, to);
        return to;
    }
    void load_rows(const TokenAddress& address, int64_t first, int64_t count, int64_t head_dim, int64_t width,
                   int64_t rows, float* to) const {
        const Operand& operand = address.operand;
        for (int64_t i = 0; i < count; ++i) {
            float* const row = to + i * width;
            const char* from = static_cast<const char*>(address(first + i));
            if (operand.dim_stride == 1) {
                tier_.load_span(row, from, operand.dtype, head_dim);
            } else {
                const int64_t step = operand.dim_stride * dtype_size(operand.dtype);
                for (int64_t d = 0; d < head_dim; ++d) row[d] = load_element(from + d * step, operand.dtype);
            }
            std::fill(row + head_dim, row + width, 0.0f);
        }
        std::fill(to + count * width, to + rows * width, 0.0f);
    }
    void load_k(int64_t b, int64_t h, const Sequence& s, int64_t first, int64_t count, int64_t rows, float* to) const {
        load_rows(token_address(desc_, desc_.k, b, h, s, false), first, count, desc_.head_dim, dim_, rows, to);
    }
    void load_v(int64_t b, int64_t h, const Sequence& s, int64_t first, int64_t count, int64_t rows, float* to) const {
        load_rows(token_address(desc_, desc_.v, b, h, s, false), first, count, desc_.head_dim_v, dim_v_, rows, to);
    }
    const float* view_k(int64_t b, int64_t h, const Sequence& s, int64_t first, int64_t count, int64_t rows,
                        float* to) const {
        return view(token_address(desc_, desc_.k, b, h, s, false), first, count, desc_.head_dim, dim_, rows, to);
    }
    const float* view_v(int64_t b, int64_t h, const Sequence& s, int64_t first, int64_t count, int64_t rows,
                        float* to) const {
        return view(token_address(desc_, desc_.v, b, h, s, false), first, count, desc_.head_dim_v, dim_v_, rows, to);
    }
    const float* view_q(int64_t b, int64_t h, const Sequence& s, int64_t first, int64_t count, float* to) const {
        return view(token_address(desc_, desc_.q, b, h, s, true), first, count, desc_.head_dim, dim_, kBlock, to);
    }
    void load_q(int64_t b, int64_t h, const Sequence& s, int64_t first, int64_t count, float* to) const {
        load_rows(token_address(desc_, desc_.q, b, h, s, true), first, count, desc_.head_dim, dim_, kBlock, to);
    }

    // -- statistics --
    void set_lengths() {
        for (int64_t b = 0; b < desc_.batch; ++b) kv<int64_t>("lengths")[b] = sequence_of(desc_, b).kv_len;
    }

    void statistics(const Part& part) {
        sum_kv(part);
        const bool with_q = desc_.q.data != nullptr;
        if (recipe_.smooth_q && with_q && !desc_.c_q.given()) sum_q(part);
        each_piece(part, desc_.kv_heads, 1, [&](int64_t b, int64_t h, int64_t, int) { reduce(b, h, with_q); });
        if (!recipe_.key_bias()) return;
        if (with_q && !desc_.q_base.given()) query_needs(part);
        each_piece(part, desc_.kv_heads, 1,
                   [&](int64_t b, int64_t h, int64_t, int) { kv_.q_base[kv_head_index(b, h)] = q_base(b, h); });
    }

    void sum_kv(const Part& part) {
        const bool k_mean = recipe_.smooth_k && !desc_.c_k.given();
        const bool channels = recipe_.v_scale == VScale::kChannel;
        if (!k_mean && !recipe_.smooth_v && !channels) return;
        each_piece(part, desc_.kv_heads, chunks_of(desc_.kv_len), [&](int64_t b, int64_t h, int64_t chunk, int thread) {
            const int64_t entry = kv_head_index(b, h) * chunks_of(desc_.kv_len) + chunk;
            clear(buffers_.k, entry, dim_, k_mean);
            clear(buffers_.v, entry, dim_v_, recipe_.smooth_v);
            float* const low = buffers_.v_low + entry * dim_v_;
            float* const high = buffers_.v_high + entry * dim_v_;
            if (channels) {
                std::fill(low, low + dim_v_, std::numeric_limits<float>::infinity());
                std::fill(high, high + dim_v_, -std::numeric_limits<float>::infinity());
            }
            const Sequence s = sequence_of(desc_, b);
            float* const rows = thread_rows(thread);
            each_block(chunk, s.kv_len, [&](int64_t first, int count) {
                if (k_mean) add(buffers_.k, entry, view_k(b, h, s, first, count, count, rows), count, dim_);
                if (!recipe_.smooth_v && !channels) return;
                const float* const v_rows = view_v(b, h, s, first, count, kBlock, rows);
                if (recipe_.smooth_v) add(buffers_.v, entry, v_rows, count, dim_v_);
                if (channels) tier_.channel_range(desc_, v_rows, count, low, high, thread_pack(thread));
            });
        });
    }

    void sum_q(const Part& part) {
        each_piece(part, desc_.q_heads, chunks_of(desc_.q_len), [&](int64_t b, int64_t h, int64_t chunk, int thread) {
            const int64_t entry = (b * desc_.q_heads + h) * chunks_of(desc_.q_len) + chunk;
            clear(buffers_.q, entry, dim_, true);
            const Sequence s = sequence_of(desc_, b);
            each_block(chunk, s.q_len, [&](int64_t first, int count) {
                add(buffers_.q, entry, view_q(b, h, s, first, count, thread_rows(thread)), count, dim_);
            });
        });
    }

    // work(first, count) for the blocks of a chunk that lie within `length`.
    template <typename Work>
    static void each_block(int64_t chunk, int64_t length, Work&& work) {
        const int64_t end = std::min((chunk + 1) * kChunk, length);
        for (int64_t first = chunk * kChunk; first < end; first += kBlock)
            work(first, static_cast<int>(std::min<int64_t>(kBlock, end - first)));
    }
    static void clear(const ColumnSums& columns, int64_t entry, int64_t width, bool wanted) {
        if (!wanted) return;
        std::fill_n(columns.sums + entry * width, width, 0.0);
        std::fill_n(columns.left_out + entry * width, width, 0.0);
    }
    void add(const ColumnSums& columns, int64_t entry, const float* rows, int count, int64_t width) const {
        tier_.add_columns(rows, count, width, columns.sums + entry * width, columns.left_out + entry * width);
    }

    // Mean of column d over `entries` entries from `first_entry`, which together hold `tokens` tokens.
    static float mean(const ColumnSums& columns, int64_t first_entry, int64_t entries, int64_t width, int64_t d,
                      int64_t tokens) {
        double sum = 0, count = static_cast<double>(tokens);
        for (int64_t e = first_entry; e < first_entry + entries; ++e) {
            sum += columns.sums[e * width + d];
            count -= columns.left_out[e * width + d];
        }
        return count > 0 ? static_cast<float>(sum / count) : 0.0f;
    }
    static float given(const TensorView& vector, int64_t b, int64_t h, int64_t d) {
        return static_cast<const float*>(
            vector.data)[b * vector.stride[0] + h * vector.stride[1] + (vector.ndim > 2 ? d * vector.stride[2] : 0)];
    }

    // The vectors of one (sequence, kv head) from the sums.
    void reduce(int64_t b, int64_t h, bool with_q) {
        const Sequence s = sequence_of(desc_, b);
        const int64_t at = kv_head_index(b, h), kv_chunks = chunks_of(desc_.kv_len), q_chunks = chunks_of(desc_.q_len);
        const int64_t group = desc_.q_heads_per_kv();
        float* const c_k = kv_.c_k + at * dim_;
        float* const c_q = kv_.c_q + at * dim_;
        // With scale 0 no score counts, and the bias of c_q must not either.
        const bool given_q = recipe_.smooth_q && desc_.scale != 0 && desc_.c_q.given();
        const bool smooth_q = recipe_.smooth_q && desc_.scale != 0 && with_q && s.q_len >= kMinSmoothQ;
        for (int64_t d = 0; d < dim_; ++d) {
            const bool real = d < desc_.head_dim;
            c_k[d] = !recipe_.smooth_k || !real ? 0.0f
                     : desc_.c_k.given()        ? given(desc_.c_k, b, h, d)
                                                : mean(buffers_.k, at * kv_chunks, kv_chunks, dim_, d, s.kv_len);
            c_q[d] = !recipe_.smooth_q || !real ? 0.0f
                     : given_q                  ? given(desc_.c_q, b, h, d)
                     : smooth_q ? mean(buffers_.q, (b * desc_.q_heads + h * group) * q_chunks, group * q_chunks, dim_,
                                       d, s.q_len * group)
                                : 0.0f;
        }
        float* const v_mean = kv_.v_mean;
        for (int64_t d = 0; v_mean && d < dim_v_; ++d)
            v_mean[at * dim_v_ + d] = mean(buffers_.v, at * kv_chunks, kv_chunks, dim_v_, d, s.kv_len);
        if (recipe_.v_scale == VScale::kChannel) channel_scales(b, h, v_mean ? v_mean + at * dim_v_ : nullptr);
    }

    // amax / 127 of each channel after the mean is gone: rotation is linear, so the range moves by the rotated mean.
    void channel_scales(int64_t b, int64_t h, const float* v_mean) {
        const int64_t at = kv_head_index(b, h), chunks = chunks_of(desc_.kv_len);
        float* const scale = kv_.v_scale + at * dim_v_;
        for (int64_t d = 0; d < dim_v_; ++d) {
            float low = std::numeric_limits<float>::infinity(), high = -low;
            for (int64_t e = at * chunks; e < (at + 1) * chunks; ++e) {
                low = std::min(low, buffers_.v_low[e * dim_v_ + d]);
                high = std::max(high, buffers_.v_high[e * dim_v_ + d]);
            }
            double shift = 0;
            for (int64_t i = 0; v_mean && d < desc_.head_dim_v && i < desc_.head_dim_v; ++i)
                shift += static_cast<double>(v_mean[i]) *
                         (recipe_.rotate_v ? numerics::hadamard_entry(static_cast<int>(desc_.head_dim_v),
                                                                      static_cast<int>(d), static_cast<int>(i))
                                           : i == d);
            const float moved = static_cast<float>(shift);
            const float amax = low <= high ? std::max(std::fabs(low - moved), std::fabs(high - moved)) : 0.0f;
            scale[d] = std::max(amax / 127.0f, numerics::kScaleFloor);
        }
    }

    void query_needs(const Part& part) {
        each_piece(part, desc_.q_heads, chunks_of(desc_.q_len), [&](int64_t b, int64_t h, int64_t chunk, int thread) {
            const int64_t entry = (b * desc_.q_heads + h) * chunks_of(desc_.q_len) + chunk;
            buffers_.needs[entry] = {};
            const Sequence s = sequence_of(desc_, b);
            each_block(chunk, s.q_len, [&](int64_t first, int count) {
                tier_.query_needs(load_queries(b, h, s, first, count, thread), thread_pack(thread),
                                  &buffers_.needs[entry]);
            });
        });
    }

    float q_base(int64_t b, int64_t h) const {
        if (desc_.q_base.given()) return given(desc_.q_base, b, h, 0);
        const Sequence s = sequence_of(desc_, b);
        const int64_t chunks = chunks_of(desc_.q_len);
        if (s.q_len == 0 || desc_.q.data == nullptr) return 1.0f;  // no query will read it
        const int64_t first = (b * desc_.q_heads + h * desc_.q_heads_per_kv()) * chunks;
        QueryNeeds all{};
        for (int64_t e = first; e < first + desc_.q_heads_per_kv() * chunks; ++e) {
            all.largest = std::max(all.largest, buffers_.needs[e].largest);
            all.sum += buffers_.needs[e].sum;
            all.rows += buffers_.needs[e].rows;
        }
        const double typical = all.sum / static_cast<double>(std::max<int64_t>(all.rows, 1));
        return numerics::q_base_scale(all.largest, static_cast<float>(typical));
    }

    // -- packing --
    void pack_kv(const Part& part) {
        const int64_t tiles = kv_rows_.varlen ? desc_.kv_len / recipe_.tile + 1 : kv_rows_.rows / recipe_.tile;
        each_piece(part, desc_.kv_heads, tiles, [&](int64_t b, int64_t h, int64_t tile, int thread) {
            const Sequence s = sequence_of(desc_, b);
            const int64_t first = tile * recipe_.tile;
            if (kv_rows_.varlen && first >= s.kv_len) return;
            const int64_t count = std::clamp<int64_t>(s.kv_len - first, 0, recipe_.tile);
            float* const buffer = thread_rows(thread);
            pack_tile(b, h, s.kv_begin, tile, static_cast<int>(count),
                      view_k(b, h, s, first, count, recipe_.tile, buffer),
                      view_v(b, h, s, first, count, recipe_.tile, buffer + kBlock * dim_), thread);
        });
    }

    // Packs the tile of these rows, and keeps a partly filled one for appending. Exact recipes: they are the thread's buffers.
    void pack_tile(int64_t b, int64_t h, int64_t kv_begin, int64_t tile, int keys, const float* k_rows,
                   const float* v_rows, int thread) {
        const int64_t row = kv_rows_.begin(b, h, desc_.kv_heads, kv_begin) + tile * recipe_.tile;
        const int64_t tile_index = row / recipe_.tile, at = kv_head_index(b, h);
        if (!recipe_.quantized()) {
            poison_keys(thread_rows(thread), thread_rows(thread) + kBlock * dim_, keys);
            std::copy_n(k_rows, recipe_.tile * dim_, kv<float>("k_codes") + row * dim_);
            std::copy_n(v_rows, recipe_.tile * dim_v_, kv<float>("v_codes") + row * dim_v_);
            return;
        }
        keep_tail(b, h, keys, k_rows, v_rows);
        const auto at_row = [](auto* base, int64_t index) { return base ? base + index : nullptr; };
        const bool tile_scales = recipe_.v_scale == VScale::kChannelTile;
        PackTile t{
            .desc = desc_,
            .dim = dim_,
            .dim_v = dim_v_,
            .keys = keys,
            .a = score_factor(desc_),
            .k_rows = k_rows,
            .v_rows = v_rows,
            .c_k = kv_.c_k + at * dim_,
            .c_q = kv_.c_q + at * dim_,
            .q_base = kv_.q_base[at],
            .v_channel_scale = recipe_.v_scale == VScale::kChannel ? kv_.v_scale + at * dim_v_ : nullptr,
            .v_mean = at_row(kv_.v_mean, at * dim_v_),
            .k_codes = kv_.k_codes + row * dim_,
            .k_scale = kv_.k_scale + row,
            .k_pair = kv_.k_pair + 2 * row,
            .tile_base = kv_.tile_base + tile_index,
            .v_codes = kv_.v_codes + row * dim_v_ * (recipe_.pv == Format::kInt8 ? 1 : int64_t{sizeof(uint16_t)}),
            .v_scale = at_row(kv_.v_scale, tile_scales ? tile_index * dim_v_ : tile_index),
            .v_weight = at_row(kv_.v_weight, row)};
        tier_.pack_kv_tile(t, thread_pack(thread));
    }

    void keep_tail(int64_t b, int64_t h, int keys, const float* k_rows, const float* v_rows) {
        float* tail_k = kv_.tail_k;
        if (tail_k == nullptr || keys == 0 || keys == recipe_.tile) return;
        tail_k += kv_head_index(b, h) * recipe_.tile * desc_.head_dim;
        float* const tail_v = kv<float>("tail_v") + kv_head_index(b, h) * recipe_.tile * desc_.head_dim_v;
        for (int key = 0; key < keys; ++key) {
            std::copy_n(k_rows + key * dim_, desc_.head_dim, tail_k + key * desc_.head_dim);
            std::copy_n(v_rows + key * dim_v_, desc_.head_dim_v, tail_v + key * desc_.head_dim_v);
        }
    }

    // The i-th tile that new tokens behind `length` touch: its old tokens from the tail, then new ones.
    void append_tile(int64_t b, int64_t h, int64_t length, int64_t i, int thread) {
        const Sequence s = sequence_of(desc_, b);
        const int64_t tile = length / recipe_.tile + i;
        const int64_t first = tile * recipe_.tile;
        const int64_t end = std::min(length + s.kv_len, first + recipe_.tile);
        if (s.kv_len == 0 || end <= first) return;
        const int64_t old = std::clamp<int64_t>(length - first, 0, recipe_.tile);
        const int64_t from = first + old - length;  // first new token of this tile
        float* const k_rows = thread_rows(thread);
        float* const v_rows = k_rows + kBlock * dim_;
        load_k(b, h, s, from, end - first - old, recipe_.tile - old, k_rows + old * dim_);
        load_v(b, h, s, from, end - first - old, recipe_.tile - old, v_rows + old * dim_v_);
        if (!recipe_.quantized()) {
            append_exact(b, h, length, from, end - first - old, k_rows, v_rows);
            return;
        }
        const float* const tail_k = kv_.tail_k + kv_head_index(b, h) * recipe_.tile * desc_.head_dim;
        const float* const tail_v = kv<float>("tail_v") + kv_head_index(b, h) * recipe_.tile * desc_.head_dim_v;
        for (int64_t key = 0; key < old; ++key) {
            std::fill_n(std::copy_n(tail_k + key * desc_.head_dim, desc_.head_dim, k_rows + key * dim_),
                        dim_ - desc_.head_dim, 0.0f);
            std::fill_n(std::copy_n(tail_v + key * desc_.head_dim_v, desc_.head_dim_v, v_rows + key * dim_v_),
                        dim_v_ - desc_.head_dim_v, 0.0f);
        }
        pack_tile(b, h, 0, tile, static_cast<int>(end - first), k_rows, v_rows, thread);
    }

    void append_exact(int64_t b, int64_t h, int64_t length, int64_t from, int64_t count, float* k_rows, float* v_rows) {
        const int64_t old = (length + from) % recipe_.tile;
        const int64_t row = kv_rows_.begin(b, h, desc_.kv_heads, 0) + length + from;
        poison_keys(k_rows + old * dim_, v_rows + old * dim_v_, count);
        std::copy_n(k_rows + old * dim_, count * dim_, kv<float>("k_codes") + row * dim_);
        std::copy_n(v_rows + old * dim_v_, count * dim_v_, kv<float>("v_codes") + row * dim_v_);
    }

    static bool all_finite(const float* row, int64_t width) {
        return std::all_of(row, row + width, [](float x) { return std::isfinite(x); });
    }

    // Exact recipes: a token with a non-finite value in K or V gets K of NaN and V of zeros, so that exactly the rows
    // that see it are NaN: a masked score is replaced, but 0 * V would not be.
    void poison_keys(float* k_rows, float* v_rows, int64_t count) const {
        for (int64_t i = 0; i < count; ++i) {
            if (all_finite(k_rows + i * dim_, dim_) && all_finite(v_rows + i * dim_v_, dim_v_)) continue;
            std::fill_n(k_rows + i * dim_, dim_, std::numeric_limits<float>::quiet_NaN());
            std::fill_n(v_rows + i * dim_v_, dim_v_, 0.0f);
        }
    }
    // A row of Q likewise; the others are multiplied by the sign of scale.
    void poison_queries(float* rows, int64_t count, float sign) const {
        for (int64_t i = 0; i < count; ++i) {
            float* const row = rows + i * dim_;
            const float factor = all_finite(row, dim_) ? sign : std::numeric_limits<float>::quiet_NaN();
            for (int64_t d = 0; d < dim_; ++d) row[d] *= factor;
        }
    }

    PackQueries load_queries(int64_t b, int64_t h, const Sequence& s, int64_t first, int count, int thread) const {
        const int64_t at = kv_head_index(b, h / desc_.q_heads_per_kv());
        return {.desc = desc_,
                .dim = dim_,
                .rows = count,
                .first_row = first,
                .q_rows = view_q(b, h, s, first, count, thread_rows(thread)),
                .c_k = kv_.c_k + at * dim_,
                .c_q = kv_.c_q + at * dim_,
                .q_base = kv_.q_base[at],
                .q_codes = nullptr,
                .q_scale = nullptr,
                .q_repeat = nullptr,
                .q_shift = nullptr};
    }

    void pack_q(const Part& part) {
        const PackedRows rows = packed_q_rows(desc_);
        const int64_t blocks = (desc_.q_len + kBlock - 1) / kBlock;
        each_piece(part, desc_.q_heads, blocks, [&](int64_t b, int64_t h, int64_t block, int thread) {
            const Sequence s = sequence_of(desc_, b);
            const int64_t first = block * kBlock;
            const int count = static_cast<int>(std::clamp<int64_t>(s.q_len - first, 0, kBlock));
            if (count == 0) return;
            const int64_t row = rows.begin(b, h, desc_.q_heads, s.q_begin) + first;
            if (!recipe_.quantized()) {
                load_q(b, h, s, first, count, thread_rows(thread));
                const float sign = desc_.scale > 0 ? 1.0f : desc_.scale < 0 ? -1.0f : 0.0f;
                poison_queries(thread_rows(thread), count, sign);
                std::copy_n(thread_rows(thread), count * dim_, q<float>("q_codes") + row * dim_);
                return;
            }
            PackQueries queries = load_queries(b, h, s, first, count, thread);
            queries.q_codes = q<int8_t>("q_codes") + row * dim_;
            queries.q_scale = q<float>("q_scale") + row;
            if (recipe_.key_bias()) queries.q_repeat = q<uint8_t>("q_repeat") + row;
            if (recipe_.smooth_k) queries.q_shift = q<float>("q_shift") + row;
            tier_.pack_queries(queries, thread_pack(thread));
        });
    }

    const Tier& tier_;
    const Call& call_;
    const AttentionDesc& desc_;
    const Recipe& recipe_;
    const PackedLayout kv_layout_, q_layout_;
    const PackedRows kv_rows_;
    const int64_t dim_, dim_v_;
    void* const packed_q_;
    void* const packed_kv_;
    void* const vectors_;
    const Sections kv_;  // of vectors_
    const Buffers buffers_;
};

}  // namespace

int64_t quantize_workspace(const Tier& tier, const AttentionDesc& desc, const Context& context) {
    return Buffers(tier, desc, context.threads(), nullptr).bytes;
}

Status quantize(const Tier& tier, const Call& call, int64_t kv_capacity, void* packed_q, void* packed_kv,
                const void* ready) {
    Quantizer(tier, call, kv_capacity, packed_q, packed_kv, packed_kv ? packed_kv : const_cast<void*>(ready))
        .quantize();
    return Status::ok();
}

Status append(const Tier& tier, const Call& call, int64_t kv_capacity, void* packed_kv) {
    Quantizer(tier, call, kv_capacity, nullptr, packed_kv, packed_kv).append();
    return Status::ok();
}

}  // namespace clary::cpu
