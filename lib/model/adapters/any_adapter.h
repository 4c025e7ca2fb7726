#pragma once
#include <filesystem>
#include <variant>

#include "model/adapters/adapter.h"
#include "model/adapters/low_rank_adapter.h"

namespace tandem::model {

/// An adapter of either kind, whose files have been checked against its model.
using AnyAdapter = std::variant<Adapter, LowRankAdapter>;

/// Opens the adapter of a folder, or of the run in it.
/// errors   kind input, as Adapter::open and LowRankAdapter::open
AnyAdapter open_adapter(const std::filesystem::path& path, const ModelConfig& config,
                        const AdapterBase& base, OtherBase other = OtherBase::refused);

/// Its tensors.
const io::Safetensors& file_of(const AnyAdapter& adapter);
bool holds(const AnyAdapter& adapter, MatrixId id);

}  // namespace tandem::model
