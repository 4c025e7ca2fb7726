#pragma once
#include <string>
#include <vector>

namespace tandem::cli {

/// Uses run.threads CPU threads; 0 = all usable cores.
void use_threads(int n);
/// Warnings about the environment's variables for OpenMP threads: values that cannot be used, and
/// variables with side effects.
std::vector<std::string> thread_warnings();

}  // namespace tandem::cli
