#include "model/adapters/any_adapter.h"

#include "model/adapters/named_adapter.h"

namespace tandem::model {

AnyAdapter open_adapter(const std::filesystem::path& path, const ModelConfig& config,
                        const AdapterBase& base, OtherBase other) {
  const std::filesystem::path folder = adapter_folder(path);
  if (LowRankAdapter::is_at(folder)) return LowRankAdapter::open(folder, config);
  return Adapter::open(folder, config, base, other);
}

const io::Safetensors& file_of(const AnyAdapter& adapter) {
  return std::visit([](const auto& a) -> const io::Safetensors& { return a.file(); }, adapter);
}

bool holds(const AnyAdapter& adapter, Weight weight, int layer) {
  return std::visit([&](const auto& a) { return a.holds(weight, layer); }, adapter);
}

NamedAdapter named_in_memory(const std::string& name, std::vector<std::byte> bytes,
                             AnyAdapter adapter, float weight) {
  struct InMemory {
    std::vector<std::byte> bytes;
    AnyAdapter adapter;
  };
  // Moved, a vector's elements stay where they are.
  const auto held =
      std::make_shared<const InMemory>(InMemory{std::move(bytes), std::move(adapter)});
  return {.name = name,
          .adapter = std::shared_ptr<const AnyAdapter>(held, &held->adapter),
          .weight = weight};
}

}  // namespace tandem::model
