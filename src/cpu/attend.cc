// SPDX-License-Identifier: Apache-2.0
#include "cpu/attend.h"

#include <algorithm>

namespace clary::cpu {
namespace {

// A sequence of few queries is cut along its keys, so that its cache is read by all threads. Pieces have a fixed length, or
// the least power of two times it that makes no more than kMaxPieces: results do not depend on the number of threads or on
// other sequences, and memory for unfinished results not on the length.
constexpr int64_t kPieceKeys = 2048;
constexpr int64_t kMaxPieces = 16;

struct Pieces {
    int64_t tiles, tiles_each, count;
    Pieces(const AttentionDesc& desc, const Sequence& s)
        : tiles((s.kv_len + desc.recipe.tile - 1) / desc.recipe.tile), tiles_each(tiles), count(1) {
        if (s.q_len > kShortQuery || s.kv_len <= kPieceKeys) return;
        tiles_each = kPieceKeys / desc.recipe.tile;
        while (tiles_each * kMaxPieces < tiles) tiles_each *= 2;
        count = (tiles + tiles_each - 1) / tiles_each;
    }
};

int64_t blocks_of(const AttentionDesc& desc, int64_t q_len, int64_t block) {
    return (q_len * desc.q_heads_per_kv() + block - 1) / block;
}

// Rows of a task: parts of the tier's block where there would be less than kTasksEach for a thread, and some would wait for
// others. No result depends on it, for in no kernel do rows of two runs of kLeastBlock meet.
int64_t block_of(const Tier& tier, const AttentionDesc& desc, int threads) {
    constexpr int64_t kLeastBlock = 32, kTasksEach = 2;
    int64_t block = tier.block(desc);
    const int64_t heads = desc.batch * desc.kv_heads;
    while (threads > 1 && block > kLeastBlock && heads * blocks_of(desc, desc.q_len, block) < kTasksEach * threads)
        block /= 2;
    return block;
}

// Unfinished results [sequence, kv head, block of few queries, piece].
struct Partials {
    Partials(const Tier& tier, const AttentionDesc& desc, void* base) : memory(static_cast<float*>(base)) {
        const int64_t q_len = std::min(desc.q_len, kShortQuery), rows = q_len * desc.q_heads_per_kv();
        blocks = blocks_of(desc, q_len, tier.block(desc));
        // A cache may hold more keys than desc says, but packed sequences cannot.
        const bool cut =
            q_len > 0 && (desc.q_len <= kShortQuery || desc.varlen()) && (!desc.varlen() || desc.kv_len > kPieceKeys);
        floats = cut ? tier.partial_floats(desc, static_cast<int>(std::min<int64_t>(rows, tier.block(desc)))) : 0;
        bytes = desc.batch * desc.kv_heads * blocks * kMaxPieces * floats * static_cast<int64_t>(sizeof(float));
    }
    float* of(int64_t head, int64_t block) const { return memory + (head * blocks + block) * kMaxPieces * floats; }
    float* memory;
    int64_t blocks, floats, bytes;
};

}  // namespace

AttendProblem attend_problem(const AttentionDesc& desc, int64_t kv_capacity, const void* packed_q,
                             const void* packed_kv) {
    const PackedLayout q = packed_q_layout(desc), kv = packed_kv_layout(desc, kv_capacity);
    return {
        .desc = desc,
        .q_rows = packed_q_rows(desc),
        .kv_rows = packed_kv_rows(desc, kv_capacity),
        .dim = round_up(desc.head_dim, kDimMultiple),
        .dim_v = round_up(desc.head_dim_v, kDimMultiple),
        .a = score_factor(desc),
        .q_codes = section<void>(q, packed_q, "q_codes"),
        .q_scale = section<float>(q, packed_q, "q_scale"),
        .q_repeat = section<uint8_t>(q, packed_q, "q_repeat"),
        .q_shift = section<float>(q, packed_q, "q_shift"),
        .lengths = section<int64_t>(kv, packed_kv, "lengths"),
        .k_codes = section<void>(kv, packed_kv, "k_codes"),
        .k_scale = section<float>(kv, packed_kv, "k_scale"),
        .k_pair = section<int16_t>(kv, packed_kv, "k_pair"),
        .tile_base = section<float>(kv, packed_kv, "tile_base"),
        .q_base = section<float>(kv, packed_kv, "q_base"),
        .v_codes = section<void>(kv, packed_kv, "v_codes"),
        .v_scale = section<float>(kv, packed_kv, "v_scale"),
        .v_weight = section<uint8_t>(kv, packed_kv, "v_weight"),
        .v_mean = section<float>(kv, packed_kv, "v_mean"),
    };
}

int attend_pieces(const AttentionDesc& desc) {
    const bool known = desc.varlen() && desc.cu_seqlens_q.data != nullptr && desc.cu_seqlens_k.data != nullptr;
    int64_t most = 1;
    for (int64_t b = 0; b < (known ? desc.batch : 1); ++b) {
        const Sequence longest{.q_begin = 0, .q_len = desc.q_len, .kv_begin = 0, .kv_len = desc.kv_len, .offset = 0};
        most = std::max(most, Pieces(desc, known ? sequence_of(desc, b) : longest).count);
    }
    return static_cast<int>(most);
}

int64_t attend_workspace(const Tier& tier, const AttentionDesc& desc, const Context& context) {
    return Partials(tier, desc, nullptr).bytes + tier.attend_scratch(desc) * context.threads();
}

Status attend(const Tier& tier, const Call& call, int64_t kv_capacity, const void* packed_q, const void* packed_kv) {
    const AttentionDesc& desc = call.desc;
    const AttendProblem problem = attend_problem(desc, kv_capacity, packed_q, packed_kv);
    const Partials partials(tier, desc, call.workspace);
    const auto scratch_of = [&, bytes = tier.attend_scratch(desc)](int thread) {
        return static_cast<char*>(call.workspace) + partials.bytes + thread * bytes;
    };
    // A cache knows its lengths; kv_lengths may see less.
    const auto sequence = [&](int64_t b) {
        return desc.kv_lengths.given() ? sequence_of(desc, b) : sequence_of(desc, b, problem.lengths[b]);
    };
    int64_t most_pieces = 1;
    for (int64_t b = 0; b < desc.batch; ++b) most_pieces = std::max(most_pieces, Pieces(desc, sequence(b)).count);

    // (What pieces save is laid out by the tier's blocks.)
    const int64_t block_rows = most_pieces > 1 ? tier.block(desc) : block_of(tier, desc, call.context.threads());

    // work(task, head, block, piece, thread) for each block of queries and for each piece of its keys, or once; `head` counts
    // over the batch.
    const auto each_task = [&](int64_t blocks, int64_t pieces, const auto& work) {
        call.context.parallel_for(desc.batch * desc.kv_heads * pieces * blocks, [&](int64_t i, int thread) {
            const int64_t head = i / blocks / pieces, piece = i / blocks % pieces;
            const int64_t block = blocks - 1 - i % blocks;  // causal: the longest of a head first
            AttendTask task{.b = head / desc.kv_heads,
                            .kv_head = head % desc.kv_heads,
                            .first_row = block * block_rows,
                            .rows = 0,
                            .sequence = sequence(head / desc.kv_heads),
                            .first_tile = 0,
                            .end_tile = 0,
                            .partial = nullptr};
            const int64_t rows = task.sequence.q_len * desc.q_heads_per_kv() - task.first_row;
            if (rows <= 0) return;
            task.rows = static_cast<int>(std::min<int64_t>(rows, block_rows));
            work(task, Pieces(desc, task.sequence), head, block, piece, thread);
        });
    };
    const int64_t blocks = blocks_of(desc, desc.q_len, block_rows);
    each_task(blocks, most_pieces,
              [&](AttendTask& task, const Pieces& pieces, int64_t head, int64_t block, int64_t piece, int thread) {
                  if (piece >= pieces.count) return;
                  task.first_tile = piece * pieces.tiles_each;
                  task.end_tile = std::min(pieces.tiles, task.first_tile + pieces.tiles_each);
                  if (pieces.count > 1) task.partial = partials.of(head, block) + piece * partials.floats;
                  tier.attend(problem, task, scratch_of(thread));
              });
    if (most_pieces == 1) return Status::ok();
    each_task(partials.blocks, 1,
              [&](const AttendTask& task, const Pieces& pieces, int64_t head, int64_t block, int64_t, int thread) {
                  if (pieces.count > 1)
                      tier.join(problem, task, partials.of(head, block), partials.floats, pieces.count,
                                scratch_of(thread));
              });
    return Status::ok();
}

}  // namespace clary::cpu
