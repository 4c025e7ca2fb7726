#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/sequence_listener.h"
#include "model/adapters/adapter_parts.h"
#include "model/forward/side_products.h"
#include "ops/adapters.h"
#include "tensor/arena.h"

namespace tandem::model {

/// Named adapters next to the weights of one model, whose sequences each have their own or none:
/// one ragged batch mixes them. Rows find their adapter through arrays on the device, so that a
/// recorded step serves any mixture.
class ServedAdapters final : public SideProducts, public kv::SequenceListener {
 public:
  struct Spec {
    const ModelConfig& config;
    DType dtype = DType::bf16;  // of the values, as of the weights
    Device device = {};
    int max_seqs = 1, max_rows = 1;
    int max_run = 1;  // rows of one sequence in a step
    std::span<const NamedAdapter> adapters;
  };
  /// errors   kind recipe, as part_shapes
  static void plan(const Spec& spec, MemoryPlan& plan);
  /// base     the weights that they change
  /// exec     the device of the spec
  ServedAdapters(const Spec& spec, const WeightSource& base, Arena& arena, const Exec& exec);

  /// The sequence of a slot goes on with this adapter; negative: with none.
  void assign(int slot, int adapter);

  /// Of its values.
  size_t bytes(int adapter) const;

  void enter(const kv::Step& step) override;
  bool changes(int layer, Role of) const override;
  Tensor apart(int layer, Role of, int64_t rows) override;
  void add(int layer, Role of, const Tensor& y, const Tensor& x, const Tensor& sum) override;

  void on_prompt(int slot) override;
  void on_fork(int from, int to) override;
  void on_release(int slot) override;
  void on_truncate(int slot, int n) override;

 private:
  /// What any adapter has of a matrix.
  struct OfMatrix {
    int most_slices = 0, most_first = 0, most_second = 0;  // n of a part
    std::array<bool, kSecondParts> second = {};
  };
  const OfMatrix& of_matrix(int layer, Role of) const { return matrices_[stack_index(layer, of)]; }
  /// Rows of a sequence that are too many for groups: their products are those of matrices.
  struct LongRun {
    int64_t first = 0, rows = 0;
    int adapter = 0;
  };
  void add_run(const LongRun& run, int layer, Role of, const Tensor& y, const Tensor& x);
  /// Of the part of an adapter, on the host.
  const AdapterPart& part(int layer, Role of, int adapter, int place) const;
  /// What second factors of a matrix add to, of any adapter.
  std::vector<ops::GroupedTarget> targets(int layer, Role of) const;
  /// Brings an adapter's numbers to `memory`, on the device, and says in `table` where they are.
  void load(int adapter, const WeightSource& base, std::byte* memory, std::span<AdapterPart> table);
  void copy_in(void* to, const void* from, size_t bytes);
  /// Of groups that are in place, for the products that follow.
  ops::RowGroups groups();

  Spec spec_;
  std::vector<NamedAdapter> adapters_;
  Exec exec_;
  std::vector<OfMatrix> matrices_;      // [layers, kLayerStacks]
  std::vector<AdapterPart> parts_;      // [layers, kLayerStacks, adapters, kMatrixParts]
  const AdapterPart* table_ = nullptr;  // the same where kernels read it
  int32_t* of_slot_ = nullptr;          // [max_seqs] where kernels read it
  std::vector<int32_t> slots_;          // the same on the host
  ops::GroupArrays arrays_;
  ops::RowGroups groups_;  // of the step in hand
  bool settled_ = false;
  std::vector<LongRun> runs_;  // of the step in hand
  void* inner_ = nullptr;      // [max_rows, features of a part], f32 at most
  std::span<std::byte> workspace_;
};

}  // namespace tandem::model
