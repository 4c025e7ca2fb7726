#include "model/weights/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"
#include "model/families/family.h"
#include "model/spec/quantization.h"
#include "model/weights/coded_tensors.h"
#include "model/weights/model_folder.h"
#include "model/weights/weight_source.h"

namespace tandem::model {
namespace {

constexpr size_t kMaxIndexBytes = size_t{256} << 20;
constexpr size_t kMaxListed = 20;  // problems in one message

using ShardIndex = std::map<std::string, std::string>;

/// Items, one a line, at most kMaxListed of them.
std::string listed(const std::vector<std::string>& items) {
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), kMaxListed); ++i) text += "\n  " + items[i];
  if (items.size() > kMaxListed) text += fmt::format("\n  and {} more", items.size() - kMaxListed);
  return text;
}

/// Shards in the order of their names; every file that the index names must be there.
std::vector<std::string> shard_names(const ShardIndex& index, const std::filesystem::path& folder,
                                     const std::string& where) {
  std::set<std::string> distinct;
  for (const auto& [tensor, shard] : index) distinct.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : distinct)
    if (!std::filesystem::exists(folder / shard)) missing.push_back(shard);
  if (!missing.empty())
    throw input_error(where, "{} of {} shard files missing:{}", missing.size(), distinct.size(),
                      listed(missing))
        .hint("download the missing files into the same folder");
  return {distinct.begin(), distinct.end()};
}

/// The weight that a checkpoint stores for this one.
Role stored_as(Role role, const Checkpoint& checkpoint) {
  const auto stores = [&](Role r) { return checkpoint.contains(canonical_name({r})); };
  const bool by_head = role == Role::embedding && !stores(role) && stores(Role::head);
  return by_head ? Role::head : role;
}

/// The problem with one weight; empty if there is none.
/// wrong_type   set where it is the type
std::string problem_of(MatrixId id, const ModelConfig& config, const Checkpoint& checkpoint,
                       bool& wrong_type) {
  if (config.head.tied) id.role = stored_as(id.role, checkpoint);
  const auto [name, first, expected] = stored_part(id, config);
  const io::TensorEntry* entry = checkpoint.find(name);
  const bool coded =
      entry == nullptr || checkpoint.quantization() != nullptr || has_codes_of(checkpoint, name);
  if (expected.size() == 2 && coded) return coded_problem(checkpoint, name, expected);
  if (entry == nullptr)
    return fmt::format("{}: missing, expected shape {}", name, io::shape_text(expected));
  if (entry->shape != expected)
    return fmt::format("{}: expected shape {}, found {}", name, io::shape_text(expected),
                       io::shape_text(entry->shape));
  if (is_weight_type(entry->dtype)) return "";
  wrong_type = true;
  return fmt::format("{}: expected BF16, F16 or F32, found {}", name, entry->dtype);
}

/// The word for a tensor that config.json does not announce.
std::string_view kind_of(Role role) {
  if (!is_norm(role)) return "bias";
  return role == Role::ffn_post ? "norm" : "head norm";
}

/// The names of a family's tensors in layer 0, without biases that only some of its models have.
std::vector<std::string> layer_tensors(const Family& family) {
  ModelConfig c;
  c.architecture = family.architecture;
  c.n_layers = 1;
  family.read_layers(io::Json::object(), "", c);
  std::vector<std::string> names;
  for (const Role role : layer_roles(c)) names.push_back(stored_part({role}, c).tensor);
  return names;
}

/// The architectures of the families whose tensors a checkpoint has in layer 0; none if it has
/// others.
std::vector<std::string_view> architectures_like(const Checkpoint& checkpoint) {
  std::set<std::string> found;
  for (const Family* family : families())
    if (family->read_layers != nullptr)
      for (std::string& name : layer_tensors(*family))
        if (checkpoint.contains(name)) found.insert(std::move(name));
  std::vector<std::string_view> all;
  for (const Family* family : families()) {
    if (family->read_layers == nullptr) continue;
    const std::vector<std::string> names = layer_tensors(*family);
    if (std::set(names.begin(), names.end()) == found) all.push_back(family->architecture);
  }
  return all;
}

/// The remedy where a checkpoint has other tensors than its configuration needs.
std::string remedy_of(const ModelConfig& config, const Checkpoint& checkpoint) {
  const std::vector<std::string_view> like = architectures_like(checkpoint);
  const std::string remedy = "take config.json and the weights from the same model";
  if (like.empty() || std::ranges::find(like, config.architecture) != like.end()) return remedy;
  return fmt::format("config.json names {}, but the tensors have the names of {}: {}",
                     config.architecture, fmt::join(like, " or "), remedy);
}

/// True for a bias of zeros in a GPTQ folder: some writers give every layer one.
bool is_padding(const Checkpoint& checkpoint, const std::string& name) {
  const Quantization* q = checkpoint.quantization();
  if (q == nullptr || q->method != QuantMethod::gptq || !name.ends_with(".bias")) return false;
  const io::TensorEntry& entry = *checkpoint.find(name);
  if (!is_weight_type(entry.dtype) || entry.shape.size() != 1) return false;
  const std::vector<float> values =
      stored_in(checkpoint, checkpoint.tensor(name)).values(0, entry.shape.front());
  return std::ranges::all_of(values, [](float x) { return x == 0; });
}

/// Adds the biases and norms that the configuration says are not there.
void add_unexpected(const ModelConfig& config, const Checkpoint& checkpoint,
                    std::vector<std::string>& found) {
  // Some norms of different roles share a name.
  const auto expected = [&](std::string_view tensor) {
    return std::ranges::any_of(layer_roles(config),
                               [&](Role role) { return info(role).tensor == tensor; });
  };
  for (const Role role : all_roles())
    for (int layer = 0; layer < config.n_layers && in_layers(role); ++layer)
      if (const std::string name = canonical_name({role, layer}); !expected(info(role).tensor) &&
                                                                  checkpoint.contains(name) &&
                                                                  !is_padding(checkpoint, name)) {
        std::string problem =
            fmt::format("{}: unexpected {}, not announced by config.json", name, kind_of(role));
        if (std::ranges::find(found, problem) == found.end()) found.push_back(std::move(problem));
      }
}

/// Compares numbers, since the types may differ.
bool same_values(const Checkpoint& checkpoint, const io::TensorView& a, const io::TensorView& b) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  if (a.shape != b.shape) return false;
  const auto all = static_cast<int64_t>(a.bytes.size() / dtype_bytes(a.dtype));
  for (int64_t begin = 0; begin < all; begin += kPiece) {
    const int64_t end = std::min(all, begin + kPiece);
    if (stored_in(checkpoint, a).values(begin, end) != stored_in(checkpoint, b).values(begin, end))
      return false;
  }
  return true;
}

}  // namespace

bool is_weight_type(std::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16";
}

std::string settle_head(ModelConfig& config, const Checkpoint& checkpoint) {
  const std::string embedding = canonical_name({Role::embedding}),
                    head = canonical_name({Role::head});
  if (config.head.tied && has_codes_of(checkpoint, head)) {
    config.head.tied = false;
    return fmt::format(
        "{}: config.json ties the LM head to the embedding, but the file has a quantized head, "
        "which is used. Set tie_word_embeddings to false in config.json",
        checkpoint.where());
  }
  if (!config.head.tied || !checkpoint.contains(embedding) || !checkpoint.contains(head) ||
      same_values(checkpoint, checkpoint.tensor(embedding), checkpoint.tensor(head)))
    return {};
  config.head.tied = false;
  return fmt::format(
      "{}: config.json ties the LM head to the embedding, but '{}' has other values, so the stored "
      "head is used. Set tie_word_embeddings to false in config.json",
      checkpoint.where(), head);
}

std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& where) {
  const io::Json j = io::parse_json(text, where);
  ShardIndex index;
  for (const auto& [tensor, value] : io::get_object(j, "weight_map", where).items()) {
    const std::string& shard = io::as_string(value, "weight_map " + io::quote(tensor), where);
    const bool is_plain = !shard.empty() && shard != "." && shard != ".." &&
                          shard.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
    if (!is_plain)
      throw input_error(where, "weight_map {}: shard {} is not a plain file name",
                        io::quote(tensor), io::quote(shard))
          .hint("put the shards into the model folder");
    index[tensor] = shard;
  }
  if (index.empty()) throw input_error(where, "weight_map is empty, expected tensor names");
  return index;
}

Checkpoint Checkpoint::open(const std::filesystem::path& folder) {
  require_model_folder(folder);
  Checkpoint checkpoint;
  if (auto quantization = load_quantization(folder))
    checkpoint.quantization_ = std::make_shared<const Quantization>(*std::move(quantization));
  const std::filesystem::path single = folder / "model.safetensors";
  if (std::filesystem::exists(single)) {
    checkpoint.where_ = single.string();
    checkpoint.shards_.push_back(io::Safetensors::open(single));
    for (const io::TensorEntry& entry : checkpoint.shards_[0].entries())
      checkpoint.shard_of_[entry.name] = 0;
    checkpoint.find_prefix();
    return checkpoint;
  }

  const std::filesystem::path index_path = folder / "model.safetensors.index.json";
  if (!std::filesystem::exists(index_path)) {
    refuse_foreign_weights(folder);
    throw input_error(
        folder.string(),
        "model.safetensors and model.safetensors.index.json are missing, expected one of them")
        .hint("download the model's safetensors files into this folder");
  }
  checkpoint.where_ = index_path.string();
  const ShardIndex index =
      parse_shard_index(io::read_regular_file(index_path, kMaxIndexBytes), checkpoint.where_);
  std::map<std::string, size_t> number;
  for (const std::string& shard : shard_names(index, folder, checkpoint.where_)) {
    number[shard] = checkpoint.shards_.size();
    checkpoint.shards_.push_back(io::Safetensors::open(folder / shard));
  }
  for (const auto& [tensor, shard] : index) {
    const size_t i = number[shard];
    if (checkpoint.shards_[i].find(tensor) == nullptr)
      throw input_error(checkpoint.shards_[i].where(),
                        "tensor {} is missing, but the index places it in this file",
                        io::quote(tensor))
          .hint(
              "download this file and model.safetensors.index.json again, from the same revision");
    checkpoint.shard_of_[tensor] = i;
  }
  checkpoint.find_prefix();
  return checkpoint;
}

void Checkpoint::find_prefix() {
  constexpr std::string_view kEmbedding = "embed_tokens.weight";
  for (const auto& [name, shard] : shard_of_)
    if (name.ends_with("language_model.embed_tokens.weight") ||
        name.ends_with("language_model.model.embed_tokens.weight"))
      prefix_ = name.substr(0, name.size() - kEmbedding.size());
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  return names;
}

Checkpoint::Shards::const_iterator Checkpoint::at(std::string_view name) const {
  constexpr std::string_view kPrefix = "model.";
  if (const auto it = shard_of_.find(name); it != shard_of_.end()) return it;
  if (!prefix_.empty())
    return shard_of_.find(name.starts_with(kPrefix)
                              ? prefix_ + std::string(name.substr(kPrefix.size()))
                              : "language_model." + std::string(name));
  return name.starts_with(kPrefix) ? shard_of_.find(name.substr(kPrefix.size()))
                                   : shard_of_.find(std::string(kPrefix) += name);
}

const io::TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto it = at(name);
  return it == shard_of_.end() ? nullptr : shards_[it->second].find(it->first);
}

io::TensorView Checkpoint::tensor(std::string_view name) const {
  const auto it = at(name);
  if (it == shard_of_.end()) throw input_error(where_, "tensor {} is missing", io::quote(name));
  const io::Safetensors& shard = shards_[it->second];
  const io::TensorEntry& entry = *shard.find(it->first);
  if (!is_weight_type(entry.dtype))
    throw input_error(shard.where(), "tensor {} has dtype {}, expected BF16, F16 or F32",
                      io::quote(name), io::quote(entry.dtype))
        .hint(kOriginalWeights);
  return shard.tensor(entry);
}

io::TensorView Checkpoint::bytes(std::string_view name) const {
  const auto it = at(name);
  if (it == shard_of_.end()) throw input_error(where_, "tensor {} is missing", io::quote(name));
  const io::Safetensors& shard = shards_[it->second];
  return shard.bytes(*shard.find(it->first));
}

StoredPart Checkpoint::part(MatrixId id, const ModelConfig& config) const {
  id.role = stored_as(id.role, *this);
  return stored_part(id, config);
}

io::TensorView Checkpoint::weight(MatrixId id, const ModelConfig& config) const {
  const StoredPart stored = part(id, config);
  return io::rows_of(tensor(stored.tensor), stored.first, shape_of(id.role, config).front());
}

void Checkpoint::read(const io::TensorView& tensor, size_t begin, std::span<std::byte> out) const {
  const auto it = shard_of_.find(tensor.name);
  TANDEM_CHECK(it != shard_of_.end(), "tensor '{}' does not belong to {}", tensor.name, where_);
  shards_[it->second].read(tensor, begin, out);
}

void check_checkpoint(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::vector<std::string> problems;
  bool wrong_type = false;
  for (const MatrixId& id : all_matrices(config)) {
    std::string problem = problem_of(id, config, checkpoint, wrong_type);
    // Matrices of a fused tensor share theirs.
    if (!problem.empty() && (problems.empty() || problems.back() != problem))
      problems.push_back(std::move(problem));
  }
  add_unexpected(config, checkpoint, problems);
  if (problems.empty()) return;
  throw input_error(checkpoint.where(), "{} tensor{} not as config.json requires {}:{}",
                    problems.size(), problems.size() == 1 ? " is" : "s are",
                    problems.size() == 1 ? "it" : "them", listed(problems))
      .hint(wrong_type ? kOriginalWeights : remedy_of(config, checkpoint));
}

}  // namespace tandem::model
