#include "decode/model_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "model/adapters/fused_source.h"
#include "model/gguf/gguf_model.h"
#include "model/spec/context.h"
#include "model/spec/settings.h"
#include "model/spec/weight_formats.h"
#include "model/weights/checkpoint.h"
#include "model/weights/quantized_source.h"
#include "ops/linear.h"

namespace tandem::decode {
namespace {

constexpr std::string_view kSynthetic = "synthetic:";
constexpr const char* kDamagedModel =
    "if the file is damaged, download or copy it again, or choose another model";

/// FNV-1a, 64 bits: told apart, not protected.
class Fingerprint {
 public:
  void add(std::string_view text) {
    for (const char c : text) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash_ = (hash_ ^ 0xffu) * 0x100000001b3u;  // so that "ab","c" differs from "a","bc"
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

void add_shape(Fingerprint& f, const model::ModelConfig& c) {
  const auto [window, window_from] = c.sliding();
  f.add(fmt::format("{} {} {} {} {} {} {} {} {} {} {}", c.architecture, c.dim, c.n_layers,
                    c.n_heads, c.n_kv_heads, c.head_dim, c.ffn_dim, c.vocab_size, c.rms_eps, window,
                    window_from));
  const ops::RopeScaling& s = c.ropes.front().scaling;
  f.add(fmt::format("{} {} {} {} {} {}", c.ropes.front().theta, static_cast<int>(s.kind), s.factor,
                    s.low_freq_factor, s.high_freq_factor, s.original_context));
}

/// What add_shape lacks, where it is not as usual: files with the fingerprint of 037eef9 stay
/// valid.
void add_settings(Fingerprint& f, const model::ModelConfig& c) {
  for (const model::Setting& s : model::settings_of(c))
    if (!s.usual) f.add(s.key + "=" + s.value);
}

/// A few bytes from the middle of every tensor tell two fine-tunes of one shape apart without
/// reading it all.
/// files    reads tensors past the mapping: a plan would count its pages with the program
/// bytes    size of the tensor
void add_sample(Fingerprint& f, const auto& files, const auto& tensor, size_t bytes) {
  constexpr size_t kSample = 256;
  const size_t n = std::min(kSample, bytes), middle = (bytes - n) / 2;
  std::array<char, kSample> sample;
  files.read(tensor, middle, std::as_writable_bytes(std::span(sample).first(n)));
  f.add({sample.data(), n});
}

/// files    a Checkpoint or a Safetensors
void add_tensor(Fingerprint& f, const io::TensorEntry& entry, const auto& files,
                const io::TensorView& t) {
  f.add(entry.name + entry.dtype + io::shape_text(entry.shape));
  add_sample(f, files, t, t.bytes.size());
}

/// Tensors of other types are no weights, unless weights are quantized.
void add_weights(Fingerprint& f, const model::Checkpoint& checkpoint) {
  for (const std::string& name : checkpoint.names())
    if (const io::TensorEntry& entry = *checkpoint.find(name);
        model::is_weight_type(entry.dtype) || checkpoint.quantization() != nullptr)
      add_tensor(f, entry, checkpoint, checkpoint.bytes(name));
}

void add_adapter(Fingerprint& f, const model::WeightedAdapter& given,
                 const model::ModelConfig& config) {
  f.add(fmt::format("{}", given.weight));
  const io::Safetensors& file = model::file_of(given.adapter);
  for (const io::TensorEntry& entry : file.entries())
    if (model::is_weight_type(entry.dtype) || entry.dtype == "I32")
      add_tensor(f, entry, file, file.bytes(entry));
  // What a folder of PEFT says elsewhere than in its tensors.
  const auto* factors = std::get_if<model::LowRankAdapter>(&given.adapter);
  if (factors != nullptr)
    for (int layer = 0; layer < config.n_layers; ++layer)
      for (const model::Role weight : model::kLayerRoles)
        if (factors->holds({weight, layer}))
          f.add(fmt::format("{}", factors->gamma({weight, layer})));
  if (factors != nullptr)
    for (const std::string& fact : factors->facts()) f.add(fact);
}

void merge(ModelFiles& m, std::vector<model::WeightedAdapter> adapters) {
  if (adapters.empty()) return;
  Fingerprint f;
  f.add(m.fingerprint);
  for (const model::WeightedAdapter& adapter : adapters) add_adapter(f, adapter, m.config);
  m.fingerprint = f.text();
  m.source = model::fused_source(std::move(m.source), std::move(adapters), m.config);
}

std::string label_of(const std::string& name, float weight) {
  return weight == 1 ? name : fmt::format("{}={}", name, weight);
}

bool has_tokenizer(const std::filesystem::path& folder) {
  for (const char* file : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (std::filesystem::exists(folder / file)) return true;
  return false;
}

/// errors   kind input: no path, or none that exists
void require_model(const std::string& path) {
  if (path.empty())
    throw input_error("model.path", "is empty, expected a model folder")
        .hint("give a Hugging Face model folder with -m, or a known name such as tiny-16m");
  if (!path.starts_with(kSynthetic) && !std::filesystem::exists(path))
    throw input_error(path, "no such model folder")
        .hint(
            "give a Hugging Face model folder, a .gguf file, a name under recipes/models such as "
            "tiny-16m, or synthetic:llama-3.2-1b");
}

}  // namespace

model::ModelConfig open_config(const std::string& path) {
  require_model(path);
  if (path.starts_with(kSynthetic)) return model::synthetic_config(path.substr(kSynthetic.size()));
  if (io::is_gguf_file(path))
    return with_remedy(kDamagedModel, [&] { return model::gguf_config(io::Gguf::open(path)); });
  return with_remedy(kDamagedModel, [&] { return model::load_config(path); });
}

namespace {

/// errors   kind input: the tokenizer has more tokens than the model
void limit_tokens(ModelFiles& m) {
  if (!m.tokenizer) return;
  if (m.tokenizer->learned_size() > m.config.vocab_size)
    throw input_error(m.folder.string(), "the tokenizer has {} tokens, the model only {}",
                      m.tokenizer->learned_size(), m.config.vocab_size)
        .hint("take the tokenizer and the weights from the same model");
  m.tokenizer->limit_ids(m.config.vocab_size);
}

/// Says which encodings a file has, since they may differ in memory; empty for plain numbers.
std::string decoding_note(const io::Gguf& file) {
  std::map<std::string, int> matrices;  // by encoding
  bool blocks = false;
  for (const io::GgufTensor& t : file.tensors()) {
    if (t.shape.size() < 2) continue;
    ++matrices[io::gguf_type_name(static_cast<uint32_t>(t.type))];
    blocks = blocks || io::gguf_block(t.type) > 1;
  }
  if (!blocks) return {};
  std::string text;
  for (const auto& [name, n] : matrices)
    text += fmt::format("{}{} in {}", text.empty() ? "" : ", ", n, name);
  return fmt::format("file     matrices: {}", text);
}

bool names_mistral(const io::Gguf& file) {
  for (const char* key : {"general.name", "general.basename"}) {
    std::string name(file.find_string(key).value_or(""));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (name.find("mistral") != std::string::npos) return true;
  }
  return false;
}

/// Says that a file lacks the sliding window of Mistral 7B 0.1, the only Mistral of this context
/// and theta; empty for other files.
std::string window_note(const io::Gguf& file, const model::ModelConfig& config) {
  constexpr const char* kWindow = "llama.attention.sliding_window";
  constexpr int kContext = 32768, kOriginalWindow = 4096;
  if (file.find_string("general.architecture") != "llama" || file.has(kWindow) ||
      config.stated_context != kContext || config.ropes.front().theta != 10000 ||
      !names_mistral(file))
    return {};
  return fmt::format(
      "window   key '{}' is missing, so a token attends to all before it. Mistral 7B 0.1 has a "
      "window of {} tokens: beyond {} tokens, results differ from the original's",
      kWindow, kOriginalWindow, kOriginalWindow);
}

void read_gguf(ModelFiles& m, Fingerprint& f) {
  io::Gguf file = io::Gguf::open(m.folder);
  m.config = model::gguf_config(file);
  m.config.name = m.name;
  if (std::string note = decoding_note(file); !note.empty()) m.notes.push_back(std::move(note));
  if (std::string note = window_note(file, m.config); !note.empty())
    m.notes.push_back(std::move(note));
  if (text::has_tokenizer(file)) m.tokenizer = text::tokenizer_from_gguf(file, m.warnings);
  limit_tokens(m);
  add_shape(f, m.config);
  for (const io::GgufTensor& t : file.tensors()) {
    f.add(t.name + io::gguf_type_name(static_cast<uint32_t>(t.type)) + io::shape_text(t.shape));
    add_sample(f, file, t, t.bytes);
  }
  m.source = model::gguf_source(m.config, std::move(file));
}

void read_folder(ModelFiles& m, Fingerprint& f) {
  m.config = model::load_config(m.folder);
  if (has_tokenizer(m.folder)) m.tokenizer = text::load_tokenizer(m.folder);
  limit_tokens(m);
  model::Checkpoint checkpoint = model::Checkpoint::open(m.folder);
  if (std::string warning = model::settle_head(m.config, checkpoint); !warning.empty())
    m.warnings.push_back(std::move(warning));
  add_shape(f, m.config);
  add_weights(f, checkpoint);
  m.source = model::checkpoint_source(m.config, std::move(checkpoint), &m.notes);
}

ModelFiles read_model(const std::string& path, uint64_t seed) {
  ModelFiles m;
  Fingerprint f;
  if (path.starts_with(kSynthetic)) {
    m.config = open_config(path);
    m.name = path;
    m.source = model::synthetic_source(m.config, seed);
    f.add(fmt::format("synthetic {}", seed));
    add_shape(f, m.config);
  } else {
    require_model(path);
    m.folder = path;
    m.name = m.folder.lexically_normal().filename().string();
    m.gguf = io::is_gguf_file(m.folder);
    m.gguf ? read_gguf(m, f) : read_folder(m, f);
  }
  add_settings(f, m.config);
  m.fingerprint = f.text();
  if (std::string note = model::context_note(m.config); !note.empty())
    m.notes.push_back(std::move(note));
  return m;
}

}  // namespace

ModelFiles open_model(const std::string& path, uint64_t seed) {
  return with_remedy(kDamagedModel, [&] { return read_model(path, seed); });
}

namespace {

void take(ModelFiles& files, const model::Shard& shard) {
  files.shard = shard;
  files.whole = files.config;
  files.source = model::shard_source(files.config, shard, std::move(files.source));
  files.config = model::config_of(files.config, shard);
}

}  // namespace

void take_shard(ModelFiles& files, int rank, int n_ranks) {
  if (n_ranks == 1) return;
  const int block = model::channel_block(files.config, *files.source);
  const model::Shard shard = model::shard_of(files.config, rank, n_ranks, block);
  for (model::NamedAdapter& adapter : files.adapters)
    adapter = model::shard_adapter(adapter, files.config, shard);
  take(files, shard);
}

void take_draft_shard(ModelFiles& files, int rank, int n_ranks) {
  if (n_ranks == 1) return;
  const int block = model::channel_block(files.config, *files.source);
  take(files, model::draft_shard_of(files.config, rank, n_ranks, block));
}

void merge_named(ModelFiles& files, size_t adapter) {
  const model::NamedAdapter& named = files.adapters[adapter];
  files.merged.push_back(label_of(named.name, named.weight));
  merge(files, {{*named.adapter, named.weight}});
  files.adapters.clear();
}

model::AnyAdapter open_adapter(const std::filesystem::path& path, bool force, ModelFiles& base) {
  model::AnyAdapter adapter =
      model::open_adapter(path, base.config, {base.name, base.fingerprint},
                          force ? model::OtherBase::allowed : model::OtherBase::refused);
  if (auto* low = std::get_if<model::LowRankAdapter>(&adapter)) {
    low->drop_equal(*base.source);
    base.warnings.insert(base.warnings.end(), low->warnings().begin(), low->warnings().end());
  }
  return adapter;
}

void untie(ModelFiles& base) {
  base.config.head.tied = false;
  base.source = model::untied_source(std::move(base.source));
}

bool unties(std::span<const model::WeightedAdapter> adapters) {
  return std::ranges::any_of(adapters, [](const model::WeightedAdapter& given) {
    const auto* low = std::get_if<model::LowRankAdapter>(&given.adapter);
    return low != nullptr && given.weight != 0 && low->unties();
  });
}

namespace {

/// errors   kind input: it changes more than the matrices of layers
void check_apart(const recipe::Adapter& given, const model::AnyAdapter& adapter) {
  const auto* low = std::get_if<model::LowRankAdapter>(&adapter);
  if (low == nullptr || low->others().empty()) return;
  const std::vector<std::string> others = low->others();
  throw input_error(given.path.string(), "changes {}{}, which only a merged adapter can do",
                    others.front(),
                    others.size() == 1 ? "" : fmt::format(" and {} more", others.size() - 1))
      .hint(fmt::format("omit the name '{}' to merge the adapter into the weights", given.name));
}

}  // namespace

WeightFormat quantized_format(recipe::WeightType type, int group) {
  if (type == recipe::WeightType::fp8) return {Code::fp8, 0, ScaleType::f32, Zero::none};
  const auto inputs = static_cast<int16_t>(group);
  if (type == recipe::WeightType::int4) return {Code::i4, inputs, ScaleType::f16, Zero::integer};
  return {Code::i8, inputs, ScaleType::f16, Zero::none};
}

namespace {

bool has_codes(const ModelFiles& m) {
  return std::ranges::any_of(model::all_matrices(m.config), [&](model::MatrixId id) {
    return model::is_matrix(id.role) && is_coded(m.source->native(id));
  });
}

/// Quantises the weights as they are read.
void quantize(ModelFiles& m, const recipe::Model& r) {
  if (!recipe::is_quantized(r.weights)) return;
  if (has_codes(m))
    throw recipe_error("model.weights", "is {}, but the weights of {} are quantized already",
                       recipe::yaml_text(r.weights), m.name)
        .hint("leave it auto, or set bf16 or f32 to decode them");
  if (m.config.head.tied && r.embedding != recipe::WeightType::automatic)
    throw recipe_error("model.embedding", "is {}, but {} ties the embedding to the head",
                       recipe::yaml_text(r.embedding), m.name)
        .hint("set model.head for both");
  std::map<model::MatrixId, WeightFormat> formats;
  const auto add = [&](model::MatrixId id, recipe::WeightType type) {
    if (type == recipe::WeightType::automatic)
      type = r.weights == recipe::WeightType::fp8 ? r.weights : recipe::WeightType::int8;
    if (recipe::is_quantized(type)) formats.emplace(id, quantized_format(type, r.group));
  };
  for (const model::MatrixId& id : model::all_matrices(m.config))
    if (model::in_layers(id.role) && model::is_matrix(id.role)) add(id, r.weights);
  add({model::Role::embedding}, m.config.head.tied ? r.head : r.embedding);
  if (!m.config.head.tied) add({model::Role::head}, r.head);
  Fingerprint f;
  f.add(m.fingerprint);
  for (const auto& [id, format] : formats)
    f.add(model::canonical_name(id) + format_name(format) + (r.scale_search ? " search" : ""));
  m.unquantized = std::exchange(m.fingerprint, f.text());
  m.source = model::quantized_source(
      m.config, std::move(m.source),
      [formats = std::move(formats)](model::MatrixId id) -> std::optional<WeightFormat> {
        const auto at = formats.find(id);
        return at == formats.end() ? std::nullopt : std::optional(at->second);
      },
      r.scale_search);
}

}  // namespace

std::shared_ptr<model::WeightFormats> codes_of(const ModelFiles& m, Device device, DType compute) {
  auto formats = std::make_shared<model::WeightFormats>();
  for (const model::MatrixId& id : model::all_matrices(m.config))
    if (model::is_matrix(id.role))
      if (const WeightFormat format = m.source->native(id);
          is_coded(format) && ops::multiplies_codes(format, compute, device))
        formats->coded.emplace(id, format);
  return formats->coded.empty() ? nullptr : formats;
}

void keep_codes(ModelFiles& m, Device device, DType compute, bool int8_inputs, bool fp8_inputs) {
  const auto formats = codes_of(m, device, compute);
  const std::string why = "since " + device.name() + " multiplies no such codes";
  if (!formats) return note_widened(m, compute, why);
  const auto is_fp8 = [](const auto& matrix) { return matrix.second.code == Code::fp8; };
  const bool some_fp8 = std::ranges::any_of(formats->coded, is_fp8);
  formats->int8_inputs = int8_inputs && !std::ranges::all_of(formats->coded, is_fp8);
  formats->fp8_inputs = fp8_inputs && some_fp8;
  m.config.formats = formats;
  m.notes.push_back(fmt::format("weights  {} matrices as {}, multiplied by {}",
                                formats->coded.size(), model::formats_text(m.config, DType::bf16),
                                formats->fp8_inputs ? "activations rounded to fp8 in large batches"
                                : !formats->int8_inputs ? "activations as they are"
                                : some_fp8
                                    ? "activations rounded to int8, fp8 by activations as they are"
                                    : "activations rounded to int8"));
  const auto stored = codes_of(m, {}, compute);
  if (const size_t others = stored->coded.size() - formats->coded.size(); others > 0)
    m.notes.push_back(fmt::format("weights  {} quantized matrices in {} in memory, {}", others,
                                  dtype_name(compute), why));
}

void note_widened(ModelFiles& m, DType numbers, const std::string& why) {
  if (has_codes(m))
    m.notes.push_back(
        fmt::format("weights  quantized values in {} in memory {}", dtype_name(numbers), why));
}

ModelFiles open_model(const recipe::Model& model, uint64_t seed) {
  ModelFiles m = open_model(model.path.value, seed);
  std::vector<model::WeightedAdapter> merged;
  for (const recipe::Adapter& given : model.adapters) {
    model::AnyAdapter adapter = open_adapter(given.path, given.force, m);
    const auto weight = static_cast<float>(given.weight);
    if (given.name.empty()) {
      m.merged.push_back(label_of(given.path.string(), weight));
      merged.push_back({std::move(adapter), weight});
    } else {
      check_apart(given, adapter);
      m.adapters.push_back(
          {.name = given.name,
           .adapter = std::make_shared<const model::AnyAdapter>(std::move(adapter)),
           .weight = weight});
    }
  }
  if (unties(merged)) untie(m);
  merge(m, std::move(merged));
  quantize(m, model);
  return m;
}

}  // namespace tandem::decode
