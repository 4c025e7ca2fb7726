#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/weight_format.h"
#include "model/spec/quantization.h"
#include "model/weights/checkpoint.h"

namespace tandem::model {

/// Numbers of one kind that a file stores for a quantized matrix: a row for each output, or a
/// column.
struct CodedPart {
  std::string name = {};         // tensor; empty: the matrix has none
  std::string dtype = {};        // as the file spells it
  io::TensorView bytes = {};     // u8
  bool by_output = true;         // rows are outputs, else columns are
  int64_t n_outputs = 0, n = 0;  // elements along outputs and along the other side
};

/// A matrix [out, in] that another program has quantized.
struct CodedTensor {
  std::string module;  // its name without ".weight"
  QuantMethod method = QuantMethod::compressed_tensors;
  QuantScheme scheme;
  int64_t out = 0, in = 0;
  CodedPart codes = {}, scales = {}, zeros = {};
  std::vector<int32_t> group_of = {};  // [in] under act-order; empty: groups are runs of inputs
  WeightFormat format = DType::f32;    // in memory; f32: no codes hold it
};

/// Returns the problem with the tensors of a quantized matrix; empty if there is none.
/// name     the matrix, with ".weight"
/// shape    [out, in]
std::string coded_problem(const Checkpoint& checkpoint, const std::string& name,
                          const io::Shape& shape);

/// True if a matrix is stored as codes of any method.
bool has_codes_of(const Checkpoint& checkpoint, const std::string& name);

/// The quantized matrices of a checkpoint, which must outlive it. Its functions are thread-safe.
class CodedTensors {
 public:
  /// cost     reads all scales, and the zeros and orders of GPTQ
  /// errors   kind input: scales that are NaN, infinite or all zero; zeros that contradict `sym`; an
  ///          act-order whose groups are out of range or of unequal size
  CodedTensors(const ModelConfig& config, const Checkpoint& checkpoint);

  /// A matrix by the name of its tensor; null: it is plain numbers.
  const CodedTensor* find(std::string_view tensor) const;
  /// Writes rows [begin, end) in the format, or as f32 or bf16.
  /// numerics scale * (code - zero), rounded to f32 after each step, then to bf16
  /// errors   kind input: a code that is NaN; a file that has become shorter
  void rows(const CodedTensor& tensor, int64_t begin, int64_t end, const WeightFormat& to,
            void* out) const;
  /// Says which formats the files have, and what differs in memory.
  std::vector<std::string> notes() const;

 private:
  struct Strip;
  std::shared_ptr<const Strip> strip(const CodedTensor& tensor, int64_t begin, int64_t end) const;

  const Checkpoint* checkpoint_;
  std::string activations_;
  std::map<std::string, CodedTensor, std::less<>> tensors_;
  int n_plain_ = 0;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Strip> last_;  // the last whose columns are outputs
};

}  // namespace tandem::model
