# SPDX-License-Identifier: Apache-2.0
# `cmake --install`: the library, its headers, the CMake package clary::clary, clary.pc, and the CLI if it was built.
include(CMakePackageConfigHelpers)
set(clary_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/clary)

install(TARGETS clary EXPORT claryTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT claryTargets NAMESPACE clary:: DESTINATION ${clary_cmake_dir})
if(TARGET clary_cli)
    install(TARGETS clary_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Before 1.0 a minor version may change the API, so 0.1 answers requests for 0.1 only.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/clary-config-version.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/clary-config.cmake.in
    ${PROJECT_BINARY_DIR}/clary-config.cmake INSTALL_DESTINATION ${clary_cmake_dir})
install(FILES ${PROJECT_BINARY_DIR}/clary-config.cmake ${PROJECT_BINARY_DIR}/clary-config-version.cmake
    DESTINATION ${clary_cmake_dir})

# clary.pc finds its prefix from its own place, so that an installed tree can be moved.
file(RELATIVE_PATH clary_pc_to_prefix
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
# A static library must name what the C++ code inside it needs; a shared one brings it along.
if(NOT BUILD_SHARED_LIBS)
    set(clary_pc_static "-lstdc++ -lm -pthread")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/clary.pc.in ${PROJECT_BINARY_DIR}/clary.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/clary.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
