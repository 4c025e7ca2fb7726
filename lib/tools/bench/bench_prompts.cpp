#include "tools/bench/bench_prompts.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "decode/prompts.h"
#include "eval/perplexity.h"
#include "tools/prompts/prompt_flags.h"

namespace tandem::tools {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

Windows random_windows(const PromptNeeds& needs, int vocab) {
  Windows windows;
  for (int i = 0; i < needs.batch * needs.batches; ++i) {
    PhiloxStream draw(needs.seed, static_cast<uint32_t>(i));
    auto& ids = windows.emplace_back(static_cast<size_t>(needs.context));
    for (int32_t& id : ids) id = static_cast<int32_t>(draw.below(static_cast<uint32_t>(vocab)));
  }
  return windows;
}

/// Windows in the order of the text, evenly spread over it.
Windows text_windows(const eval::TextIds& text, const PromptNeeds& needs, const std::string& file,
                     bool& overlap) {
  const auto context = static_cast<size_t>(needs.context);
  const size_t taken = context - std::min(text.prefix.size(), context - 1);
  if (text.ids.size() < taken)
    throw input_error(file, "has {} tokens, but a prompt of run.context needs {}", text.ids.size(),
                      taken)
        .hint("name a longer text with -s data.path=FILE, or lower run.context");
  const auto n = static_cast<size_t>(needs.batch) * static_cast<size_t>(needs.batches);
  const size_t last = text.ids.size() - taken;
  overlap = n * taken > text.ids.size();
  Windows windows;
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = n == 1 ? 0 : i * last / (n - 1);
    auto& window = windows.emplace_back(text.prefix.begin(),
                                        text.prefix.begin() + static_cast<long>(context - taken));
    const auto first = text.ids.begin() + static_cast<long>(begin);
    window.insert(window.end(), first, first + static_cast<long>(taken));
  }
  return windows;
}

/// The first lines of a file of prompts.
Windows lines_of(const PromptNeeds& needs, const decode::ModelFiles& files) {
  const std::string file = needs.lines.string();
  decode::PromptSource source;
  source.prompts = needs.lines;
  Windows lines = decode::read_prompts(source, files, false).sequences;
  const auto n = static_cast<size_t>(needs.batch) * static_cast<size_t>(needs.batches);
  if (lines.size() < n)
    throw input_error(file, "expected {} prompts, found {}", n, lines.size())
        .hint("add prompts, or lower run.batch or bench.batches");
  lines.resize(n);
  const auto context = static_cast<size_t>(needs.context);
  for (size_t i = 0; i < n; ++i)
    if (lines[i].size() < 2 || lines[i].size() > context)
      throw input_error(fmt::format("{}:{}", file, i + 1),
                        "expected 2 to {} tokens (run.context), found {}", context, lines[i].size())
          .hint("shorten the prompt, or raise run.context");
  return lines;
}

}  // namespace

bench::BenchPrompts bench_prompts(const recipe::Data& data, const decode::ModelFiles& files,
                                  const PromptNeeds& needs) {
  bench::BenchPrompts prompts;
  Windows windows;
  if (!needs.lines.empty()) {
    prompts.source = needs.lines.filename().string();
    windows = lines_of(needs, files);
  } else if (data.path.empty() && files.tokenizer == nullptr) {
    prompts.source = "random tokens";
    windows = random_windows(needs, files.config.vocab_size);
  } else {
    const std::filesystem::path path = data_text(data);
    prompts.source = path.filename().string();
    windows = text_windows(eval::load_ids(path, files), needs, path.string(), prompts.overlap);
  }
  prompts.distinct = static_cast<int>(std::set(windows.begin(), windows.end()).size());
  // Neighbours go to different batches: those of one batch lie as far apart as the text allows.
  prompts.batches.resize(static_cast<size_t>(needs.batches));
  for (size_t i = 0; i < windows.size(); ++i)
    prompts.batches[i % prompts.batches.size()].push_back(std::move(windows[i]));
  return prompts;
}

}  // namespace tandem::tools
