#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "model/adapters/low_rank_merge.h"
#include "model/config.h"

namespace tandem::model {

// Adapters of PEFT: LoRA and DoRA. adapter_config.json says which matrices have factors and of what
// rank; adapter_model.safetensors has base_model.model.{module}.lora_A.weight [rank, in],
// .lora_B.weight [out, rank], and of DoRA .lora_magnitude_vector [out].

/// Settings that all matrices have in common.
struct LowRankInfo {
  std::string base;  // the base model, as it was named
  int64_t rank = 0;  // of most matrices; others get a rank and an alpha by their path
  double alpha = 0, dropout = 0;
  bool rslora = false, dora = false;
  std::vector<Weight> targets = {};  // wq to w_down, those of every layer; none: as the deltas say
};

/// Writes an adapter that PEFT loads: a reader sees all of it or, while it is written, none. The
/// gamma of every matrix is that of rank and alpha.
/// errors   kind input: cannot create, no space left
void write_low_rank_adapter(const std::filesystem::path& folder, const LowRankInfo& info,
                            std::span<const LowRankDelta> deltas);

/// An adapter of PEFT whose files have been checked against a model; values stay in the file until
/// they are read.
class LowRankAdapter {
 public:
  /// Whether a folder holds one.
  static bool is_at(const std::filesystem::path& folder);
  /// errors   kind input: missing, pickled, of another type or model, damaged: missing or unknown
  ///          tensors, shapes, non-finite values; as parse_low_rank_config
  static LowRankAdapter open(const std::filesystem::path& folder, const ModelConfig& config);
  /// The tensors alone.
  static LowRankAdapter parse(io::Safetensors file, std::string_view config_text,
                              const ModelConfig& config);

  bool holds(Weight weight, int layer) const { return matrices_.contains({weight, layer}); }
  /// Whether it is of DoRA: its rows are scaled, so that its change depends on the base's weights.
  bool scales_rows() const { return scales_rows_; }
  // Of a matrix that it holds:
  int64_t rank(Weight weight, int layer) const { return matrices_.at({weight, layer}).rank; }
  /// W + gamma B A.
  float gamma(Weight weight, int layer) const { return matrices_.at({weight, layer}).gamma; }
  /// shapes   A [rank, in], B [out, rank]; magnitudes [out], empty without DoRA
  std::vector<float> first_factor(Weight weight, int layer) const;
  std::vector<float> second_factor(Weight weight, int layer) const;
  std::vector<float> magnitudes(Weight weight, int layer) const;
  /// Merges it into rows [begin, end) of a matrix; of LoRA `by` times its change.
  /// shapes   rows [end - begin, in] f32
  void merge(Weight weight, int layer, int64_t begin, int64_t end, std::span<float> rows,
             float by = 1) const;
  /// Its tensors.
  const io::Safetensors& file() const { return file_; }

 private:
  struct Matrix {
    io::TensorView a, b, magnitude;  // the last is empty without DoRA
    int64_t rank = 0;
    float gamma = 1;
  };

  LowRankAdapter(io::Safetensors file, const std::string& where, std::string_view config_text,
                 const ModelConfig& config);
  io::TensorView tensor(const std::string& name, const io::Shape& shape) const;
  /// Values [first, first + n) of a tensor.
  std::vector<float> numbers(const io::TensorView& t, int64_t first, int64_t n) const;
  std::vector<float> all(const io::TensorView& t) const;
  void check_values(const io::TensorView& t) const;

  io::Safetensors file_;
  bool scales_rows_ = false;
  std::map<std::pair<Weight, int>, Matrix> matrices_;
};

}  // namespace tandem::model
