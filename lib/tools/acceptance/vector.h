#pragma once
#include <filesystem>
#include <functional>

#include "bench/speculation/bench_engines.h"
#include "cli/context.h"
#include "eval/tasks.h"
#include "io/table.h"
#include "tools/acceptance/recipe.h"

namespace tandem::tools {

/// One vector: a draft at one temperature.
struct VectorSpec {
  const AcceptSettings& accept;
  const std::optional<speculate::TokenTree>& tree;  // read from accept.tree
  const bench::Way& way;                            // its tree is that tree, if there is one
  double temperature = 0, top_p = 1;
  decode::GenerateSpec how;
};

/// Lets the target write texts after prompts, and adds up at each of their positions the chances of
/// the draft's children. Writes accept.record.
/// result   acceptance-vector/1
/// errors   kind interrupted, numeric, memory
bench::Json measure_vector(cli::Context& cx, bench::BenchEngines& engines, const VectorSpec& spec,
                           const std::vector<eval::Ids>& prompts);

/// Says what a vector shows.
void note_vector(const cli::Context& cx, const bench::Json& vector);
/// A row for each child, for --format text, md and csv.
io::Table vector_table(const bench::Json& vector);

}  // namespace tandem::tools
