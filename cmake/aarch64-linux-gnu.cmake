# SPDX-License-Identifier: Apache-2.0
# Debian's cross compiler for 64-bit ARM. fmt is headers alone; its copy keeps the host's own headers out of the search.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(fmt_DIR ${CMAKE_BINARY_DIR}/fmt)
if(NOT EXISTS ${fmt_DIR}/fmt-config.cmake)
    file(COPY /usr/include/fmt ${CMAKE_CURRENT_LIST_DIR}/../tools/wheel/fmt-config.cmake DESTINATION ${fmt_DIR})
endif()
