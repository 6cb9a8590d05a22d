# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=... -DOBJECTS="a.o;b.o" -P tier_symbols.cmake
# Objects compiled for an instruction set must not define weak symbols that other objects define too: the linker keeps
# one of them, and code for lesser machines would call it. What a tier instantiates from templates over its own Vec is
# its own.
foreach(object ${OBJECTS})
    string(REGEX MATCH "(avx2|avxvnni|avx512|amx|neon)/tier" found ${object})
    if(NOT found)
        continue()
    endif()
    set(tier ${CMAKE_MATCH_1})
    execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE result)
    if(NOT result EQUAL 0)
        message(FATAL_ERROR "${NM} failed on ${object}")
    endif()
    string(REPLACE ";" "," symbols "${symbols}")
    string(REPLACE "\n" ";" lines "${symbols}")
    foreach(line ${lines})
        if(line MATCHES " [WVuw] " AND NOT line MATCHES "${tier}::")
            list(APPEND shared "${line}")
        endif()
    endforeach()
    list(LENGTH lines count)
    message(STATUS "${tier}: ${count} symbols")
endforeach()
if(shared)
    list(JOIN shared "\n  " text)
    message(FATAL_ERROR "weak symbols of a tier that other objects may share:\n  ${text}")
endif()
