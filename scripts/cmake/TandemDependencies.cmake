# Dependencies come from the distribution; scripts/install-deps.sh lists the Debian packages.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
include(TandemLibraries)

# Programs that generate text link it; the library does not.
tandem_find_library(tandem_libedit libedit-dev histedit.h edit)

# Headers alone, included as <eigen3/Eigen/...>; users of the library need none of them.
find_path(tandem_eigen_INCLUDE eigen3/Eigen/Core)
mark_as_advanced(tandem_eigen_INCLUDE)
if(NOT tandem_eigen_INCLUDE)
  message(FATAL_ERROR "eigen3/Eigen/Core not found: install the Debian package libeigen3-dev")
endif()
add_library(tandem_eigen INTERFACE IMPORTED)
target_include_directories(tandem_eigen SYSTEM INTERFACE ${tandem_eigen_INCLUDE})
