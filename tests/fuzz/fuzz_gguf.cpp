#include "io/gguf.h"
#include "model/gguf/gguf_model.h"
#include "target.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  return fuzz::run(ErrorKind::input, [&] {
    auto file = io::Gguf::parse(std::as_bytes(std::span(data, size)), "fuzz");
    for (const io::GgufTensor& t : file.tensors()) {
      std::vector<std::byte> bytes(t.bytes);
      file.read(t, 0, bytes);
    }
    const model::ModelConfig config = model::gguf_config(file);
    std::vector<std::string> warnings;
    if (text::has_tokenizer(file)) text::tokenizer_from_gguf(file, warnings);
    model::gguf_source(config, std::move(file));
  });
}
