# cmake --install: tools and recipes (Runtime), library, headers and CMake package (Devel).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tandem_package ${CMAKE_INSTALL_LIBDIR}/cmake/tandem)

install(TARGETS tandem tandem_c EXPORT tandemTargets
  RUNTIME COMPONENT Runtime
  LIBRARY COMPONENT Runtime
  ARCHIVE COMPONENT Devel
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY include/tandem DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT Devel)
# For one release: tandem::core with the headers of the source tree, "kv/policy.h" and "kernels/...".
set(tandem_old ${CMAKE_INSTALL_INCLUDEDIR}/tandem-internal)
install(TARGETS tandem_sources EXPORT tandemTargets INCLUDES DESTINATION ${tandem_old})
install(DIRECTORY lib/ DESTINATION ${tandem_old} COMPONENT Devel FILES_MATCHING PATTERN "*.h")
install(DIRECTORY kernels DESTINATION ${tandem_old} COMPONENT Devel FILES_MATCHING PATTERN "*.h")
install(DIRECTORY recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem COMPONENT Runtime)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT Runtime)

# Completion scripts and manual pages, as the tools print them.
function(tandem_install_page tool folder name)
  string(REPLACE ";" " " flags "${ARGN}")
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}\")
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:${tool}>\" ${flags} OUTPUT_FILE \"\${folder}/${name}\" COMMAND_ERROR_IS_FATAL ANY)
    message(STATUS \"Installing: \${folder}/${name}\")" COMPONENT Runtime)
endfunction()
get_target_property(tools tandem_apps MANUALLY_ADDED_DEPENDENCIES)
foreach(tool IN LISTS tools)
  tandem_install_page(${tool} ${CMAKE_INSTALL_DATADIR}/bash-completion/completions ${tool} --completion bash)
  tandem_install_page(${tool} ${CMAKE_INSTALL_DATADIR}/zsh/site-functions _${tool} --completion zsh)
  tandem_install_page(${tool} ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d ${tool}.fish --completion fish)
  tandem_install_page(${tool} ${CMAKE_INSTALL_MANDIR}/man1 ${tool}.1 --man)
endforeach()

configure_package_config_file(scripts/cmake/tandemConfig.cmake.in tandemConfig.cmake
  INSTALL_DESTINATION ${tandem_package})
write_basic_package_version_file(tandemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT tandemTargets NAMESPACE tandem:: DESTINATION ${tandem_package} COMPONENT Devel)
install(FILES ${CMAKE_BINARY_DIR}/tandemConfig.cmake ${CMAKE_BINARY_DIR}/tandemConfigVersion.cmake
  scripts/cmake/TandemLibraries.cmake DESTINATION ${tandem_package} COMPONENT Devel)
