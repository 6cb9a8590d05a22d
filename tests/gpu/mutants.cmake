# SPDX-License-Identifier: Apache-2.0
# Faults planted into the text of the attention kernel and of the one that joins pieces of keys, one at a time, as
# tests/sim/mutants.cmake does with the skeleton kernel: the simulator or the comparison with the oracle must catch each.
# Every one gives attention_<name>.cc with the damaged kernel and the check that is expected to speak first ("result" is the
# comparison, "none" says that it is no fault). Where the text to damage is no longer there exactly once, the mutant's test
# fails and says so. `of` is what it is compiled for, a MutantOf of mutant_runner.h.
set(ATTENTION_MUTANTS)

# folder/name.h under src/gpu, in which `kernel` lies; `other` is the one that stays whole.
function(gpu_mutant header kernel other of name check text replacement)
    set(source ${PROJECT_SOURCE_DIR}/src/gpu/${header})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(READ ${source} whole)
    string(REPLACE "${text}" "" without "${whole}")
    string(LENGTH "${whole}" length)
    string(LENGTH "${without}" length_without)
    string(LENGTH "${text}" length_of_text)
    math(EXPR times "(${length} - ${length_without}) / ${length_of_text}")
    set(damaged "${whole}")
    if(times EQUAL 1)
        string(REPLACE "${text}" "${replacement}" damaged "${damaged}")
    else()
        set(check "its text occurs ${times} times in ${header}, not once")
    endif()
    # In a namespace of its own, which sees all of clary::gpu but its kernel.
    string(REPLACE "namespace clary::gpu {" "namespace clary::gpu::mutant_${name} {" damaged "${damaged}")
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/mutants)
    file(CONFIGURE OUTPUT ${folder}/attention_${name}.h CONTENT "${damaged}" @ONLY)
    file(CONFIGURE OUTPUT ${folder}/attention_${name}.cc CONTENT [[
#include "gpu/mutant_runner.h"

#include "attention_@name@.h"

namespace clary::gpu::mutant_@name@ {
using gpu::@other@;
}

CLARY_ATTENTION_MUTANT(@name@, "@check@", @of@)
]] @ONLY)
    list(APPEND ATTENTION_MUTANTS ${folder}/attention_${name}.cc)
    set(ATTENTION_MUTANTS ${ATTENTION_MUTANTS} PARENT_SCOPE)
endfunction()
function(mutant_of of name check text replacement)
    gpu_mutant(attention/attention_kernel.h AttentionKernel CombineKernel ${of} ${name} "${check}" "${text}" "${replacement}")
    set(ATTENTION_MUTANTS ${ATTENTION_MUTANTS} PARENT_SCOPE)
endfunction()
function(attention_mutant name check text replacement)
    mutant_of(kOfBytes ${name} "${check}" "${text}" "${replacement}")
    set(ATTENTION_MUTANTS ${ATTENTION_MUTANTS} PARENT_SCOPE)
endfunction()
function(combine_mutant name check text replacement)
    gpu_mutant(combine/combine_kernel.h CombineKernel AttentionKernel kOfBytes ${name} "${check}" "${text}" "${replacement}")
    set(ATTENTION_MUTANTS ${ATTENTION_MUTANTS} PARENT_SCOPE)
endfunction()

# -- the undamaged kernel passes the same runs --
attention_mutant(no_fault "none" "#pragma once" "#pragma once")

# -- order --
attention_mutant(no_sync_before_use "race" [[T::block_sync();  // the tile is there]] [[// the tile is there]])
attention_mutant(no_sync_after_the_sequence "uninitialised" [[T::block_sync();  // the sequence]] [[// the sequence]])
attention_mutant(no_sync_after_the_rows "uninitialised" [[T::block_sync();  // all rows]] [[// all rows]])
attention_mutant(no_sync_before_output "race" [[T::block_sync();  // the tiles' memory]] [[// the tiles' memory]])
attention_mutant(wait_lets_one_go "pending copy" [[T::template wait<0, kStageCopies>();]]
    [[T::template wait<1, kStageCopies>();]])
attention_mutant(no_commit "pending copy" [[T::commit();]] "")
attention_mutant(fetch_before_sync "pending copy" [[T::block_sync();  // the tile is there]]
    [[fetch(source, ranges.block(), next, stage ^ 1); T::block_sync();  // the tile is there]])
attention_mutant(fetch_into_the_tile_in_use "race" [[ranges.block(), next, stage ^ 1);]] [[ranges.block(), next, stage);]])
attention_mutant(half_a_wave_multiplies "divergence" [[T::template mma<OutAtom>(]]
    [[if (T::lane() < 16) T::template mma<OutAtom>(]])

# -- shared memory --
attention_mutant(values_over_keys "race" [[kValuesAt = KeyTile::kBytes;]] [[kValuesAt = KeyTile::kBytes - 128;]])
attention_mutant(one_stage_too_small "out of range" [[kTilesBytes > kOutputBytes ? kTilesBytes : kOutputBytes;]]
    [[kTilesBytes - kStageBytes;]])

# -- places --
attention_mutant(row_of_a_neighbour "result" [[row_at(real_row(row));]] [[row_at(real_row(row ^ 1));]])
attention_mutant(mask_off_by_one "result" [[keys.sees(first + key_of(n, i))]] [[keys.sees(first + key_of(n, i) + 1)]])
attention_mutant(scale_of_another_group "result" [[.col % 8 + 2 * slot;]] [[.col * 0 + 2 * slot;]])
attention_mutant(weights_of_the_first_step "result" [[const int position = step * OutAtom::kDepth +]]
    [[const int position = 0 * step +]])
attention_mutant(rows_past_the_end "result" [[rows_ - first, [&](int row)]] [[rows_ - first + 2, [&](int row)]])
attention_mutant(digits_of_other_columns "result" [[multiply(query, stage, c.head_dim + d]] [[multiply(query, stage, 0 + d]])

# -- numbers --
attention_mutant(first_step_skipped "result" [[c.key_bias ? 0 : 1; d < kScoreSteps]] [[1; d < kScoreSteps]])
attention_mutant(base_of_the_first_tile "result" [[p_.tile_base[tile_index] ]] [[p_.tile_base[kv_row_ / c.tile_k] ]])
attention_mutant(all_tiles_weigh_the_same "result" [[T::exp2(lift - reference_[r])]] [[T::exp2(0.0f)]])
attention_mutant(sum_of_one_lane "result" [[T::row_sum(sum_[r])]] [[sum_[r] ]])
attention_mutant(old_rows_not_rescaled "result" [[rescale_rows(rescale);]] [[(void)rescale;]])

# -- pieces of keys --
attention_mutant(pieces_begin_with_the_second "result" [[range.piece(piece(), p_.split.pieces)]]
    [[range.piece(piece() + 1, p_.split.pieces)]])
combine_mutant(last_piece_dropped "result" [[first < p.split.pieces;]] [[first < p.split.pieces - 1;]])
combine_mutant(pieces_weigh_the_same "result" [[T::exp2(mine.reference - top)]] [[T::exp2(0.0f)]])
combine_mutant(no_sync_before_the_weights "race" [[T::block_sync();  // weights and sums]] [[// weights]])
combine_mutant(no_sync_before_the_sum "race" [[T::block_sync();  // the waves' parts]] [[// the waves' parts]])

# -- P of FP8, T of 64 keys in fp16 --
mutant_of(kOfFp8 no_fault_fp8 "none" "#pragma once" "#pragma once")
mutant_of(kOfFp8 fp8_scaled_as_bytes "result" [[kPTop = p_top(c.v);]] [[kPTop = p_top(Element::kS8);]])
mutant_of(kOfFp8 fp8_in_another_order "result" [[pack4<kP>(e[0], e[1], e[2], e[3]);]] [[pack4<kP>(e[0], e[2], e[1], e[3]);]])
mutant_of(kOfFp8 half_sums_not_flushed "result" [[numerics::kFp8HalfKeys / OutAtom::kDepth]] [[kOutSteps]])

# -- T of a tile in fp16, and O of a row --
mutant_of(kOfHalfTiles no_fault_half_tiles "none" "#pragma once" "#pragma once")
mutant_of(kOfHalfTiles half_tiles_in_another_order "result" [[(t[i / 2], i % 2);]] [[(t[i / 2], 1 - i % 2);]])
mutant_of(kOfHalfRows no_fault_half_rows "none" "#pragma once" "#pragma once")
mutant_of(kOfHalfRows half_rows_not_rescaled "result" [[= rescale[Output::row_of(m, 2 * reg)];]] [[= 1.0f;]])
mutant_of(kOfHalfRows half_rows_jump_late "result" [[kHalfRow ? 0.0f : numerics::kReferenceSlack]]
    [[numerics::kReferenceSlack]])
