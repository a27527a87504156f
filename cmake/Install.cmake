# SPDX-License-Identifier: Apache-2.0
# cmake --install: the program, the library, its headers, and what CMake and pkg-config need to find them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS sluice EXPORT sluice LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS sluice_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/sluice DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
install(EXPORT sluice FILE sluice-config.cmake NAMESPACE sluice:: DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluice-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sluice-config-version.cmake DESTINATION ${config_dir})

file(RELATIVE_PATH SLUICE_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
configure_file(cmake/sluice.pc.in ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The wheel (pyproject.toml): the library alone, under the one name that ctypes opens; a wheel cannot hold links.
install(FILES $<TARGET_FILE:sluice> DESTINATION sluice_moe RENAME libsluice.so COMPONENT python EXCLUDE_FROM_ALL)
