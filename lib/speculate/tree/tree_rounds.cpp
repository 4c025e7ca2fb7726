#include "speculate/tree/tree_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "io/quote.h"
#include "kv/step.h"

namespace tandem::speculate {
namespace {

constexpr const char* kRoundsFormat = "tree-rounds/1";
constexpr const char* kMakeOne =
    "record a file with sequoia-acceptance, accept.tree and accept.record";

/// The arrays by name.
template <class Rounds, class Visit>
void for_each_array(Rounds& rounds, const Visit& visit) {
  visit("reach", rounds.reach);
  visit("rest", rounds.rest);
  visit("take", rounds.take);
  visit("draft", rounds.draft);
}

template <class T>
std::vector<T> values_of(const io::Safetensors& file, const char* name, DType dtype,
                         const io::Shape& shape) {
  const io::TensorView tensor = file.tensor(name);
  const bool fits = tensor.dtype == dtype && tensor.shape.size() == shape.size() &&
                    std::ranges::equal(tensor.shape, shape, [](int64_t found, int64_t wanted) {
                      return wanted < 0 ? found > 0 : found == wanted;
                    });
  if (!fits)
    throw input_error(file.where(), "tensor '{}' is {} {}, expected {} {}", name,
                      dtype_name(tensor.dtype), io::shape_text(tensor.shape), dtype_name(dtype),
                      io::shape_text(shape))
        .hint(kMakeOne);
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// Metadata of the run, each a string.
class Metadata {
 public:
  explicit Metadata(const io::Safetensors& file) : file_(file) {}

  const std::string& text(const char* key) const {
    const auto it = file_.metadata().find(key);
    if (it == file_.metadata().end())
      throw input_error(file_.where(), "metadata '{}' is missing", key).hint(kMakeOne);
    return it->second;
  }
  double number(const char* key) const {
    const std::string& value = text(key);
    char* end = nullptr;
    const double x = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !(x >= 0 && x <= 1e18))
      throw input_error(file_.where(), "metadata '{}': expected a number of at least 0, found {}",
                        key, io::quote(value));
    return x;
  }

 private:
  const io::Safetensors& file_;
};

RecordedRun run_of(const io::Safetensors& file) {
  const Metadata meta(file);
  RecordedRun run{.target = meta.text("target"),
                  .draft = meta.text("draft"),
                  .target_fingerprint = meta.text("target_fingerprint"),
                  .draft_fingerprint = meta.text("draft_fingerprint"),
                  .verify = meta.text("verify"),
                  .sampling = {},
                  .seed = static_cast<int64_t>(meta.number("seed"))};
  run.sampling.temperature = static_cast<float>(meta.number("temperature"));
  run.sampling.top_k = static_cast<int>(std::min(meta.number("top_k"), 0x1p30));
  run.sampling.top_p = meta.number("top_p");
  run.sampling.min_p = meta.number("min_p");
  run.sampling.repetition_penalty = static_cast<float>(meta.number("repetition_penalty"));
  return run;
}

}  // namespace

void TreeRounds::add(int32_t of_text, std::span<const NodeChances> chances) {
  text.push_back(of_text);
  for (size_t v = 0; v < chances.size(); ++v) {
    reach[v].push_back(chances[v].reach);
    rest[v].push_back(chances[v].rest);
    take[v].push_back(chances[v].take);
    draft[v].push_back(chances[v].draft);
  }
}

TreeRounds TreeRounds::of_texts(const std::function<bool(int32_t text)>& wanted) const {
  TreeRounds some = empty_rounds(tree, run);
  std::vector<NodeChances> chances(reach.size());
  for (size_t r = 0; r < text.size(); ++r) {
    if (!wanted(text[r])) continue;
    for (size_t v = 0; v < chances.size(); ++v)
      chances[v] = {reach[v][r], rest[v][r], take[v][r], draft[v][r]};
    some.add(text[r], chances);
  }
  return some;
}

TreeRounds empty_rounds(const TokenTree& tree, const RecordedRun& run) {
  TreeRounds rounds{
      .run = run, .tree = tree, .text = {}, .reach = {}, .rest = {}, .take = {}, .draft = {}};
  for_each_array(rounds, [&](const char*, auto& array) { array.resize(tree.parent.size()); });
  return rounds;
}

void write_tree_rounds(const std::filesystem::path& path, const TreeRounds& rounds,
                       io::Existing existing) {
  const auto n_nodes = static_cast<int64_t>(rounds.tree.size()),
             n_rounds = static_cast<int64_t>(rounds.size());
  const std::vector<int32_t> counts(rounds.tree.n_children.begin(), rounds.tree.n_children.end());
  std::vector<io::TensorView> tensors = {
      {"branch_counts", DType::i32, {n_nodes}, std::as_bytes(std::span(counts))},
      {"text", DType::i32, {n_rounds}, std::as_bytes(std::span(rounds.text))}};
  std::vector<std::vector<float>> narrow;
  narrow.reserve(4);
  for_each_array(rounds, [&](const char* name, const auto& array) {
    std::vector<float>& flat = narrow.emplace_back();
    for (const std::vector<double>& of_node : array)
      for (const double x : of_node) flat.push_back(static_cast<float>(x));
    tensors.push_back({name, DType::f32, {n_nodes, n_rounds}, std::as_bytes(std::span(flat))});
  });
  const RecordedRun& run = rounds.run;
  io::write_safetensors(
      path, tensors,
      {{"format", kRoundsFormat},
       {"target", run.target},
       {"draft", run.draft},
       {"target_fingerprint", run.target_fingerprint},
       {"draft_fingerprint", run.draft_fingerprint},
       {"verify", run.verify},
       {"seed", fmt::format("{}", run.seed)},
       {"temperature", fmt::format("{}", run.sampling.temperature)},
       {"top_k", fmt::format("{}", run.sampling.top_k)},
       {"top_p", fmt::format("{}", run.sampling.top_p)},
       {"min_p", fmt::format("{}", run.sampling.min_p)},
       {"repetition_penalty", fmt::format("{}", run.sampling.repetition_penalty)}},
      0, existing);
}

TreeRounds parse_tree_rounds(const io::Safetensors& file) {
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kRoundsFormat)
    throw input_error(file.where(), "is not a record of steps (expected format '{}')",
                      kRoundsFormat)
        .hint(kMakeOne);
  const std::vector<int32_t> counts = values_of<int32_t>(file, "branch_counts", DType::i32, {-1});
  if (counts.size() < 2 || counts.size() > kv::kMaxTreeRows)
    throw input_error(file.where(), "has a tree of {} nodes, expected 2 to {}", counts.size(),
                      kv::kMaxTreeRows);
  TreeRounds rounds = empty_rounds(tree_of_children(counts, file.where()), run_of(file));
  rounds.text = values_of<int32_t>(file, "text", DType::i32, {-1});
  const size_t n_rounds = rounds.size();
  for_each_array(rounds, [&](const char* name, auto& array) {
    const std::vector<float> flat =
        values_of<float>(file, name, DType::f32,
                         {static_cast<int64_t>(counts.size()), static_cast<int64_t>(n_rounds)});
    for (size_t i = 0; i < flat.size(); ++i)
      if (!(flat[i] >= 0 && flat[i] <= 1))
        throw input_error(file.where(), "{} of node {} in step {} is {}, expected 0 to 1", name,
                          i / n_rounds, i % n_rounds, flat[i])
            .hint("the file is damaged: record the steps again");
    for (size_t v = 0; v < array.size(); ++v)
      array[v].assign(flat.begin() + static_cast<ptrdiff_t>(v * n_rounds),
                      flat.begin() + static_cast<ptrdiff_t>((v + 1) * n_rounds));
  });
  return rounds;
}

TreeRounds read_tree_rounds(const std::filesystem::path& path) {
  const auto opened = [&] {
    try {
      return io::Safetensors::open(path);
    } catch (const Error& e) {
      throw Error(e).hint(kMakeOne);
    }
  };
  return parse_tree_rounds(opened());
}

void check_same_run(const RecordedRun& recorded, const RecordedRun& run, const std::string& where) {
  const auto refuse = [&](const std::string& what) {
    return input_error(where, "{}", what)
        .hint("record steps of this run: sequoia-acceptance with accept.tree and accept.record");
  };
  const auto check_model = [&](const char* what, const std::string& found_name,
                               const std::string& found, const std::string& name,
                               const std::string& wanted) {
    if (!wanted.empty() && found != wanted)
      throw refuse(fmt::format("was recorded with the {} {}, this run has {}{}", what,
                               io::quote(found_name), io::quote(name),
                               name == found_name ? " with other weights or settings" : ""));
  };
  check_model("model", recorded.target, recorded.target_fingerprint, run.target,
              run.target_fingerprint);
  check_model("draft", recorded.draft, recorded.draft_fingerprint, run.draft,
              run.draft_fingerprint);
  const auto check_number = [&](const char* what, double found, double wanted) {
    if (found != wanted)
      throw refuse(fmt::format("was recorded at {} {:.6g}, this run samples at {:.6g}", what, found,
                               wanted));
  };
  check_number("temperature", recorded.sampling.temperature, run.sampling.temperature);
  check_number("top_k", recorded.sampling.top_k, run.sampling.top_k);
  check_number("top_p", recorded.sampling.top_p, run.sampling.top_p);
  check_number("min_p", recorded.sampling.min_p, run.sampling.min_p);
  check_number("repetition_penalty", recorded.sampling.repetition_penalty,
               run.sampling.repetition_penalty);
}

}  // namespace tandem::speculate
