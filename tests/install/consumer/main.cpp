// A program outside the source tree: tokens of a sentence, and a tensor of the checkpoint.
#include <cstdio>

#include "base/error.h"
#include "io/safetensors.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) try {
  const std::filesystem::path folder = argc > 1 ? argv[1] : ".";
  const auto tokenizer = tandem::text::load_tokenizer(folder);
  const auto ids = tokenizer->encode("The lamp was lit.");
  const auto weights = tandem::io::Safetensors::open(folder / "model.safetensors");
  const auto* embeddings = weights.find("model.embed_tokens.weight");
  std::printf("%zu tokens: %s; embeddings %s\n", ids.size(), tokenizer->decode(ids).c_str(),
              embeddings ? tandem::io::shape_text(embeddings->shape).c_str() : "missing");
  return embeddings && tokenizer->decode(ids, true) == "The lamp was lit." ? 0 : 1;
} catch (const tandem::Error& error) {
  std::fprintf(stderr, "consumer: error: %s\n", error.what());
  return tandem::exit_status(error.kind());
}
