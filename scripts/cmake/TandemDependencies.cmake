# Dependencies come from the distribution; scripts/install-deps.sh lists the Debian packages.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
include(TandemLibraries)
