#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::test {

/// The checkout whose data tests read: where this was compiled, or TANDEM_SOURCE_DIR of the
/// environment on another machine.
std::filesystem::path source_dir();
/// Names of the model folders in tests/data/models, sorted: every architecture and its oddities.
const std::vector<const char*>& small_models();
/// The build folder that the tests and the tools lie in.
std::filesystem::path build_dir();
/// Path of a built program, such as "pig-generate".
inline std::string program(const std::string& name) { return build_dir() / "bin" / name; }

}  // namespace tandem::test
