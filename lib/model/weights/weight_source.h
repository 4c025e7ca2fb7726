#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "base/weight_format.h"
#include "model/spec/config.h"
#include "model/spec/roles.h"
#include "model/weights/checkpoint.h"

namespace tandem::model {

/// Gives the values of weights, from a checkpoint or from a seeded generator.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The format in which a matrix is stored.
  virtual WeightFormat native(MatrixId id) const = 0;
  /// Writes rows [begin, end) of a matrix in its native format, or in one that StoredWeights::read
  /// makes of it. A row in groups has the codes, scale and zero of one group after the other.
  /// errors   kind input: no converter makes the format; the source can no longer be read
  virtual void rows(MatrixId id, int64_t begin, int64_t end, WeightFormat to, void* out) const = 0;
  /// Puts the work of rows() on the stream, into memory of its GPU; returns false, with nothing
  /// done, where values come only from the host.
  virtual bool rows_on_device(MatrixId /*id*/, int64_t /*begin*/, int64_t /*end*/,
                              WeightFormat /*to*/, void* /*device*/, Stream /*stream*/) const {
    return false;
  }
  /// The source of numbers that rows() quantizes to the native format of a matrix.
  struct Unquantized {
    const WeightSource* source = nullptr;  // null: rows() quantizes nothing
    bool search = false;                   // as ops::quantize
  };
  virtual Unquantized unquantized(MatrixId /*id*/) const { return {}; }
  /// A whole vector in f32 (norms, biases).
  virtual std::vector<float> vector(MatrixId id) const = 0;
  /// Embedding rows of `ids` (each in [0, vocab)) into out [ids, dim].
  virtual void embed(std::span<const int32_t> ids, float* out) const = 0;
  /// Returns the weights before adapters were merged into them.
  virtual const WeightSource& base() const { return *this; }
};

/// Rows of weights as they are stored, and their only converter.
struct StoredWeights {
  std::string name;  // in errors
  WeightFormat format;
  int64_t in = 1;       // weights of a row
  int64_t at_once = 0;  // rows that are fetched together; 0: all, or if converted 64 KiB
  /// Writes rows [begin, end) as they are stored.
  std::function<void(int64_t begin, int64_t end, void* out)> fetch;

  /// Writes rows [begin, end) in the stored format, or their numbers as f32 or bf16.
  /// numerics exact, or rounded to nearest even
  /// errors   kind input: no converter makes the format; those of fetch
  void read(int64_t begin, int64_t end, const WeightFormat& to, void* out) const;
  /// Rows [begin, end) in f32.
  std::vector<float> values(int64_t begin, int64_t end) const;
};

/// The numbers of a tensor, each a row. The result refers to both. Numbers are read, not copied
/// from the mapping: a copy would cost page faults, keep pages resident, and crash where the file
/// has become shorter.
/// file     a Checkpoint or a Safetensors
StoredWeights stored_in(const auto& file, const io::TensorView& t, int64_t at_once = 0) {
  return {.name = t.name,
          .format = t.dtype,
          .at_once = at_once,
          .fetch = [&](int64_t begin, int64_t end, void* out) {
            const auto first = row_bytes(t.dtype, begin), bytes = row_bytes(t.dtype, end - begin);
            file.read(t, first, {static_cast<std::byte*>(out), bytes});
          }};
}

/// Reads the matrices of a checkpoint folder once, and embedding rows whenever a forward needs
/// them; keeps neither a copy of the files nor their pages mapped in. Reading may throw kind input:
/// a file that has changed or cannot be read. Quantized matrices come as codes in the native format
/// where codes hold them, and are decoded exactly where numbers are read.
/// notes    gets what a run should say about quantized matrices
/// errors   kind input from check_checkpoint and CodedTensors
std::unique_ptr<WeightSource> checkpoint_source(const ModelConfig& config, Checkpoint checkpoint,
                                                std::vector<std::string>* notes = nullptr);
/// Seeded uniform weights of standard deviation 0.02 (1/sqrt(2 n_layers) of that for o and down,
/// as GPT-2 does, so that activations stay of one size at any depth); norms' factors are 1, biases
/// 0.
std::unique_ptr<WeightSource> synthetic_source(const ModelConfig& config, uint64_t seed);

}  // namespace tandem::model
