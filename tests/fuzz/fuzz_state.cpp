#include "decode/state.h"
#include "state_model.h"
#include "target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    auto file = io::Safetensors::parse(std::as_bytes(std::span(data, size)), "fuzz");
    decode::parse_state(std::move(file), fuzz::state_model(), DType::f32);
  });
}
