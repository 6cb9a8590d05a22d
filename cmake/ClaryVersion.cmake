# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=<tree> -DBASE=0.1.0 [-DLABEL=cpu] [-DGIVEN=<version>] [-DHEADER=<file>] -P ClaryVersion.cmake
#
# The version of what is being built: BASE at the commit that is tagged v<BASE>, else with the commit, 0.1.0+g4d153a5, and with a
# digest of changes that are in no commit, 0.1.0+g4d153a5.d1b2c3d4; so builds of different sources that git knows never share a version.
# LABEL tells builds of one source apart. GIVEN is taken as it is. Without HEADER it is printed.
# Run at every build: what was true when CMake configured need not be any more.
function(git result)
    execute_process(COMMAND git --no-optional-locks -C ${SOURCE} ${ARGN} OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE code
        OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(NOT code EQUAL 0)
        set(text "")
    endif()
    set(${result} "${text}" PARENT_SCOPE)
endfunction()

set(version "${GIVEN}")
if(NOT version)
    get_filename_component(SOURCE ${SOURCE} REALPATH)
    git(root rev-parse --show-toplevel)
    git(commit rev-parse --short=7 HEAD)
    if(NOT commit OR NOT root STREQUAL SOURCE)  # an unpacked archive, perhaps inside another project's tree
        set(parts unknown)
    else()
        git(tags tag --points-at HEAD)
        git(changes diff HEAD)
        string(REGEX MATCH "(^|\n)v${BASE}(\n|$)" tagged "${tags}")
        if(NOT tagged OR changes)
            set(parts g${commit})
        endif()
        if(changes)
            string(SHA1 digest "${changes}")
            string(SUBSTRING ${digest} 0 8 digest)
            list(APPEND parts d${digest})
        endif()
    endif()
    list(PREPEND parts ${LABEL})
    list(JOIN parts . parts)
    set(version ${BASE})
    if(parts)
        set(version ${BASE}+${parts})
    endif()
endif()
if(HEADER)
    file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define CLARY_VERSION_TEXT \"${version}\"\n")
else()
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo ${version})
endif()
