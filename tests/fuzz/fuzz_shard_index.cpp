#include "model/weights/checkpoint.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    for (const auto& [tensor, shard] : model::parse_shard_index(fuzz::as_text(data, size), "fuzz"))
      if (shard.find('/') != std::string::npos)
        throw std::logic_error("a shard outside the folder");
  });
}
