# SPDX-License-Identifier: Apache-2.0
# Faults planted into the text of the skeleton kernel, one at a time: the simulator or the comparison with plain loops must
# catch each. Every one gives mutant_<name>.cc with the damaged kernel and the checks that are expected to catch it.
#
# mutant(name sm80_check xcore1000_check text replacement): the checks are those that speak first (see mutant_runner.h);
# "result" is the comparison, "none" says that it is no fault on that machine.
set(MUTANT_KERNEL ${PROJECT_SOURCE_DIR}/examples/skeleton_kernel/skeleton_kernel.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${MUTANT_KERNEL})
file(READ ${MUTANT_KERNEL} MUTANT_TEXT)
set(MUTANT_SOURCES)

function(mutant name sm80_check xcore1000_check text replacement)
    string(REPLACE "${text}" "" without "${MUTANT_TEXT}")
    string(LENGTH "${MUTANT_TEXT}" length)
    string(LENGTH "${without}" length_without)
    string(LENGTH "${text}" length_of_text)
    math(EXPR times "(${length} - ${length_without}) / ${length_of_text}")
    if(NOT times EQUAL 1)
        message(FATAL_ERROR "mutant ${name}: its text occurs ${times} times in ${MUTANT_KERNEL}, expected once: ${text}")
    endif()
    string(REPLACE "${text}" "${replacement}" damaged "${MUTANT_TEXT}")
    string(REPLACE "namespace clary::examples" "namespace clary::mutant_${name}" damaged "${damaged}")
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/mutants)
    file(CONFIGURE OUTPUT ${folder}/mutant_${name}.h CONTENT "${damaged}" @ONLY)
    file(CONFIGURE OUTPUT ${folder}/mutant_${name}.cc CONTENT [[
#include "mutant_@name@.h"
#include "mutant_runner.h"

CLARY_MUTANT(@name@, "@sm80_check@", "@xcore1000_check@")
]] @ONLY)
    list(APPEND MUTANT_SOURCES ${folder}/mutant_${name}.cc)
    set(MUTANT_SOURCES ${MUTANT_SOURCES} PARENT_SCOPE)
endfunction()

# -- none: the undamaged kernel passes the same runs --
mutant(no_fault "none" "none" "The smallest complete kernel" "The smallest complete kernel")

# -- order --
mutant(no_sync_before_use "uninitialised" "uninitialised" [[T::block_sync();  // this tile's]] [[// this tile's]])
mutant(no_sync_after_use "race" "race" [[T::block_sync();  // nobody]] [[// nobody]])
mutant(no_last_wait "pending copy" "pending copy" [[T::template wait<0, CopyKeys::kCopies>();]] "")
mutant(last_wait_lets_one_go "pending copy" "pending copy" [[wait<0, CopyKeys::kCopies>]] [[wait<1, CopyKeys::kCopies>]])
mutant(wait_lets_two_go "pending copy" "pending copy" [[wait<1, CopyKeys::kCopies>]] [[wait<2, CopyKeys::kCopies>]])
mutant(wait_before_fetch "pending copy" "pending copy"
    [[fetch_keys(p, step + 1);
                T::template wait<1, CopyKeys::kCopies>();]]
    [[T::template wait<1, CopyKeys::kCopies>();
                fetch_keys(p, step + 1);]])
mutant(sync_before_wait "race" "race"
    [[            if (step + 1 < steps) {
                fetch_keys(p, step + 1);
                T::template wait<1, CopyKeys::kCopies>();
            } else {
                T::template wait<0, CopyKeys::kCopies>();
            }
            T::block_sync();  // this]]
    [[            T::block_sync();
            if (step + 1 < steps) {
                fetch_keys(p, step + 1);
                T::template wait<1, CopyKeys::kCopies>();
            } else {
                T::template wait<0, CopyKeys::kCopies>();
            }
            // this]])
mutant(no_commit "pending copy" "none" [[        T::commit();
]] "")  # MetaX counts copies, not groups
mutant(one_stage_of_scales "result" "result" [[((step % 2 * kConfig.tile_k + key) * 4)]] [[((step % 1 * kConfig.tile_k + key) * 4)]])
mutant(fetch_into_other_stage "pending copy" "pending copy" [[issue(key_tile(step),]] [[issue(key_tile(step + 1),]])

# -- places --
mutant(row_of_other_lane "result" "result"
    [[const gpu::Coord at = Atom::result_at(T::lane(), i);
                        const int row]]
    [[const gpu::Coord at = Atom::result_at(T::lane() ^ 4, i);
                        const int row]])
mutant(store_to_wrong_row "result" "result" [[p.s[static_cast<int64_t>(row) *]] [[p.s[static_cast<int64_t>(row ^ 1) *]])
mutant(mask_off_by_one "result" "result" [[key <= row +]] [[key < row +]])
mutant(wrong_scale_group "result" "result" [[load<float>(scale_of(step, tile_key))]] [[load<float>(scale_of(step, tile_key / 2))]])
mutant(wrong_depth_step "result" "result" [[n * Atom::kOthers, d * Atom::kDepth)]] [[n * Atom::kOthers, (d ^ 1) * Atom::kDepth)]])
mutant(maximum_of_one_lane "result" "result" [[T::row_max(row_max[m * gpu::kResultRows<Atom> + gpu::row_slot<Atom>(i)])]]
    [[row_max[m * gpu::kResultRows<Atom> + gpu::row_slot<Atom>(i)] ]])

# -- shared memory --
mutant(wrong_swizzle_on_read "result" "result" [[load_other<Atom>(key_tile(step),]]
    [[load_other<Atom>(gpu::Tile<kConfig.tile_k * 2, kConfig.head_dim / 2>{key_tile(step).base},]])
mutant(no_swizzle "bank conflict" "bank conflict"
    [[using KeyTile = gpu::Tile<kConfig.tile_k, kConfig.head_dim>;]]
    [[struct KeyTile : gpu::Tile<kConfig.tile_k, kConfig.head_dim> {
        static constexpr uint32_t swizzle(uint32_t, uint32_t chunk) { return chunk; }
        constexpr gpu::SharedAddress at(int row, int byte) const {
            return this->base + static_cast<uint32_t>(row * kConfig.head_dim + byte);
        }
    };]])
mutant(copy_swizzles_destination "none" "copy destination"
    [[using CopyKeys = gpu::CopyTile<T, KeyTile, kThreads>;]]
    [[struct CopyKeys : gpu::CopyTile<T, KeyTile, kThreads> {
        static void issue(KeyTile tile, const void* from, int64_t row_stride, int rows) {
            for (int copy = 0; copy < CopyKeys::kCopies; ++copy) {
                const int slot = (copy * T::waves() + T::wave()) * T::kLanes + T::lane();
                const int row = slot / KeyTile::kChunks, byte = slot % KeyTile::kChunks * 16;
                T::copy16(tile.at(row, byte), static_cast<const char*>(from) + row * row_stride + byte, row < rows);
            }
        }
    };]])
mutant(one_stage_too_small "out of range" "out of range" [[kScalesAt + 2 * kConfig.tile_k * 4;]] [[kScalesAt + kConfig.tile_k * 4;]])
mutant(too_much_shared "too much shared memory" "too much shared memory"
    [[kScalesAt + 2 * kConfig.tile_k * 4;
    static_assert(kSharedBytes <= T::kSharedBytes, "fits the machine");]]
    [[kScalesAt + 2 * kConfig.tile_k * 4 + T::kSharedBytes;]])
mutant(misaligned_scales "misaligned" "misaligned" [[(step % 2 * kConfig.tile_k + key) * 4)]] [[(step % 2 * kConfig.tile_k + key) * 4 + 2)]])
mutant(scales_end_with_the_keys "uninitialised" "uninitialised" [[if (thread < kConfig.tile_k)]]
    [[if (thread < kConfig.tile_k && first + thread < p.k_len)]])

# -- the rest --
mutant(copy_past_the_end "global range" "global range"
    [[                        p.k_len - first);]] [[                        kConfig.tile_k);]])
mutant(product_of_half_a_wave "divergence" "divergence" [[T::template mma<Atom>(]] [[if (T::lane() < T::kLanes / 2) T::template mma<Atom>(]])
mutant(lanes_leave_early "divergence" "divergence" [[const float max = T::row_max(]]
    [[if (block_row + tile_row + Atom::result_at(T::lane(), i).row >= p.q_len) return;
                const float max = T::row_max(]])
