#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"

namespace tandem::model {

/// The program or format that quantized a model folder.
enum class QuantMethod : uint8_t { compressed_tensors, fp8, awq, gptq };
/// "AWQ"
std::string_view method_name(QuantMethod method);

/// True for a number of inputs that products take as a group.
bool is_group(int64_t inputs);

/// The encoding of quantized matrices.
struct QuantScheme {
  /// Integers in words of 32 bits, int8, or fp8 (E4M3).
  enum class Codes : uint8_t { packed, int8, fp8 };
  Codes codes = Codes::packed;
  int bits = 4;
  bool symmetric = true;                  // no zeros are stored
  int64_t outputs = 1, inputs = 0;        // sharing a scale; 0: all
  std::vector<std::string> targets = {};  // modules, as compressed-tensors names them
};

/// The section quantization_config of a config.json.
struct Quantization {
  QuantMethod method = QuantMethod::compressed_tensors;
  std::vector<QuantScheme> schemes = {};  // one, or those of compressed-tensors' groups
  std::vector<std::string> plain = {};    // modules that stay numbers
  bool zeros_less_one = false;            // GPTQ stores each zero less 1 (v1)
  std::string activations = {};           // "8 bits": the scheme quantizes activations too

  /// The scheme of a linear layer; null: it stays numbers.
  /// name     without ".weight"; `stored` is its name in the files
  const QuantScheme* scheme_of(std::string_view name, std::string_view stored) const;
};

/// Reads a quantization_config.
/// errors   kind input at `where`: a method, format or option that is not supported (named, with the
///          remedy); keys that are missing or out of range
Quantization parse_quantization(const io::Json& section, const std::string& where);

/// The quantization of a model folder, from config.json or from the quantize_config.json or
/// quant_config.json of old GPTQ and AWQ folders; nothing if weights are plain numbers.
/// errors   kind input: as parse_quantization; bad JSON
std::optional<Quantization> load_quantization(const std::filesystem::path& folder);

}  // namespace tandem::model
