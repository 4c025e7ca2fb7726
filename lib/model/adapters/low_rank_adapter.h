#pragma once
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/safetensors.h"
#include "model/adapters/low_rank_merge.h"
#include "model/spec/config.h"

namespace tandem::model {

// Adapters of PEFT: LoRA and DoRA. adapter_config.json says which matrices have factors and of what
// rank; adapter_model.safetensors has base_model.model.{module}.lora_A.weight [rank, in],
// .lora_B.weight [out, rank], and for DoRA .lora_magnitude_vector [out]. The embedding has
// .lora_embedding_A [rank, vocab] and .lora_embedding_B [dim, rank]. A tensor with the name of a
// weight replaces it (modules_to_save, embeddings saved along, trained biases);
// .token_adapter.trainable_tokens_delta replaces rows of the embedding or the head.

/// Settings that all matrices have in common.
struct LowRankInfo {
  std::string base;  // the base model, as it was named
  int64_t rank = 0;  // of most matrices; others get a rank and an alpha by their path
  double alpha = 0, dropout = 0;
  bool rslora = false, dora = false;
  std::vector<Role> targets = {};  // of kLayerRoles, in every layer; none: as the deltas say
};

/// Writes an adapter that PEFT loads: a reader sees all of it or, while it is written, none. The
/// gamma of every matrix is that of rank and alpha. Matrices that the model's family stores in one
/// tensor become one module, whose rank is the sum of theirs.
/// errors   kind input: cannot create, no space left
void write_low_rank_adapter(const std::filesystem::path& folder, const LowRankInfo& info,
                            std::span<const LowRankDelta> deltas, const ModelConfig& config = {});

class WeightSource;
struct LowRankConfig;

/// An adapter of PEFT whose files have been checked against a model; values stay in the file until
/// they are read.
class LowRankAdapter {
 public:
  /// Whether a folder holds one.
  static bool is_at(const std::filesystem::path& folder);
  /// errors   kind input: missing, pickled, of another type or model: missing tensors, shapes,
  ///          non-finite values; as parse_low_rank_config
  static LowRankAdapter open(const std::filesystem::path& folder, const ModelConfig& config);
  /// The tensors alone.
  static LowRankAdapter parse(io::Safetensors file, std::string_view config_text,
                              const ModelConfig& config);

  /// True if it changes the weight.
  bool holds(MatrixId id) const { return changes_.contains(id); }
  /// Whether it is of DoRA: its rows are scaled, so that its change depends on the base's weights.
  bool scales_rows() const { return scales_rows_; }
  /// True if it changes the weight by gamma B A for every base.
  bool is_product(MatrixId id) const;
  /// Checkpoint names of what it changes in other ways than by factors of a layer's matrices. Only
  /// merging supports these.
  std::vector<std::string> others() const;
  /// True if it gives a tied model an embedding and a head that differ.
  bool unties() const;
  /// Leaves out replacements that equal the weights of the base.
  /// errors   kind input: the base can no longer be read
  void drop_equal(const WeightSource& base);
  /// What PEFT warns about too: unmatched target names, tensors that are not used.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Changes that names and bytes of its tensors do not show; they tie saved states to it.
  std::vector<std::string> facts() const;
  // For a matrix that has factors:
  int64_t rank(MatrixId id) const { return changes_.at(id).rank; }
  /// W + gamma B A.
  float gamma(MatrixId id) const { return changes_.at(id).gamma; }
  /// shapes   A [rank, in], B [out, rank]; magnitudes [out], empty without DoRA
  std::vector<float> first_factor(MatrixId id) const;
  std::vector<float> second_factor(MatrixId id) const;
  std::vector<float> magnitudes(MatrixId id) const;
  /// Merges it into rows [begin, end) of a matrix; `by` times the change where that is a product.
  /// shapes   rows [end - begin, in] f32
  void merge(MatrixId id, int64_t begin, int64_t end, std::span<float> rows, float by = 1) const;
  /// Merges it into a norm or a bias.
  void merge(MatrixId id, std::span<float> values) const;
  /// Its tensors.
  const io::Safetensors& file() const { return file_; }

 private:
  /// What happens to a weight, in this order. A view with an empty shape stands for none.
  struct Change {
    io::TensorView replaced;   // the whole weight
    io::TensorView tokens;     // some rows
    std::vector<int32_t> ids;  // which
    io::TensorView a, b, magnitude;
    int64_t rank = 0;  // 0: no factors
    float gamma = 1;
    io::TensorView added;  // to a bias, times gamma

    bool same(const Change& other) const {
      return replaced.name == other.replaced.name && tokens.name == other.tokens.name &&
             a.name == other.a.name;
    }
  };

  LowRankAdapter(io::Safetensors file, const std::string& where, std::string_view config_text,
                 const ModelConfig& config);
  void add_factors(const LowRankConfig& said, const ModelConfig& config);
  /// True if the file has any tensor of the matrix's factors.
  bool has_factors(MatrixId place, const LowRankConfig& said) const;
  void add_bias(MatrixId place, const LowRankConfig& said, const ModelConfig& config);
  void add_replacement(MatrixId id, const LowRankConfig& said, const ModelConfig& config);
  void add_tokens(const LowRankConfig& said, const ModelConfig& config);
  /// Gives the head of a model that ties it what it has in common with the embedding.
  void tie(const LowRankConfig& said);
  void drop_unchanged();
  void warn_unused(const std::string& where);
  /// errors   kind input: it is missing, or of another type or shape
  io::TensorView tensor(const std::string& name, const io::Shape& shape);
  /// Values [first, first + n) of a tensor.
  std::vector<float> numbers(const io::TensorView& t, int64_t first, int64_t n) const;
  std::vector<float> all(const io::TensorView& t) const;
  void check_values(const io::TensorView& t) const;

  io::Safetensors file_;
  bool scales_rows_ = false;
  bool tied_ = false;  // embedding and head of the model
  std::map<MatrixId, Change> changes_;
  std::vector<float> embedding_factor_;      // lora_embedding_B as [rank, dim]
  std::set<std::string, std::less<>> used_;  // names of tensors
  std::vector<std::string> warnings_;
};

}  // namespace tandem::model
