# SPDX-License-Identifier: Apache-2.0
# fmt's headers alone, copied beside this file: the folder that Debian installs them in holds those of its own glibc too.
if(NOT TARGET fmt::fmt-header-only)
    add_library(fmt::fmt-header-only INTERFACE IMPORTED)
    set_target_properties(fmt::fmt-header-only PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_LIST_DIR} INTERFACE_COMPILE_DEFINITIONS FMT_HEADER_ONLY=1)
endif()
