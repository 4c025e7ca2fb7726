#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "model/spec/config.h"
#include "model/spec/roles.h"

namespace tandem::model {

/// Tensor name -> shard file name, from model.safetensors.index.json.
/// errors   kind input at `where`: bad JSON, no weight_map, a shard name that is no plain file name
std::map<std::string, std::string> parse_shard_index(std::string_view text,
                                                     const std::string& where);

inline constexpr const char* kOriginalWeights = "use the original checkpoint in bf16, f16 or f32";

struct Quantization;
struct StoredPart;

/// Types that weights may have: F32, BF16 and F16.
bool is_weight_type(std::string_view dtype);

/// The weights of a model folder: model.safetensors, or the shards that
/// model.safetensors.index.json names. Files are mapped, only their headers are read here.
///
/// Tensors are found by name with or without "model." in front, as in transformers: folders that
/// were saved from the base class leave it out. In folders of models with other parts, what
/// precedes "embed_tokens.weight" takes its place.
///
/// Matrices may be quantized as config.json says; model/weights/coded_tensors.h reads them.
class Checkpoint {
 public:
  /// errors   kind input: folder, weights or shards missing (all listed); another format (GGUF,
  ///          PyTorch .bin or .pth) refused by name; inconsistent files; as load_quantization
  static Checkpoint open(const std::filesystem::path& folder);

  const std::string& where() const { return where_; }
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const io::TensorEntry* find(std::string_view name) const;
  /// A weight in f32, bf16 or f16; its bytes may be unaligned.
  /// errors   kind input: no such tensor; any other dtype
  io::TensorView tensor(std::string_view name) const;
  /// A tensor of any type as bytes, u8 [n].
  /// errors   kind input: no such tensor
  io::TensorView bytes(std::string_view name) const;
  /// The tensor of a matrix and its rows there. The head stands in for a missing embedding: a tied
  /// model may store either.
  StoredPart part(MatrixId id, const ModelConfig& config) const;
  /// errors   kind input: as tensor
  io::TensorView weight(MatrixId id, const ModelConfig& config) const;
  /// The quantization of its matrices; null: all are plain numbers.
  const Quantization* quantization() const { return quantization_.get(); }
  /// Copies bytes of a tensor, from byte `begin` of it on, past the mapping.
  /// errors  kind input: a file that has become shorter, or cannot be read
  void read(const io::TensorView& tensor, size_t begin, std::span<std::byte> out) const;

  const std::vector<io::Safetensors>& shards() const { return shards_; }

 private:
  using Shards = std::map<std::string, size_t, std::less<>>;
  Shards::const_iterator at(std::string_view name) const;
  void find_prefix();

  std::string where_;
  std::vector<io::Safetensors> shards_;
  Shards shard_of_;     // tensor name -> index into shards_
  std::string prefix_;  // precedes the text model's tensors; empty: a usual one
  std::shared_ptr<const Quantization> quantization_;
};

/// Unties the head if config.json ties it to the embedding, but the checkpoint has both with
/// different values: transformers 5 uses the head then. Returns a warning, or an empty text. Reads
/// both matrices up to the first difference.
std::string settle_head(ModelConfig& config, const Checkpoint& checkpoint);

/// Compares a checkpoint with what the configuration needs. Tensors that it does not need may have
/// any type and are passed over (rotary inv_freq buffers, a stored copy of a tied head), except
/// biases: leaving those out would change the result. Biases of zeros are passed over in GPTQ
/// folders, whose writers add them.
/// errors   kind input: every missing tensor, wrong shape, wrong dtype, unexpected bias and norm, at
///          most 20. The hint names the families with these tensors if config.json names another.
///          Quantized tensors that config.json does not announce, or announces otherwise.
void check_checkpoint(const ModelConfig& config, const Checkpoint& checkpoint);

}  // namespace tandem::model
