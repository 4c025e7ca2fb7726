#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "decode/engine.h"

namespace tandem::decode {

/// Names of a state's file: its format, that of a model with several page groups, which it lists,
/// and of its tensors.
inline constexpr const char *kStateFormat = "tandem.state/1", *kGroupedFormat = "tandem.state/2",
                            *kGroupsKey = "page_groups";
inline constexpr const char* kTokensName = "tokens";
/// Of keys ('k') or values ('v') of one layer.
std::string page_name(char which, int layer, int page);
std::string queries_name(int layer);

/// Form of the activations that products of a run read, which decides on its keys and values.
inline constexpr const char* kActivationsKey = "activations";
/// "int8" if any quantised weights are multiplied by activations rounded to it, else "compute".
const char* activations_of(const ModelFiles& files);

/// Pages that hold this many tokens.
int pages_of(size_t tokens);

/// One page of keys, or of values, of one layer.
class StatePage {
 public:
  StatePage(const kv::PagedStore& store, int layer, char which, int32_t page);

  /// Of its rows as a state has them, of the model's type.
  size_t bytes() const { return static_cast<size_t>(pool_.elements()) * dtype_bytes(dtype_); }
  /// These where they lie, if they do so in host memory; else empty.
  std::span<std::byte> in_place() const;
  /// Copies them out, or in; with a GPU as work on its queue.
  void read(std::byte* to, const Exec& exec) const;
  void write(const std::byte* from, const Exec& exec) const;

 private:
  bool on_gpu() const { return pool_.device().kind == Device::Kind::cuda; }

  kv::PageRun run_;
  Tensor pool_;
  DType dtype_;
  bool eight_bit_, values_;
};

/// A tensor of a saved state whose rows have a piece for each head, of which a rank has some.
struct HeadRows {
  size_t n_rows = 0;
  size_t head_bytes = 0;  // of one head in a row
  /// Which heads a rank has.
  model::Shard::Part model::Shard::*part = &model::Shard::kv_heads;
  int n_heads = 0;  // of all ranks

  size_t row_bytes() const { return static_cast<size_t>(n_heads) * head_bytes; }
};

/// The whole tensor, out of what each rank has of it: on all ranks, which call it together.
/// own      [n_rows][heads of this rank][head_bytes]
std::vector<std::byte> join_heads(std::span<const std::byte> own, const HeadRows& rows,
                                  const ModelFiles& files, Comm& comm);

}  // namespace tandem::decode
