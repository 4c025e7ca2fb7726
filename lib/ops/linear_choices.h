#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "base/weight_format.h"
#include "kernels/linear/skinny_linear.h"
#include "kernels/linear/tiled_linear.h"

namespace tandem::ops {

/// A product whose kernel is chosen by measurement.
struct LinearProduct {
  int64_t rows = 0, out = 0, in = 0;
  WeightFormat stored = DType::bf16;
  DType input = widens_to(stored);
  bool by_input = false;  // the weights are [in, out]
  DType y_type = DType::f32;
  bool bias = false;
  bool accumulate = false;
  std::optional<Gate> gate = {};  // as linear_gated
};

/// How such a product runs.
struct LinearChoice {
  using Algorithm = std::array<uint64_t, 8>;  // cuBLASLt's opaque record

  /// cuBLASLt, or one of ours; `channels` is down_channels on all of them, of weights by input.
  enum class Kernel : uint8_t { library, skinny, tiled, channels };

  Kernel kernel = Kernel::library;
  Algorithm algorithm = {};  // of the library
  int stages = 0;            // of skinny_linear
  LinearTiling tiling = {};  // of tiled_linear
  double microseconds = 0;   // as measured, for people
};

/// The number of rows that stands for `rows` among choices: itself up to 16, else the next power of
/// two.
int64_t rows_bucket(int64_t rows);

/// Choices for one machine: in memory, and in a file that it shares with other machines and
/// processes. A file or an entry that cannot be read counts as absent, one that cannot be written
/// costs only measuring again.
class LinearChoices {
 public:
  /// `file`: as io::keep takes it; `machine`: all that choices depend on beside the product: GPU
  /// and library with their versions.
  LinearChoices(std::filesystem::path file, std::string machine);

  std::optional<LinearChoice> find(const LinearProduct& product) const;
  /// Replaces the file as a whole, with what others have added to it meanwhile.
  void keep(const LinearProduct& product, const LinearChoice& choice);
  /// The same of any product, by words that name it.
  std::optional<LinearChoice> find(const std::string& words) const;
  void keep(const std::string& words, const LinearChoice& choice);

 private:
  std::filesystem::path file_;
  std::string machine_;
  std::map<std::string, LinearChoice> choices_;  // by the product in words
};

}  // namespace tandem::ops
