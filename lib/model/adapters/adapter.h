#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "model/spec/config.h"
#include "model/spec/roles.h"

namespace tandem::model {

// The files of an adapter: new values of some rows or columns of a model's matrices, by canonical
// feature. s2ft_config.json says what it is; s2ft_adapter.safetensors, which says the same, has
// for each matrix {module}.s2.index, i32 [s], ascending, and {module}.s2.value: of q, k, v, gate
// and up rows [s, in], of o and down columns [out, s]. Of q, k, v and o all features of a head.

/// The folder of an adapter, which may be named by the run's that holds it.
std::filesystem::path adapter_folder(const std::filesystem::path& path);

/// The model that an adapter is for.
struct AdapterBase {
  std::string name, fingerprint;
};

/// Whether an adapter of another model than the one given is taken. Its shapes must fit anyway.
enum class OtherBase : uint8_t { refused, allowed };

/// New values of a matrix, to be written.
struct AdapterSlice {
  MatrixId id = {};
  std::vector<int32_t> index = {};  // ascending
  std::span<const float> values = {};
};

/// What the files of an adapter say of it.
struct AdapterInfo {
  std::string format = {};  // "s2ft-adapter"; not written
  AdapterBase base = {};
  std::string selection = {};  // how its parts were chosen, as JSON
  int64_t steps = 0;           // that it was trained
};

/// Writes an adapter: a reader sees all of it or, while it is written, none.
/// errors   kind input: cannot create, no space left
void write_adapter(const std::filesystem::path& folder, const AdapterInfo& info,
                   std::span<const AdapterSlice> slices);

/// The tensors of an adapter in memory, as Adapter::parse reads them.
std::vector<std::byte> adapter_bytes(const AdapterInfo& info, std::span<const AdapterSlice> slices);

/// An adapter whose files have been checked against its model; values stay in the file until they
/// are read.
class Adapter {
 public:
  /// errors   kind input: missing, of another format or version, of another model (names both),
  ///          damaged: shapes, order and range of an index, parts of heads, non-finite values
  static Adapter open(const std::filesystem::path& folder, const ModelConfig& config,
                      const AdapterBase& base, OtherBase other = OtherBase::refused);
  /// The tensors alone.
  static Adapter parse(io::Safetensors file, const ModelConfig& config, const AdapterBase& base);
  /// The same of a part of one, which may hold nothing.
  static Adapter parse_part(io::Safetensors file, const ModelConfig& config,
                            const AdapterBase& base);

  AdapterInfo info() const;
  bool holds(MatrixId id) const { return slices_.contains(id); }
  /// The features whose values it holds, ascending: rows, of o and down columns; or none.
  std::span<const int32_t> index(MatrixId id) const;
  /// These values, as they are in the file.
  /// shapes   [features, in], of o and down [out, features]
  std::vector<float> values(MatrixId id) const;
  /// Puts its values into rows [begin, end) of a matrix, rounded to nearest to their dtype.
  /// shapes   rows [end - begin, in], f32 or bf16
  void replace(MatrixId id, int64_t begin, int64_t end, DType dtype, void* rows) const;
  /// Adds `by` times the difference of its values and the base's to rows [begin, end); at 1 its
  /// values themselves where no other adapter changes them.
  /// shapes   changes [features of the matrix]: adapters that change each, this one among them;
  ///          base, rows [end - begin, in]
  void add(MatrixId id, int64_t begin, int64_t end, float by, std::span<const uint32_t> changes,
           std::span<const float> base, std::span<float> rows) const;
  /// Its tensors.
  const io::Safetensors& file() const { return file_; }

 private:
  struct Slice {
    std::vector<int32_t> index;
    io::TensorView values;
    int64_t in = 0;  // columns of the matrix
  };

  Adapter(io::Safetensors file, const ModelConfig& config, const AdapterBase& base,
          OtherBase other);
  /// errors   kind input: it holds nothing
  void check_any() const;
  std::vector<int32_t> read_index(const io::TensorEntry& entry) const;
  void check_values(const io::TensorView& values) const;
  /// Calls visit(row, its values as `dtype`) for those of rows [begin, end) that a slice has.
  template <class Visit>
  void each_row(const Slice& s, bool columns, int64_t begin, int64_t end, DType dtype,
                const Visit& visit) const;
  /// Values [first, first + n) of a slice as `dtype`.
  void numbers(const io::TensorView& values, int64_t first, int64_t n, DType dtype,
               std::vector<std::byte>& out) const;

  io::Safetensors file_;
  std::map<MatrixId, Slice> slices_;
};

}  // namespace tandem::model
