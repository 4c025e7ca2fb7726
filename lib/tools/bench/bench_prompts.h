#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/speculation/measurement.h"
#include "decode/model_files.h"
#include "recipe/sections.h"

namespace tandem::tools {

/// How many prompts a benchmark reads.
struct PromptNeeds {
  int context = 0;  // tokens of each
  int batch = 1;    // of prompts that are read together
  int batches = 1;
  uint64_t seed = 0;
  std::filesystem::path lines = {};  // a file of prompts, in place of windows
};

/// errors   kind input: no such text, one shorter than a window, or a line with too few or too many
///          tokens
bench::BenchPrompts bench_prompts(const recipe::Data& data, const decode::ModelFiles& files,
                                  const PromptNeeds& needs);

}  // namespace tandem::tools
