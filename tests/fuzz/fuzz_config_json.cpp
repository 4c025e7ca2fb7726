#include "decode/suggested_sampling.h"
#include "model/spec/config.h"
#include "model/spec/roles.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    const auto text = fuzz::as_text(data, size);
    const model::ModelConfig config = model::parse_config(text, "fuzz");
    if (model::n_params(config) <= 0) throw std::logic_error("a configuration without parameters");
    model::parse_generation_eos(text, "fuzz", config.vocab_size);
    decode::parse_suggested_sampling(text, "fuzz");
  });
}
