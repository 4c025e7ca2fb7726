#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <variant>

#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_adapter.h"

namespace tandem::model {

struct Shard;

/// An adapter of either kind, whose files have been checked against its model.
using AnyAdapter = std::variant<Adapter, LowRankAdapter>;

/// Opens the adapter of a folder, or of the run in it.
/// errors   kind input, as Adapter::open and LowRankAdapter::open
AnyAdapter open_adapter(const std::filesystem::path& path, const ModelConfig& config,
                        const AdapterBase& base, OtherBase other = OtherBase::refused);

/// Its tensors.
const io::Safetensors& file_of(const AnyAdapter& adapter);
bool holds(const AnyAdapter& adapter, MatrixId id);

/// An adapter that stays apart from the weights, to be named by requests.
struct NamedAdapter {
  std::string name;
  std::shared_ptr<const AnyAdapter> adapter;
  float weight = 1;  // multiplies the adapter's change
};

/// Returns what a rank has of an adapter, in memory: new values of the features of its heads and
/// channels, or rows and columns of low-rank factors.
/// errors   kind recipe: DoRA, which measures whole rows; kind input: files that can no longer be
///          read
NamedAdapter shard_adapter(const NamedAdapter& named, const ModelConfig& whole, const Shard& shard);

}  // namespace tandem::model
