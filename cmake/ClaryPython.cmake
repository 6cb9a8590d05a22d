# SPDX-License-Identifier: Apache-2.0
# The library inside the Python wheel: clary/lib/libclary.so, one file, since wheels hold no links.
set_property(TARGET clary PROPERTY VERSION)
set_property(TARGET clary PROPERTY SOVERSION)
set_target_properties(clary PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "")  # it looks for nothing beside itself
target_link_options(clary PRIVATE -s)
# What the C++ library's headers need from the toolchain travels along; the wheel runs where that is older or absent.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_link_options(clary PRIVATE -static-libstdc++ -static-libgcc)
endif()
install(TARGETS clary LIBRARY DESTINATION clary/lib COMPONENT python FILE_SET HEADERS DESTINATION include COMPONENT unused)
